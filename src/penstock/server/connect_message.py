"""CONNECT: what a client says of itself.

Defaults hold until the first CONNECT; a later one changes only the fields it gives. Null counts as absent,
unknown fields are ignored, a field of the wrong type is a protocol violation.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, structs

from penstock.errors import ProtocolError


class ConnectMessage(Struct, frozen=True, kw_only=True):
    """The fields of CONNECT that matter to a server of clients."""

    verbose: bool = True
    """Answer +OK to what was accepted."""
    pedantic: bool = True
    """Check published subjects as well."""
    echo: bool = True
    """Deliver the connection's own messages to its own subscriptions."""
    headers: bool = False
    """The client understands HPUB and HMSG."""
    no_responders: bool = False
    """Answer requests that nobody listens to with a 503. Needs headers."""
    protocol: int = 0
    """1 = the client understands an INFO at any time."""
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    password: str = ""
    auth_token: str = ""
    nkey: str = ""
    """Public key of the user, who signed the nonce of INFO."""
    sig: str = ""
    proxy_sig: str = ""
    """The same of a proxy that the client comes through."""
    jwt: str = ""
    """The user's token, for a server with operators."""
    account: str = ""
    """Asks for an account by name: an old way in, always refused."""


_WIRE_NAMES = {"password": "pass"}
_TYPES: dict[str, type] = {
    field: {"bool": bool, "int": int, "str": str}[str(kind)]
    for field, kind in ConnectMessage.__annotations__.items()
}


_SECRET = {"password", "auth_token", "sig", "proxy_sig", "jwt"}
PUBLIC: dict[str, type] = {name: kind for name, kind in _TYPES.items() if name not in _SECRET}
"""Types of the fields that logs may show, by their names in CONNECT."""
PUBLIC["tls_required"] = bool


def parse_connect(payload: bytes, before: ConnectMessage) -> ConnectMessage:
    """The options after a CONNECT.

    Args:
        payload: its JSON.
        before: the options so far.

    Raises:
        ProtocolError: neither a JSON object nor null, which names nothing; or a field of the wrong type.
    """
    try:
        found = msgspec.json.decode(payload, type=dict[str, msgspec.Raw] | None) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"CONNECT with bad JSON: {error}") from error
    changes: dict[str, Any] = {}
    for field, kind in _TYPES.items():
        wire_name = _WIRE_NAMES.get(field, field)
        value = _scalar(wire_name, found.get(wire_name), kind)
        if value is None:
            continue
        if type(value) is not kind:
            # Without the value: it may be a secret, and logs show this.
            raise ProtocolError(
                f"CONNECT with a {type(value).__name__} as {wire_name}, expected {kind.__name__}"
            )
        changes[field] = value
    return structs.replace(before, **changes)


_KINDS = {b"{": "dict", b"[": "list"}


def _scalar(name: str, raw: msgspec.Raw | None, kind: type) -> Any:
    """A field's value; None when it is not given. Raises ProtocolError for a map or list, without reading it:
    values that mean nothing are never built, however large they are."""
    if raw is None:
        return None
    data = bytes(raw)
    if data[:1] in _KINDS:
        raise ProtocolError(f"CONNECT with a {_KINDS[data[:1]]} as {name}, expected {kind.__name__}")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"CONNECT with bad JSON: {error}") from error
