"""Common parts of the JetStream API structs: error body, response head, encoding and decoding.

Invariants:
- The JSON omits a field that has its default, except fields declared with `always`, which the official server
  always writes.
- Decoding ignores unknown fields and treats `null` as absent; a wrong type or value raises a DecodeError that
  names the field.
- Times are RFC3339Nano text in UTC, as on the wire (`protocol.durations` converts them without losing
  nanoseconds); durations are integer nanoseconds.

Rejected: pydantic (ten times slower to decode, seconds of import time), datetime (microseconds only).
"""

from __future__ import annotations

import re
import sys
from typing import Any, TypeVar

import msgspec

from penstock.errors import JetStreamApiError, ProtocolError
from penstock.protocol.json_names import REPAIR_MAX

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum  # noqa: PLC0414  # novermin
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """`enum.StrEnum`, for Spark on Python 3.10."""

        __str__ = str.__str__


TYPE_PREFIX = "io.nats.jetstream.api.v1."
ZERO_TIME = "0001-01-01T00:00:00Z"  # how the official server writes "no time"

# Plain str and int; the aliases are documentation.
Rfc3339 = str
DurationNs = int

T = TypeVar("T")

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
_LONG_NUMBER = b"0" * 19  # the digits of a number that may have more than 64 bits
_AS_ZEROS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class DecodeError(ProtocolError):
    """JSON that does not decode to the expected type. The text is suitable as `{err}` of error 10025."""


def always(value: Any) -> Any:
    """A default that is encoded even when the field has it."""
    return msgspec.field(default_factory=lambda: value)


def always_list() -> Any:
    """A new empty list that is encoded even when empty."""
    return msgspec.field(default_factory=_new_list)  # with `list` msgspec would omit it as a default


def _new_list() -> list[Any]:
    return []


class ApiError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `error` object of a response; also the templates in `protocol.error_codes`."""

    code: int = always(0)  # HTTP-like: 400, 404, 503
    err_code: int = 0
    description: str = ""

    def format(self, **values: object) -> ApiError:
        """This template with its `{placeholders}` filled in."""
        text = _PLACEHOLDER.sub(lambda found: str(values[found[1]]), self.description)
        return ApiError(self.code, self.err_code, text)

    def exception(
        self, *, stream: str | None = None, request: str | None = None, **values: object
    ) -> JetStreamApiError:
        """The exception with placeholders filled in: `raise codes.STREAM_NOT_FOUND.exception()`."""
        body = self.format(**values) if values else self
        return JetStreamApiError.of(
            body.code, body.err_code, body.description, stream=stream, request=request
        )

    @staticmethod
    def from_exception(error: JetStreamApiError) -> ApiError:
        """The error object for `error`."""
        return ApiError(error.code, error.err_code, error.description)


class ErrorResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    """`{"type": ..., "error": {...}}`."""

    type: str = ""
    error: ApiError | None = None


class SuccessResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Response of delete, message delete and step-down requests."""

    type: str = ""
    success: bool = always(False)


class PagedRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of list requests without filters."""

    offset: int = 0


_json_encoder = msgspec.json.Encoder()
_json_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_head_decoder = msgspec.json.Decoder(ErrorResponse)


def encode(value: Any) -> bytes:
    """Encodes `value` as JSON."""
    return _json_encoder.encode(value)


def decode(kind: type[T], data: bytes) -> T:
    """Decodes `data` as a `kind`. Empty data and `null` give `kind()`; invalid UTF-8 becomes U+FFFD.

    Go's decoder does the same, and Rust's clients send `null` for an empty body.

    Raises DecodeError: "can not read `max_msgs`: expected int, got str", or for numbers of more than 64 bits.
    Above REPAIR_MAX bytes, nulls and invalid UTF-8 are errors.
    """
    if not data or data.strip() == b"null":
        data = b"{}"
    try:
        value = _decode(kind, data)
        # A pattern would start again at each digit: 30 ms for 1 MB of digits, where this takes 3 ms.
        if _LONG_NUMBER in data.translate(_AS_ZEROS):
            _check_numbers(value)
        return value
    except UnicodeDecodeError as error:
        if len(data) > REPAIR_MAX:
            raise DecodeError(f"invalid UTF-8 in {len(data)} bytes: {error.reason}") from None
        return decode(kind, data.decode("utf-8", "replace").encode())
    except RecursionError:
        raise DecodeError("exceeded max depth") from None


def _decode(kind: type[T], data: bytes) -> T:
    decoder = _json_decoders.get(kind)
    if decoder is None:
        decoder = _json_decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value: T = decoder.decode(data)
        return value
    except msgspec.ValidationError as error:
        if b"null" not in data or len(data) > REPAIR_MAX:
            raise DecodeError(_explain(error)) from None
    except msgspec.DecodeError as error:
        raise DecodeError(_explain(error)) from None
    try:  # some clients send null for unset fields
        return msgspec.convert(_without_nulls(msgspec.json.decode(data)), kind)
    except msgspec.DecodeError as error:
        raise DecodeError(_explain(error)) from None


def unknown_field(value: Any, data: bytes) -> str | None:
    """The first field of the JSON object `data`, at any depth, that the decoded struct does not have; None
    when there is none. Used where a misspelt limit or filter must not be ignored.

    Reads only names and skips the values of unknown fields, as decode() does: a number that no type can hold
    must not become an error here.
    """
    if not data.strip():
        return None
    try:
        return _unknown(value, msgspec.Raw(data))
    except UnicodeDecodeError:
        return _unknown(value, msgspec.Raw(data.decode("utf-8", "replace").encode()))


def _unknown(value: Any, raw: msgspec.Raw) -> str | None:
    kind = bytes(raw).lstrip()[:1]
    if isinstance(value, msgspec.Struct) and kind == b"{":
        for name, item in _members.decode(raw).items():
            if name not in value.__struct_encode_fields__:
                return name
            found = _unknown(getattr(value, name, None), item)
            if found is not None:
                return found
    elif isinstance(value, list) and kind == b"[" and value and isinstance(value[0], msgspec.Struct):
        for one, item in zip(value, _items.decode(raw), strict=False):
            found = _unknown(one, item)
            if found is not None:
                return found
    return None


def _check_numbers(value: Any) -> None:
    """Raises for numbers out of range: sequences have 64 bits, all others are signed 64-bit."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            item = getattr(value, name)
            if isinstance(item, int):
                if not -(2**63) <= item < (2**64 if name.endswith(("seq", "keep")) else 2**63):
                    raise DecodeError(f"can not read `{name}`: {item} is out of range")
            else:
                _check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise DecodeError(f"{item} is out of range")
            _check_numbers(item)


def decode_response(kind: type[T], data: bytes, *, request: str | None = None) -> T:
    """Decodes a server's response as a `kind`.

    Raises JetStreamApiError (or a subclass) when the response carries an error; `request` is the subject
    named in it. Raises DecodeError when it is neither.
    """
    if b'"error"' in data:
        try:
            refused = _head_decoder.decode(data).error
        except msgspec.DecodeError as error:
            raise DecodeError(_explain(error)) from None
        if refused is not None:
            raise refused.exception(request=request)
    return decode(kind, data)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _explain(error: msgspec.DecodeError) -> str:
    """Text of a decoding error; the official server's text where it has one (error 10025 carries it)."""
    text = str(error)
    if text == "Input data was truncated":
        return "unexpected EOF"
    message, found, path = text.rpartition(" - at `$")
    unknown = _UNKNOWN_FIELD.match(message or text)
    if unknown:
        return f'json: unknown field "{unknown[1]}"'
    if not found:
        return text[:1].lower() + text[1:]
    return f"can not read `{path.rstrip('`').lstrip('.')}`: {message[:1].lower()}{message[1:]}"
