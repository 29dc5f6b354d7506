"""Records that are to be overwritten, from the removal of their message until the overwriting is on disk.

A record may be overwritten only when the tombstone of its removal is on disk: a record half overwritten at a
power loss is unreadable, and only the tombstone tells that its message was removed rather than lost. Clients
do not wait for that sync. A process may end in between, so the file `erasing` beside the blocks lists what is
to be overwritten, and recovery continues.

Ordering:
- An entry is written before the tombstone, and synced by the same sync at the latest.
- The list is removed after a sync that began when every record of it was overwritten.

An entry names a record by block and offset, but blocks are rewritten: recovery overwrites only a record that
begins at that offset, has the sequence and the lengths of the entry, and whose message is removed. A power
loss may tear the overwriting. Length and sequence of the torn record are then those of the entry, since the
tombstone has the same, and recovery overwrites it again: half of the message may still be in it.

Rejected: overwriting at recovery whatever a tombstone covers (messages removed without erasing, for which
nothing was promised, would cost each restart a write).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import StoreError
from penstock.kernels.log.records import Corrupt, RecordReader, encode, xxh64_digest
from penstock.store.files import OpenFiles

if TYPE_CHECKING:
    from penstock.kernels.log.records import RecordTuple

ERASING = "erasing"

# Hash of what follows; block, offset, sequence; bytes of subject, header, payload.
_ENTRY = struct.Struct("<4Q3I")
_HASH = struct.Struct("<Q")
LIST_BYTES = 1 << 20
"""A list of this size of which less than half is needed is written again: without its other entries, front to
back, so that no entry is overwritten before it was written in its new place."""

# The layout of records; see kernels/log/records.pxd. _START: length and flag; sequence and kind.
_MESSAGE, _REMOVED, _FLOOR = 0, 1, 2  # kinds
_START = struct.Struct("<IQ")
_LENGTH_BITS, _SEQ_BITS = (1 << 31) - 1, (1 << 48) - 1
RECORD_BYTES_MIN = 30


class Patch(NamedTuple):
    """A tombstone to write over the record at an offset of a block's plain bytes. entry: in the list."""

    number: int
    offset: int
    data: bytes
    entry: bytes


class Covered(NamedTuple):
    """What a sync covers: patches whose tombstones, and patches whose overwriting it makes durable."""

    recorded: list[Patch]
    overwritten: list[Patch]


class Erasures:
    """The records of one stream that are to be overwritten."""

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self.path = directory / ERASING
        # By block, what may be overwritten: the tombstones are on disk.
        self.ready: dict[int, list[Patch]] = {}
        self._files = files
        self._listed: dict[bytes, None] = {}  # entries of the list that are still needed
        self._pending = bytearray()  # bytes of the list to write
        self._size = 0  # bytes of the list in the file
        self._unwritten: list[Patch] = []  # their tombstones are not written
        self._unsynced: list[Patch] = []  # ... or not synced
        self._in_sync: list[Covered] = []
        self._is_named = False  # add() reported the file
        self._overwritten: list[Patch] = []  # in the file, but not synced
        self._in_rewrites: list[Patch] = []  # their records go when their blocks are rewritten

    @property
    def need_sync(self) -> bool:
        """Whether a sync would let records be overwritten."""
        return bool(self._unsynced)

    def add(self, patches: list[tuple[int, int, bytes]]) -> bool:
        """Lists records to overwrite; call before their tombstones are written. Returns whether the list got
        a new file. Raises StoreWriteError, and the next call continues."""
        for number, offset, data in patches:
            patch = Patch(number, offset, data, _entry(number, offset, data))
            self._unwritten.append(patch)
            self._listed[patch.entry] = None
            self._pending += patch.entry
        if not self._pending:
            return False
        while self._pending:
            count = self._files.write(self.path, bytes(self._pending), self._size)
            self._size += count
            del self._pending[:count]
        is_new, self._is_named = not self._is_named, True
        return is_new

    def written(self) -> bool:
        """All tombstones are written. Returns whether a sync would let records be overwritten."""
        if self._unwritten:
            self._unsynced += self._unwritten
            self._unwritten = []
        return bool(self._unsynced)

    def waiting(self, number: int) -> list[Patch]:
        """What is not overwritten yet in a block's file."""
        groups = [self._unwritten, self._unsynced, self.ready.get(number, ())]
        groups += (one.recorded for one in self._in_sync)
        return [patch for patches in groups for patch in patches if patch.number == number]

    def take_ready(self, number: int) -> list[Patch]:
        """Takes what may be overwritten in a block. Pass it to overwritten(), left_to_rewrite() or
        put_back()."""
        return self.ready.pop(number)

    def put_back(self, patches: list[Patch]) -> None:
        """They may be overwritten."""
        for patch in patches:
            self.ready.setdefault(patch.number, []).append(patch)

    def overwritten(self, patches: list[Patch]) -> None:
        """Their records were overwritten, or their files are gone."""
        self._overwritten += patches

    def left_to_rewrite(self, patches: list[Patch]) -> None:
        """Their blocks wait for a rewrite, which omits the records."""
        self._in_rewrites += patches

    def rewritten(self, number: int) -> None:
        """The log rewrote a block: records of its file are no longer where patches until now say, and go with
        the file."""
        self._in_rewrites += self.ready.pop(number, [])
        waiting = [self._unwritten, self._unsynced, *(one.recorded for one in self._in_sync)]
        for patches in waiting:
            self._in_rewrites += [patch for patch in patches if patch.number == number]
            patches[:] = [patch for patch in patches if patch.number != number]

    def begin_sync(self, rewriting: Callable[[], set[int]]) -> Covered:
        """A sync begins. rewriting: gives the blocks that wait for a rewrite or are being rewritten."""
        recorded, self._unsynced = self._unsynced, []
        gone, self._overwritten = self._overwritten, []
        if self._in_rewrites:
            numbers = rewriting()
            gone += [patch for patch in self._in_rewrites if patch.number not in numbers]
            self._in_rewrites = [patch for patch in self._in_rewrites if patch.number in numbers]
        covered = Covered(recorded, gone)
        self._in_sync.append(covered)
        return covered

    def sync_succeeded(self, covered: Covered) -> None:
        """A sync ended."""
        self._end(covered)
        self.put_back(covered.recorded)
        for patch in covered.overwritten:
            self._listed.pop(patch.entry, None)
        if not covered.overwritten:
            return
        if not self._listed or self._size > max(LIST_BYTES, 2 * len(self._listed) * _ENTRY.size):
            self._write_again()

    def sync_failed(self, covered: Covered) -> None:
        """A sync failed. The system may have dropped the list's bytes: it is written again."""
        self._end(covered)
        self._unsynced = covered.recorded + self._unsynced
        self._overwritten = covered.overwritten + self._overwritten
        self._write_again()

    def _end(self, covered: Covered) -> None:
        self._in_sync = [one for one in self._in_sync if one is not covered]

    def _write_again(self) -> None:
        """Lets the next add() write the list from its start, without what is no longer needed."""
        if not self._listed:
            self._files.forget(self.path)
            self._is_named = False
            with contextlib.suppress(OSError):  # recovery finds that nothing of it applies
                self._files.disk.unlink(self.path)
        self._pending, self._size = bytearray(b"".join(self._listed)), 0

    def close(self) -> None:
        """Releases the file."""
        self._files.forget(self.path)

    # ------------------------------------------------------------------ recovery

    def recover(self) -> list[Patch]:
        """Reads the list that another process left. Its caller passes what still applies to resume()."""
        try:
            data = self._files.disk.read(self.path)
        except FileNotFoundError:
            return []
        found: list[Patch] = []
        self._size = len(data) - len(data) % _ENTRY.size
        for at in range(0, len(data) - _ENTRY.size + 1, _ENTRY.size):
            digest, number, offset, seq, subject, header, payload = _ENTRY.unpack_from(data, at)
            if digest != xxh64_digest(data[at + _HASH.size : at + _ENTRY.size]):
                continue  # torn: the process or the machine died while it was written
            tombstone = encode(seq, seq, bytes(subject), bytes(header), bytes(payload), _REMOVED)
            found.append(Patch(number, offset, tombstone, data[at : at + _ENTRY.size]))
        return found

    def resume(self, patches: list[Patch], rewriting: list[Patch]) -> None:
        """Continues with the patches that recovery confirmed, in the list of the other process. Their
        tombstones may not be synced. rewriting: those left to a rewrite."""
        self._unsynced += patches
        self._in_rewrites += rewriting
        self._listed.update((patch.entry, None) for patch in patches + rewriting)
        if not self._listed:
            self._write_again()


def sequence_of(patch: Patch) -> int:
    """The sequence of the message that a patch overwrites."""
    tombstone = RecordReader(patch.data).next()
    assert isinstance(tombstone, tuple), tombstone
    return tombstone[1]


def find_records(data: memoryview, patches: list[Patch]) -> list[Patch] | None:
    """Returns those of a block's patches whose records are in its bytes, whole or half overwritten; None when
    damage hides whether they are, so that only a rewrite of the block removes them for certain."""
    wanted = {patch.offset: patch for patch in patches}
    found: list[Patch] = []
    is_damaged = False
    for at, record in read_records(data):
        patch = wanted.get(at)
        if isinstance(record, Corrupt):
            is_damaged = True
            if patch is not None and _is_torn(data, patch):
                found.append(wanted.pop(at))
        elif patch is not None:
            del wanted[at]
            if record[0] == _MESSAGE and _fits(record, patch):
                found.append(patch)
        if not wanted:
            return found
    return None if is_damaged else found


def notes_end(data: memoryview, seq: int) -> bool:
    """Whether a block records that the log reaches at least a sequence, with its time."""
    return any(
        not isinstance(record, Corrupt) and record[0] == _FLOOR and record[2] >= seq
        for _, record in read_records(data)
    )


def read_records(data: memoryview) -> Iterator[tuple[int, RecordTuple | Corrupt]]:
    """The records of a block and their offsets. Follows the length of a bad record to the next one, as
    recovery does: a power loss may tear the overwriting of a record, which keeps its length. Ends behind a
    bad record whose length is impossible."""
    reader = RecordReader(data)
    at = 0
    while (record := reader.next()) is not None:
        yield at, record
        at = reader.offset
        if isinstance(record, Corrupt):
            size = int.from_bytes(data[at : at + 4], "little") & _LENGTH_BITS
            if size < RECORD_BYTES_MIN or at + size > len(data):
                return
            at += size
            reader = RecordReader(data, at)


def _is_torn(data: memoryview, patch: Patch) -> bool:
    """Whether a bad record is the patch's, half overwritten: both have the same length and sequence."""
    bad = data[patch.offset : patch.offset + _START.size]
    return len(bad) == _START.size and _start(bad) == _start(patch.data)


def _start(record: memoryview | bytes) -> tuple[int, int]:
    length, tagged = _START.unpack_from(record)
    return length, tagged & _SEQ_BITS


def _fits(record: tuple[int, int, int, bytes, bytes, bytes], patch: Patch) -> bool:
    tombstone = RecordReader(patch.data).next()
    return (
        isinstance(tombstone, tuple)
        and tombstone[1] == record[1]
        and [len(part) for part in tombstone[3:]] == [len(part) for part in record[3:]]
    )


def _entry(number: int, offset: int, data: bytes) -> bytes:
    tombstone = RecordReader(data).next()
    if not isinstance(tombstone, tuple):
        raise StoreError(f"not a tombstone: {tombstone!r}")
    body = _ENTRY.pack(0, number, offset, tombstone[1], *(len(part) for part in tombstone[3:]))[_HASH.size :]
    return _HASH.pack(xxh64_digest(body)) + body
