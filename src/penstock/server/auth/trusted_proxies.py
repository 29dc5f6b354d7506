"""Trusted proxies: `proxies { trusted: [...] }` and `proxy_required`.

A trusted proxy forwards the protocol and adds its own signature of the server's nonce to the client's CONNECT
(`proxy_sig`). A signature by an untrusted key closes the connection. Without a signature, users with
`proxy_required` are refused. If no proxies are trusted, signatures are ignored.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import TYPE_CHECKING

from penstock.net.reasons import CloseReason
from penstock.protocol.nkeys import verify

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
