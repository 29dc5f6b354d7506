"""The records of the write-ahead log.

A record is a head, a payload and a tail; head and tail have the same fields and a checksum each. One of the
two survives a flipped bit, names the record, and verifies the payload: a damaged record is known by group,
index and term, and a record with one damaged end is intact.

The checksum depends on the segment and the offset. Bytes of another place, such as a part of a log that is
the payload of a message, therefore never read as a record.

Rejected: one head per record (a flipped bit in it hides which entry is lost, and where the next record
begins); a table of contents per segment (it cannot be written before the segment is closed).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.errors import MisuseError, StoreFormatError
from penstock.kernels.log.records import xxh64_digest

WAL_FORMAT = 1
"""Version of the format, in `detail` of the first record of each segment."""
HEAD_MAGIC = b"\xf5WAL"
TAIL_MAGIC = b"\xf5END"
_FIELDS = struct.Struct("<4sIIQQQQBBBx")
_CHECKSUM = struct.Struct("<Q")
WAL_FRAME_BYTES = _FIELDS.size + _CHECKSUM.size
"""Size of a head and of a tail."""
PAYLOAD_BYTES_MAX = 1 << 30
_SEED_MASK = (1 << 64) - 1


class WalKind(IntEnum):
    """What a record says. The fields that a kind does not name are 0.

    - SEGMENT: the first of a segment; previous = the number of the segment before it, index = where that one
      ends, detail = the format, term = 1 if groups may be missing.
    - GROUP: a group's whole state; term, index and previous = index and term of its last entry, detail = 1 if
      it is damaged, payload = a GroupImage.
    - ENTRY: term, index, previous = the term of the entry before it, detail = the owner's kind of entry. Its
      term's HARD_STATE was written before it.
    - HARD_STATE: term, payload = the vote.
    - CHECKPOINT: the owner's state up to (index, term) is durable, entries before `previous` are not needed;
      payload = the owner's.
    - INSTALLED: the same, and the group has no entries.
    - REMOVED: the group is gone; its number is not used again.
    - RECOVERED: the group is no longer damaged.
    - GROUPS_KNOWN: no group is missing any more.
    - COPIED: the fields of an ENTRY that is written once more. It replaces nothing. When all entries behind
      the checkpoint are copied, older segments need not keep them.
    """

    SEGMENT = 1
    GROUP = 2
    ENTRY = 3
    HARD_STATE = 4
    CHECKPOINT = 5
    INSTALLED = 6
    REMOVED = 7
    RECOVERED = 8
    GROUPS_KNOWN = 9
    COPIED = 10


_KINDS = frozenset(WalKind)


class WalRecord(msgspec.Struct, frozen=True):
    """A record. group: its number, 0 for none. follows_sync: all bytes of the segment before this record
    were synced before it was written, so a fault in them is damage and not a torn write."""

    kind: WalKind
    group: int = 0
    term: int = 0
    index: int = 0
    previous: int = 0
    detail: int = 0
    payload: bytes = b""
    follows_sync: bool = False


class WalFrame(NamedTuple):
    """A decoded head or tail. record: without its payload, whose length and hash are known."""

    record: WalRecord
    length: int
    payload_hash: int


class GroupImage(msgspec.Struct, array_like=True, frozen=True):
    """The payload of GROUP. vote: None = unknown. The checkpoint: see WalKind.CHECKPOINT."""

    name: str
    vote: str | None
    checkpoint_index: int
    checkpoint_term: int
    keep_from: int
    checkpoint_data: bytes

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_IMAGES = msgspec.msgpack.Decoder(GroupImage)


def decode_image(payload: bytes) -> GroupImage | None:
    """The inverse of GroupImage.encode(); None when it is not one."""
    try:
        return _IMAGES.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def record_bytes(payload_length: int) -> int:
    """Size of a record with such a payload."""
    return payload_length + 2 * WAL_FRAME_BYTES


def encode_record(record: WalRecord, segment: int, offset: int) -> bytes:
    """The bytes of a record at an offset of a segment. Raises MisuseError for a payload above 1 GiB."""
    return b"".join(record_parts(record, segment, offset))


def record_parts(record: WalRecord, segment: int, offset: int) -> tuple[bytes, bytes, bytes]:
    """The same as head, payload and tail: a payload can have megabytes, and is not copied. Raises
    MisuseError."""
    payload = record.payload
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise MisuseError(f"a log record holds up to {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}; split it")
    fields = (
        len(payload), record.group, record.term, record.index, record.previous, xxh64_digest(payload),
        record.kind, record.detail, record.follows_sync,
    )  # fmt: skip
    seed = _seed(segment, offset)
    head = _FIELDS.pack(HEAD_MAGIC, *fields)
    tail = _FIELDS.pack(TAIL_MAGIC, *fields)
    return head + _checksum(head, seed), payload, tail + _checksum(tail, seed)


def read_head(data: bytes, at: int, segment: int) -> WalFrame | None:
    """The head of a record at an offset; None when there is no intact one. Raises StoreFormatError."""
    return _read_frame(data, at, HEAD_MAGIC, segment)


def read_tail(data: bytes, at: int, segment: int) -> WalFrame | None:
    """The tail at an offset, of a record that began `length` bytes and a head before it."""
    return _read_frame(data, at, TAIL_MAGIC, segment)


def _read_frame(data: bytes, at: int, magic: bytes, segment: int) -> WalFrame | None:
    end = at + _FIELDS.size
    if end + _CHECKSUM.size > len(data) or data[at : at + len(magic)] != magic:
        return None
    (
        _, length, group, term, index, previous, payload_hash, kind, detail, follows_sync,
    ) = _FIELDS.unpack_from(data, at)  # fmt: skip
    start = at if magic is HEAD_MAGIC else at - length - WAL_FRAME_BYTES
    if start < 0 or data[end : end + _CHECKSUM.size] != _checksum(data[at:end], _seed(segment, start)):
        return None
    if kind not in _KINDS or (kind == WalKind.SEGMENT and detail > WAL_FORMAT):
        raise StoreFormatError(
            f"segment {segment} of the log has a record of kind {kind}, format {detail}, at byte {start}; "
            f"this penstock reads format {WAL_FORMAT}: start the version that wrote it"
        )
    record = WalRecord(WalKind(kind), group, term, index, previous, detail, b"", bool(follows_sync))
    return WalFrame(record, length, payload_hash)


def _seed(segment: int, offset: int) -> int:
    return ((segment << 32) + offset) & _SEED_MASK


def _checksum(fields: bytes, seed: int) -> bytes:
    return _CHECKSUM.pack(xxh64_digest(fields, seed))
