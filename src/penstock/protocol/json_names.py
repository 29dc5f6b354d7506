"""Names of JSON members in another case: Go's decoder, and so the official server, ignores it."""

from __future__ import annotations

import re
from typing import Any

import msgspec

REPAIR_MAX = 256 * 1024
"""Bytes up to which JSON is rewritten: with names in another case, nulls or invalid UTF-8. Rewriting takes
many times as long as decoding, and blocks the event loop."""

_Shape = dict[str, tuple[str, Any]]
"""Lower-case member names of a struct -> declared name, and the shape of the member's value."""

_OTHER_CASE = re.compile(rb'[{,]\s*"[^"]*[A-Z\x80-\xff]')  # start of a name, or of text in a list
_shapes: dict[Any, _Shape | None] = {}
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def with_declared_names(kind: type, data: bytes) -> bytes:
    """`data` with member names in the case that `kind` declares.

    Go's decoder ignores the case of names at any depth. Bodies without a capital letter at the start of a
    name cost one search only. Above REPAIR_MAX bytes names must match exactly.
    """
    if data.islower() or len(data) > REPAIR_MAX or _OTHER_CASE.search(data) is None:
        return data
    if kind not in _shapes:
        from msgspec import inspect  # here and below: CONNECT is read before most modules are loaded

        _shapes[kind] = _shape_of(inspect.type_info(kind))
    try:
        return bytes(_renamed(msgspec.Raw(data), _shapes[kind]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data  # decode() reports the error


def _shape_of(info: Any) -> _Shape | None:
    from msgspec import inspect

    if isinstance(info, inspect.StructType):
        return {one.encode_name.lower(): (one.encode_name, _shape_of(one.type)) for one in info.fields}
    if isinstance(info, inspect.ListType):
        return _shape_of(info.item_type)
    if isinstance(info, inspect.UnionType):
        return next((shape for shape in map(_shape_of, info.types) if shape is not None), None)
    return None


def _renamed(raw: msgspec.Raw, shape: _Shape | None) -> msgspec.Raw:
    begin = bytes(raw).lstrip()[:1]
    if shape is None or begin not in (b"{", b"["):
        return raw
    if begin == b"[":
        return msgspec.Raw(msgspec.json.encode([_renamed(item, shape) for item in _items.decode(raw)]))
    members = {}
    for name, item in _members.decode(raw).items():
        declared, inner = shape.get(folded(name), (name, None))
        members[declared] = _renamed(item, inner)
    return msgspec.Raw(msgspec.json.encode(members))


def folded(name: str) -> str:
    """`name` in the case in which Go's decoder compares names of JSON members."""
    return name.lower().replace("\N{LATIN SMALL LETTER LONG S}", "s")  # has no capital


def decode_body(payload: bytes, kind: type[Any]) -> Any:
    """Decodes a body; an empty body gives the defaults.

    Names of members match in any case, as in the official server. Raises msgspec.DecodeError (or
    ValidationError).
    """
    if not payload.strip():
        return kind()
    try:
        return msgspec.json.decode(with_declared_names(kind, payload), type=kind)
    except RecursionError:
        raise msgspec.DecodeError("exceeded max depth") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"invalid UTF-8: {error.reason}") from None
