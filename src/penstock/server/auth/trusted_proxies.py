"""Trusted proxies: `proxies { trusted: [...] }` and `proxy_required`.

A trusted proxy forwards the protocol and adds its own signature of the server's nonce to the client's CONNECT
(`proxy_sig`). A signature by an untrusted key closes the connection. Without a signature, users with
`proxy_required` are refused. If no proxies are trusted, signatures are ignored.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason
from penstock.protocol.nkeys import is_public, verify
from penstock.server.config.conf_parser import ConfNode
from penstock.server.config.directives import block, shown, text

if TYPE_CHECKING:
    from penstock.server.auth.authenticator import Identity
    from penstock.server.config.server_options import ServerOptions
    from penstock.server.connect_message import ConnectMessage
    from penstock.server.session import Session

UNTRUSTED = ""


def proven_key(options: ServerOptions, connect: ConnectMessage, nonce: str) -> str | None:
    """The key of the client's proxy; "" = an untrusted one, None = no proxy."""
    if not connect.proxy_sig or not options.trusted_proxies:
        return None
    try:
        padding = "=" * (-len(connect.proxy_sig) % 4)
        signature = urlsafe_b64decode(connect.proxy_sig + padding) if nonce else b""
    except ValueError:
        return UNTRUSTED
    signers = (key for key in options.trusted_proxies if verify(key, nonce.encode(), signature))
    return next(signers, UNTRUSTED)


def refusal(session: Session, identity: Identity | None) -> CloseReason | None:
    """Why the client may not use this identity, as far as proxies are concerned; None = it may."""
    key = session.proxy_key
    if key is not None and key not in session.context.options.trusted_proxies:
        return CloseReason.PROXY_NOT_TRUSTED
    if identity is not None and identity.proxy_required and key is None:
        return CloseReason.PROXY_REQUIRED
    return None


def trusted(node: ConfNode, name: str) -> tuple[str, ...]:
    """Parses the block `proxies`: the trusted keys."""
    found: tuple[str, ...] = ()
    for key, where, entry in block(node, name):
        if key.lower() != "trusted":
            if entry.used:
                continue
            raise where.error(f'unknown field "{key}"')
        if not isinstance(entry.value, list):
            raise where.error(f"expected proxies' trusted field to be an array, got {shown(entry)}")
        found = tuple(_key(each) for each in entry.value)
    return found


def _key(node: ConfNode) -> str:
    public = ""
    for key, where, entry in block(node, "an entry of proxies.trusted"):
        if key.lower() not in ("key", "public_key"):
            if entry.used:
                continue
            raise where.error(f'unknown field "{key}"')
        public = text(entry, key)
        if not is_public(public):
            raise where.error(f'invalid proxy key "{public}"')
    if not public:
        raise node.where.error('proxy trusted key "" is invalid: give the entry a `key`')
    return public


def check(options: ServerOptions) -> None:
    """Raises ConfigError for invalid keys."""
    for key in options.trusted_proxies:
        if not is_public(key):
            raise ConfigError(f'proxy trusted key "{key}" is invalid')
