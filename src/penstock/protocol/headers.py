"""Header blocks: `NATS/1.0[ code[ text]]` CRLF, `Name: value` CRLF ..., CRLF.

Names are case-sensitive and may repeat. The functions on raw blocks (`value_of`, `without`, `with_value`)
serve the server, which rarely needs a whole block parsed; `Headers` serves the client. Text is UTF-8; invalid
bytes survive a round trip.
Rejected: `email.parser` and HTTP header classes, which fold case, normalise names and are slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import NamedTuple

from penstock.errors import MisuseError, ProtocolError
from penstock.protocol.numbers import natural

VERSION_LINE = b"NATS/1.0\r\n"
_VERSION = b"NATS/1.0"
_END = b"\r\n\r\n"

MSG_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID = "Nats-Expected-Last-Msg-Id"
STREAM_SOURCE = "Nats-Stream-Source"
LAST_CONSUMER = "Nats-Last-Consumer"
LAST_STREAM = "Nats-Last-Stream"
CONSUMER_STALLED = "Nats-Consumer-Stalled"
ROLLUP = "Nats-Rollup"
MSG_SIZE = "Nats-Msg-Size"
RESPONSE_TYPE = "Nats-Response-Type"
TTL = "Nats-TTL"
MARKER_REASON = "Nats-Marker-Reason"
INCR = "Nats-Incr"
COUNTER_SOURCES = "Nats-Counter-Sources"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TIME_ZONE = "Nats-Schedule-Time-Zone"
SCHEDULE_TTL = "Nats-Schedule-TTL"
SCHEDULE_ROLLUP = "Nats-Schedule-Rollup"
SCHEDULE_TARGET = "Nats-Schedule-Target"
SCHEDULE_SOURCE = "Nats-Schedule-Source"
SCHEDULER = "Nats-Scheduler"
SCHEDULE_NEXT = "Nats-Schedule-Next"
STREAM = "Nats-Stream"
SEQUENCE = "Nats-Sequence"
TIME_STAMP = "Nats-Time-Stamp"
SUBJECT = "Nats-Subject"
LAST_SEQUENCE = "Nats-Last-Sequence"
NUM_PENDING = "Nats-Num-Pending"
UP_TO_SEQUENCE = "Nats-UpTo-Sequence"
PENDING_MESSAGES = "Nats-Pending-Messages"
PENDING_BYTES = "Nats-Pending-Bytes"
PIN_ID = "Nats-Pin-Id"
REQUIRED_API_LEVEL = "Nats-Required-Api-Level"
STREAM_IDENTITY = "Nats-Stream-Identity"
REQUEST_INFO = "Nats-Request-Info"
TRACE_DEST = "Nats-Trace-Dest"
TRACE_DISABLED = "trace disabled"  # as a destination; no subject
TRACE_HOP = "Nats-Trace-Hop"
TRACE_ORIGIN_ACCOUNT = "Nats-Trace-Origin-Account"
TRACE_ONLY = "Nats-Trace-Only"
SERVER_XKEY = "Nats-Server-Xkey"
NO_MASKING = "Nats-No-Masking"
SERVICE_ERROR = "Nats-Service-Error"
SERVICE_ERROR_CODE = "Nats-Service-Error-Code"
KV_OPERATION = "KV-Operation"


class Headers(MutableMapping[str, str]):
    """Headers of a message: an ordered mapping from name to first value, with repeated names.

    Setting a name replaces all its values, `add` appends one; `get_all` and `pairs` return every value.
    Raises MisuseError for a name or value that would corrupt the block, TypeError for a non-text value.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str | list[str]] | Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, list[str]] = {}
        items = values.items() if isinstance(values, Mapping) else values
        for name, value in items:
            for one in value if isinstance(value, list | tuple) else [value]:
                self.add(name, one)

    def __getitem__(self, name: str) -> str:
        return self._values[name][0]

    def __setitem__(self, name: str, value: str) -> None:
        _check(name, value)
        self._values[name] = [value]

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return self._values == other._values
        return isinstance(other, Mapping) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs())!r})"

    @classmethod
    def unchecked(cls, values: dict[str, list[str]]) -> Headers:
        """Wraps values parsed from the wire. Keeps a reference to the dict."""
        made = cls()
        made._values = values
        return made

    def add(self, name: str, value: str) -> None:
        """Appends a value; existing values of the name remain."""
        _check(name, value)
        self._values.setdefault(name, []).append(value)

    def get_all(self, name: str) -> list[str]:
        """Every value of a name, in order; [] when there is none."""
        return list(self._values.get(name, ()))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields (name, value) for every value."""
        for name, values in self._values.items():
            for value in values:
                yield name, value

    def encode(self) -> bytes:
        """The header block."""
        return build(self.pairs())


class Block(NamedTuple):
    """A parsed header block. `status` is None when the first line has no code."""

    status: int | None
    description: str
    headers: Headers


def build(
    pairs: Iterable[tuple[str, str]] = (), *, status: int | None = None, description: str = ""
) -> bytes:
    """Builds a header block. Does not validate names and values; `Headers` does."""
    first = "NATS/1.0"
    if status is not None:
        first += f" {status:03d}"
        if description:
            first += f" {description}"
    lines = [first, *(f"{name}: {value}" for name, value in pairs), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def parse(block: bytes) -> Block:
    """Parses a header block.

    Raises ProtocolError when it is malformed.
    """
    if not block.startswith(_VERSION) or not block.endswith(b"\r\n"):
        raise ProtocolError(f"a header block starts with NATS/1.0 and ends with CRLF; got {block[:40]!r}")
    first, *lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    status, description = _status_of(first[len(_VERSION) :])
    values: dict[str, list[str]] = {}
    for line in lines:
        if not line:
            continue
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise ProtocolError(f"a header line is `Name: value`; got {line[:80]!r}")
        values.setdefault(name, []).append(value.strip(" \t"))
    return Block(status, description, Headers.unchecked(values))


def status_of(block: bytes) -> tuple[int | None, str]:
    """Code and text of the first line; (None, "") for an ordinary block."""
    if len(block) < 12 or block[8] != 0x20:
        return None, ""
    end = block.find(b"\r\n")
    return _status_of(block[len(_VERSION) : end if end >= 0 else len(block)].decode("utf-8", "replace"))


def value_of(block: bytes, name: str) -> bytes | None:
    """The first value of a name, or None. Searches without parsing the block."""
    needle = _needle(name)
    at = block.find(needle)
    if at < 0:
        return None
    start = at + len(needle)
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].strip(b" \t")


def exact_value_of(block: bytes, name: str) -> bytes | None:
    """The same, but keeps whitespace after the value, and tabs, for values in which every byte counts. Spaces
    before the value belong to the separator."""
    at = block.find(needle := _needle(name))
    if at < 0:
        return None
    start = at + len(needle)
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].lstrip(b" ")


def api_level_suffices(block: bytes, level: int) -> bool:
    """Whether the API level required by the block, if any, is at most `level`. Absent and negative numbers
    require none; text that is no number never suffices."""
    required = value_of(block, REQUIRED_API_LEVEL) if block else None
    if not required:
        return True
    number = natural(required[1:] if required[:1] in b"+-" else required)
    return number is not None and (number <= level or required[:1] == b"-")


def without(block: bytes, *names: str) -> bytes:
    """The block without these headers; b"" when neither a header nor a status is left."""
    for name in names:
        needle = _needle(name)
        while (at := block.find(needle)) >= 0:
            end = block.find(b"\r\n", at + len(needle))
            block = block[:at] + block[end if end >= 0 else len(block) :]
    return b"" if block in (b"", VERSION_LINE + b"\r\n") else block


def with_value(block: bytes, name: str, value: str | bytes) -> bytes:
    """The block with one header set: replaced in place, else appended. Starts an empty block, and completes a
    block without its final empty line."""
    text = value.encode() if isinstance(value, str) else value
    rest = without(block, name) or VERSION_LINE + b"\r\n"
    if not rest.endswith(_END):
        rest = rest.rstrip(b"\r\n") + _END
    return rest[:-2] + name.encode() + b": " + text + _END


def trace_disabled(block: bytes) -> bytes:
    """The block with its trace header disabled, where a message's trace ends."""
    return with_value(block, TRACE_DEST, TRACE_DISABLED)


_needles: dict[str, bytes] = {}


def _needle(name: str) -> bytes:
    needle = _needles.get(name)
    if needle is None:
        if len(_needles) >= 1024:  # a bound, although names come from code
            _needles.clear()
        needle = _needles[name] = b"\r\n" + name.encode() + b":"
    return needle


def _status_of(rest: str) -> tuple[int | None, str]:
    code, _, description = rest.strip(" ").partition(" ")
    number = natural(code)
    if number is None:
        return None, rest.strip(" ") if code else ""
    return number, description.strip(" ")


def _check(name: str, value: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a header name is str, not {type(name).__name__}")
    if not name or any(not "!" <= char <= "~" or char == ":" for char in name):
        raise MisuseError(f"{name!r} can not be a header name: printable ASCII without spaces and colons")
    if not isinstance(value, str):
        raise TypeError(f"header {name}: a value is str or a list of str, not {type(value).__name__}")
    if "\r" in value or "\n" in value:
        raise MisuseError(f"header {name}: a value can not hold line breaks, got {value!r}")
