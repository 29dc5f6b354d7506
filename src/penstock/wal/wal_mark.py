"""The mark: which disk this is, and what its log contains at least. A small file beside the log, in two
copies.

The log proves by itself what was synced, except for its last write, and except when its end is lost. The mark
says it for these: it is written when a segment begins and while the log is idle. It has the identity of the
disk, which the owner interprets (cluster, server, disk, number of starts), and a limit for terms: no record
has a higher term than the mark that was on disk before it. A group that may have lost a vote thereby knows a
term that is high enough.

Invariant: the two copies differ only while one is being written, so that one flipped bit costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.errors import StoreCorruptError
from penstock.kernels.log.records import xxh64_digest
from penstock.store.disk import Disk
from penstock.store.files import sync_directory, write_atomically
from penstock.wal.wal_recovery import WalPosition

MARK_NAMES = ("mark.0", "mark.1")
_MAGIC = b"PENMARK1"
_HASH_BYTES = 8


class WalMark(msgspec.Struct, array_like=True, frozen=True):
    """version: counts the marks. The log was synced up to (segment, offset). identity: the owner's."""

    version: int
    identity: bytes
    segment: int
    offset: int
    term_limit: int

    @property
    def position(self) -> WalPosition:
        return WalPosition(self.segment, self.offset)


_MARKS = msgspec.msgpack.Decoder(WalMark)


def encode_mark(mark: WalMark) -> bytes:
    """The bytes of a copy."""
    body = msgspec.msgpack.encode(mark)
    return _MAGIC + xxh64_digest(body).to_bytes(_HASH_BYTES, "little") + body


def decode_mark(data: bytes) -> WalMark | None:
    """The inverse; None for a damaged copy."""
    digest, body = data[len(_MAGIC) : len(_MAGIC) + _HASH_BYTES], data[len(_MAGIC) + _HASH_BYTES :]
    if data[: len(_MAGIC)] != _MAGIC or digest != xxh64_digest(body).to_bytes(_HASH_BYTES, "little"):
        return None
    try:
        return _MARKS.decode(body)
    except msgspec.DecodeError:
        return None


def read_mark(disk: Disk, directory: Path) -> WalMark | None:
    """The newest intact copy; None when there is no file. Raises StoreCorruptError when all are damaged:
    it is then unknown what the log contained, and which disk it is. Raises OSError."""
    present = [directory / name for name in MARK_NAMES if disk.exists(directory / name)]
    marks = [mark for path in present if (mark := decode_mark(disk.read(path))) is not None]
    if present and not marks:
        raise StoreCorruptError(
            "hash mismatch in both copies of the log's mark, so that it is unknown what the log contained; "
            "move the directory away: the server then joins its groups as a new member",
            path=str(directory),
        )
    return max(marks, key=lambda mark: mark.version, default=None)


def write_mark(disk: Disk, directory: Path, mark: WalMark) -> None:
    """Replaces both copies, durably. Raises StoreWriteError."""
    for name in MARK_NAMES:
        write_atomically(disk, directory / name, encode_mark(mark), sync_name=False)
        sync_directory(disk, directory)
