"""CONNECT: the client's options and credentials.

Defaults apply until the first CONNECT. A later CONNECT changes only the fields it contains. Null counts as
absent, unknown fields are ignored, and a field of the wrong type is a protocol violation. Names match in any
case, and the last of several wins, as in the official server.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, structs

from penstock.errors import ProtocolError
from penstock.protocol.json_names import folded


class ConnectMessage(Struct, frozen=True, kw_only=True):
    """The fields of CONNECT that the server uses."""

    verbose: bool = True
    """Reply +OK to accepted operations."""
    pedantic: bool = True
    """Validate published subjects."""
    echo: bool = True
    """Deliver the connection's messages to its own subscriptions."""
    headers: bool = False
    """The client supports HPUB and HMSG."""
    no_responders: bool = False
    """Reply 503 to requests without subscribers. Needs headers."""
    protocol: int = 0
    """1 = the client accepts INFO at any time."""
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    password: str = ""
    auth_token: str = ""
    nkey: str = ""
    """Public key of the user, which signs the nonce of INFO."""
    sig: str = ""
    proxy_sig: str = ""
    """Signature of the nonce by the proxy that the client uses."""
    jwt: str = ""
    """The user's JWT, for a server with operators."""
    account: str = ""
    """An account name: a deprecated way to choose an account, always refused."""


_WIRE_NAMES = {"password": "pass"}
_TYPES: dict[str, type] = {
    field: {"bool": bool, "int": int, "str": str}[str(kind)]
    for field, kind in ConnectMessage.__annotations__.items()
}


_SECRET = {"password", "auth_token", "sig", "proxy_sig", "jwt"}
PUBLIC: dict[str, type] = {name: kind for name, kind in _TYPES.items() if name not in _SECRET}
"""Types of the fields that may appear in logs, by CONNECT field name."""
PUBLIC["tls_required"] = bool


def parse_connect(payload: bytes, before: ConnectMessage) -> ConnectMessage:
    """Applies a CONNECT to the options before it.

    Args:
        payload: JSON of CONNECT.
        before: the options so far.

    Raises:
        ProtocolError: not a JSON object or null (null changes nothing), or a field of the wrong type.
    """
    try:
        members = _decode_members(payload) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"CONNECT with bad JSON: {error}") from error
    changes: dict[str, Any] = {}
    for name, raw in members.items():
        known = _FIELDS.get(name) or _FIELDS.get(folded(name))
        if known is None:
            continue
        field, kind = known
        data = bytes(raw)
        value = _BOOLS.get(data)  # half of the fields that clients send
        if value is None:
            value = _scalar(name, data, kind)
            if value is None:
                continue
        if type(value) is not kind:
            # The error omits the value, which may be a secret: logs show it.
            raise ProtocolError(f"CONNECT with a {type(value).__name__} as {name}, expected {kind.__name__}")
        changes[field] = value
    return structs.replace(before, **changes)


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_FIELDS = {_WIRE_NAMES.get(field, field): (field, kind) for field, kind in _TYPES.items()}
_BOOLS = {b"true": True, b"false": False}
_KINDS = {b"{": "dict", b"[": "list"}


def _scalar(name: str, data: bytes, kind: type) -> Any:
    """A field's value; None for null. Raises ProtocolError for a map or list, without decoding it: large
    values of the wrong type cost nothing."""
    if data[:1] in _KINDS:
        raise ProtocolError(f"CONNECT with a {_KINDS[data[:1]]} as {name}, expected {kind.__name__}")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"CONNECT with bad JSON: {error}") from error
