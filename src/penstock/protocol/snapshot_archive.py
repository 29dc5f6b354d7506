"""The archive format of stream backups: consecutive entries in an S2 stream.

The official server's format since 2.15: a magic mark, `state.json`, one entry per consumer
(`consumers/NAME`), the messages by sequence, and an empty entry that marks the archive as complete.

    entry = name length | time (zigzag) | sequence | header length | payload length | name | header | payload
    (numbers are LEB128)

The kernel reads and writes message entries, thousands per call (kernels/log/archive.pyx).

A consumer may have a hundred thousand pending messages, whose JSON object takes a tenth of a second to read
or write. That part of its state is processed in pieces (`pieces`, `joined`), so that the event loop is not
blocked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.api import ApiConsumerConfig, decode

MARK = b"NATSARC1"
STATE_NAME = "state.json"
CONSUMER_PREFIX = "consumers/"
END = bytes(5)  # an entry whose five numbers are 0
STATE_MAX = 1024 * 1024  # bytes of the stream's state; some hundred unless messages were lost
CONSUMER_MAX = 8 * 1024 * 1024  # bytes of a consumer; about 60 per pending message
NAME_MAX = 1024

PIECE = 16 * 1024  # bytes of a consumer's pending messages read at once
_FIELDS = 5
_VARINT_MAX = 10


class SequencePair(msgspec.Struct, frozen=True):
    """A position of a consumer: consumer sequence and stream sequence."""

    consumer_seq: int = 0
    stream_seq: int = 0


class PendingMessage(msgspec.Struct, frozen=True, rename="pascal"):
    """sequence: consumer sequence of the first delivery. timestamp: time of the last delivery, ns."""

    sequence: int = 0
    timestamp: int = 0


Text = msgspec.Raw | msgspec.UnsetType
Value = TypeVar("Value", PendingMessage, int)
_ENDS: dict[type, re.Pattern[bytes]] = {PendingMessage: re.compile(rb"\}\s*,"), int: re.compile(rb",")}


class ArchivedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer's state. `pending` (PendingMessage) and `redelivered` (int) are JSON objects by stream
    sequence, see `pieces`; `redelivered` counts deliveries after the first."""

    delivered: SequencePair = msgspec.field(default_factory=SequencePair)
    ack_floor: SequencePair = msgspec.field(default_factory=SequencePair)
    pending: Text = msgspec.UNSET
    redelivered: Text = msgspec.UNSET


class ArchivedConsumer(msgspec.Struct, frozen=True):
    """The content of a consumer's entry."""

    config: ApiConsumerConfig
    state: ArchivedState


class ArchiveEntry(NamedTuple):
    """An entry other than a message: `time` is ns since 1970; its sequence is 0."""

    name: str
    time: int
    payload: bytes


def pieces(text: Text, kind: type[Value]) -> Iterator[dict[int, Value]]:
    """Yields the entries of a JSON object by sequence, about PIECE bytes at a time.

    Raises ProtocolError or DecodeError for malformed input. Splits after the end of a value of this kind;
    text where that is ambiguous does not consist of such values and raises.
    """
    data = bytes(text).strip() if isinstance(text, msgspec.Raw) else b"null"
    if data == b"null":
        return
    if data[:1] != b"{" or data[-1:] != b"}":
        raise ProtocolError("archive: messages of a consumer that are no object by sequence")
    at, end = 1, len(data) - 1
    while at < end:
        found = _ENDS[kind].search(data, min(at + PIECE, end), end)
        cut = end if found is None else found.end() - 1
        yield decode(dict[int, kind], b"{%s}" % data[at:cut])  # type: ignore[valid-type]
        at = cut + 1


def joined(parts: Iterable[bytes]) -> Text:
    """Merges JSON objects into one; unset when all are empty."""
    inside = [part[1:-1] for part in parts if part != b"{}"]
    return msgspec.Raw(b"{%s}" % b",".join(inside)) if inside else msgspec.UNSET


def pack_entry(entry: ArchiveEntry) -> bytes:
    """Encodes an entry."""
    name = entry.name.encode()
    zigzag = (entry.time << 1) ^ (entry.time >> 63)
    fields = (len(name), zigzag, 0, 0, len(entry.payload))
    return b"".join(map(_varint, fields)) + name + entry.payload


def take_entry(data: bytes | bytearray, at: int, size_max: int) -> tuple[ArchiveEntry, int] | None:
    """Decodes the entry at data[at:]; returns it and the offset of the next one. None = incomplete, decided
    from the header alone.

    Raises ProtocolError for a malformed entry, a message entry, or one of more than size_max bytes.
    """
    fields: list[int] = []
    for _ in range(_FIELDS):
        taken = _take_varint(data, at)
        if taken is None:
            return None
        fields.append(taken[0])
        at = taken[1]
    name_len, zigzag, seq, header_len, payload_len = fields
    if seq or header_len or not name_len:
        raise ProtocolError("archive: no entry of the stream's state or of a consumer where one should be")
    if name_len > NAME_MAX or payload_len > size_max:
        raise ProtocolError(
            f"archive: an entry of {name_len} + {payload_len} bytes,"
            f" at most {NAME_MAX} + {size_max} are allowed"
        )
    end = at + name_len + payload_len
    if len(data) < end:
        return None
    name = data[at : at + name_len].decode("utf-8", "replace")
    return ArchiveEntry(name, (zigzag >> 1) ^ -(zigzag & 1), bytes(data[at + name_len : end])), end


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _take_varint(data: bytes | bytearray, at: int) -> tuple[int, int] | None:
    value = 0
    for i in range(_VARINT_MAX):
        if at + i >= len(data):
            return None
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + i + 1
    raise ProtocolError("archive: a number of an entry is over 64 bits")
