"""The archive a stream is backed up as: entries one after the other, all of it in an S2 stream.

The official server's format since 2.15: a mark, `state.json`, an entry for each consumer
(`consumers/NAME`), the messages in order of sequence, and an empty entry that says the archive is whole.

    entry = name length | time (zigzag) | sequence | header length | payload length | name | header | payload
    (numbers are LEB128)

Entries of messages are the kernel's (kernels/log/archive_entries.pyx), which takes thousands in one call.

A consumer may have a hundred thousand pending messages, which take a tenth of a second to read or to write as
one JSON object. So that part of its state is read and written piece by piece (`pieces`, `joined`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.api import ConsumerConfig, decode

MARK = b"NATSARC1"
STATE_NAME = "state.json"
CONSUMER_PREFIX = "consumers/"
END = bytes(5)  # an entry whose five numbers are 0
STATE_MAX = 1024 * 1024  # bytes of the stream's state: some hundred, unless messages were lost
CONSUMER_MAX = 8 * 1024 * 1024  # bytes of a consumer: 60 for each message that is pending
NAME_MAX = 1024

PIECE = 16 * 1024  # bytes of a consumer's messages that are read at once
_FIELDS = 5
_VARINT_MAX = 10


class SequencePair(msgspec.Struct, frozen=True):
    """How far a consumer is, by its own count and by the stream's."""

    consumer_seq: int = 0
    stream_seq: int = 0


class PendingMessage(msgspec.Struct, frozen=True, rename="pascal"):
    """sequence: the consumer's, of the first delivery. timestamp: ns of the last one."""

    sequence: int = 0
    timestamp: int = 0


Text = msgspec.Raw | msgspec.UnsetType
Value = TypeVar("Value", PendingMessage, int)
_ENDS: dict[type, re.Pattern[bytes]] = {PendingMessage: re.compile(rb"\}\s*,"), int: re.compile(rb",")}


class ArchivedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer's state. pending (PendingMessage) and redelivered (int) are JSON objects by stream sequence,
    see `pieces`; redelivered counts the deliveries after the first."""

    delivered: SequencePair = msgspec.field(default_factory=SequencePair)
    ack_floor: SequencePair = msgspec.field(default_factory=SequencePair)
    pending: Text = msgspec.UNSET
    redelivered: Text = msgspec.UNSET


class ArchivedConsumer(msgspec.Struct, frozen=True):
    """What the entry of a consumer holds."""

    config: ConsumerConfig
    state: ArchivedState


class ArchiveEntry(NamedTuple):
    """An entry that is no message: time is ns, sequence 0."""

    name: str
    time: int
    payload: bytes


def pieces(text: Text, kind: type[Value]) -> Iterator[dict[int, Value]]:
    """What a JSON object by sequence holds, about PIECE bytes at a time.

    Raises ProtocolError or DecodeError for what is none. Cuts where a value of this kind ends: in text that
    this cuts elsewhere, there is something else than such values.
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
    """JSON objects as one; unset when there is nothing in them."""
    inside = [part[1:-1] for part in parts if part != b"{}"]
    return msgspec.Raw(b"{%s}" % b",".join(inside)) if inside else msgspec.UNSET


def pack_entry(entry: ArchiveEntry) -> bytes:
    """The entry's bytes."""
    name = entry.name.encode()
    zigzag = (entry.time << 1) ^ (entry.time >> 63)
    fields = (len(name), zigzag, 0, 0, len(entry.payload))
    return b"".join(map(_varint, fields)) + name + entry.payload


def take_entry(data: bytes | bytearray, at: int, size_max: int) -> tuple[ArchiveEntry, int] | None:
    """The entry at data[at:] and where the next one begins; None while it isn't there as a whole. It looks at
    the numbers of one that isn't, and at none of its bytes.

    Raises ProtocolError for what is no entry, one of a message, or one of more than size_max bytes.
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
