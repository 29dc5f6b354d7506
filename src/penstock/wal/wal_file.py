"""The write-ahead log on a disk: stages records, writes and syncs them together, and removes old segments.

    log.append(group, entries); log.set_hard_state(group, term, vote)   # staged
    log.commit()                                                        # one write, one sync: durable

Order of writes, and why:
- A start syncs the newest segment before it begins the next one: what was read may be in the page cache only.
- A segment's beginning, with the state of every group, is synced before anything else is written to it, and
  its name too. Until then nothing is written behind the end that it states for the segment before it.
- The mark with a higher limit of terms is on disk before a record with such a term.
- Segments are removed, the oldest first, only after the checkpoint that makes them superfluous is synced.
- After a failed write or sync everything since the last sync is written again, at the same place: the system
  may have dropped it.

Invariants: _unsynced is what the file has, or should have, behind _synced, in parts that together have
_unsynced_bytes; the first _written parts of it were written and no sync has failed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from penstock.errors import StoreCorruptError, StoreError, StoreWriteError
from penstock.store.disk import Disk
from penstock.store.files import make_directory, names_in, remove_file, sync_directory, sync_file
from penstock.wal.group_recovery import RecoveredGroup, WalCheckpoint, WalEntry, group_record
from penstock.wal.wal_mark import WalMark, read_mark, write_mark
from penstock.wal.wal_records import (
    WAL_FORMAT,
    WalKind,
    WalRecord,
    encode_record,
    record_bytes,
    record_parts,
)
from penstock.wal.wal_recovery import WalPosition, WalRecovery, recover_log

SEGMENT_BYTES = 64 << 20
"""Size of a segment, bytes, from which on the next one begins."""
TERMS_PER_MARK = 64
"""How far the limit of terms is raised: a mark costs two syncs or more."""
COPIED_BYTES_MAX = 64 << 10
"""Parts of fewer bytes are joined for one write; larger ones are written as they are: copying them takes
longer than a call."""
_SUFFIX = ".wal"
_FREES_SEGMENTS = (WalKind.CHECKPOINT, WalKind.INSTALLED, WalKind.REMOVED, WalKind.COPIED)


class WalGroup:
    """What the next segment's beginning says of a group, and the terms of its entries: each names the term of
    the one before it."""

    def __init__(self, found: RecoveredGroup) -> None:
        self.name = found.name
        self.number = found.number
        self.checkpoint = found.checkpoint
        self.is_damaged = found.is_damaged
        self._term, self._vote = found.term, found.vote
        self._last_index = found.last[0]
        # First index of each term, ascending. The checkpoint begins it: the first entry after that one may be
        # replaced, and then names the checkpoint's term.
        self._terms = [(found.checkpoint.index, found.checkpoint.term)]
        for one in found.entries:
            if one.index > found.checkpoint.index:
                self._note_term(one.index, one.term)

    @property
    def last(self) -> tuple[int, int]:
        return self._last_index, self._terms[-1][1]

    def image(self) -> WalRecord:
        return group_record(
            self.name, self.number, self._term, self._vote, self.checkpoint, self.last,
            is_damaged=self.is_damaged,
        )  # fmt: skip

    def hard_state(self, term: int, vote: str) -> WalRecord:
        assert term >= self._term, "terms never fall"
        self._term, self._vote = term, vote
        return WalRecord(
            WalKind.HARD_STATE, self.number, term, payload=vote.encode("utf-8", "surrogateescape")
        )

    def append(self, entry: WalEntry) -> WalRecord:
        assert self.checkpoint.index < entry.index <= self._last_index + 1, "entries leave no gap"
        assert entry.term <= self._term, "the hard state of a term precedes its entries"
        while self._terms[-1][0] >= entry.index:
            self._terms.pop()
        previous = self._terms[-1][1]
        self._note_term(entry.index, entry.term)
        self._last_index = entry.index
        return WalRecord(
            WalKind.ENTRY, self.number, entry.term, entry.index, previous, entry.kind, entry.data
        )

    def _note_term(self, index: int, term: int) -> None:
        if self._terms[-1][1] != term:
            self._terms.append((index, term))

    def set_checkpoint(self, checkpoint: WalCheckpoint) -> WalRecord:
        assert self.checkpoint.index <= checkpoint.index <= self._last_index, "a checkpoint is of entries"
        self.checkpoint = checkpoint
        while len(self._terms) > 1 and self._terms[1][0] <= checkpoint.index:
            del self._terms[0]
        return self._checkpoint_record(WalKind.CHECKPOINT)

    def copies(self, entries: Sequence[WalEntry]) -> list[WalRecord]:
        at = self.checkpoint
        if [one.index for one in entries] != [*range(at.index + 1, self._last_index + 1)]:
            return []  # a state was installed that the owner did not hear of before it closed the group
        self.checkpoint = structs.replace(at, keep_from=at.index + 1)
        terms = [at.term, *(one.term for one in entries)]
        return [
            self._checkpoint_record(WalKind.CHECKPOINT),
            *(
                WalRecord(WalKind.COPIED, self.number, one.term, one.index, previous, one.kind, one.data)
                for one, previous in zip(entries, terms, strict=False)
            ),
        ]

    def install(self, checkpoint: WalCheckpoint) -> WalRecord:
        self.checkpoint = checkpoint
        self._terms = [(checkpoint.index, checkpoint.term)]
        self._last_index = checkpoint.index
        return self._checkpoint_record(WalKind.INSTALLED)

    def _checkpoint_record(self, kind: WalKind) -> WalRecord:
        at = self.checkpoint
        return WalRecord(kind, self.number, at.term, at.index, at.keep_from, 0, at.data)

    def recover(self) -> WalRecord:
        self.is_damaged = False
        return WalRecord(WalKind.RECOVERED, self.number)


class WriteAheadLog:
    """See the module. recovery: what a start found; the groups in it are those of the log."""

    def __init__(
        self, disk: Disk, directory: Path, mark: WalMark, recovery: WalRecovery, segment_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._mark = mark
        self._segment_bytes = segment_bytes
        self._groups = {number: WalGroup(found) for number, found in recovery.groups.items()}
        known = (*recovery.groups, *recovery.lost_groups)
        self._next_group = max((recovery.next_group, *(number + 1 for number in known)))
        self._entries_in = dict(recovery.entries_in)
        self._may_lack_groups = recovery.may_lack_groups
        self._term_limit = recovery.term_limit
        self._staged: list[WalRecord] = []
        self._is_removal_due = True  # a checkpoint may have made segments superfluous
        self._term_max = max((found.term for found in recovery.groups.values()), default=0)
        self._number, self._synced = recovery.newest, 0
        self._unsynced: list[bytes] = []
        self._unsynced_bytes = 0
        self._written = self._written_bytes = 0
        self._fd = -1
        self._opening = self._segment_beginning(recovery.end)

    @classmethod
    def open(
        cls, disk: Disk, directory: Path, identity: bytes, *, segment_bytes: int = SEGMENT_BYTES
    ) -> tuple[WriteAheadLog, WalRecovery]:
        """Opens or creates the log in a directory. identity: of this start; see WalMark. Raises
        StoreCorruptError, StoreFormatError, StoreWriteError; StoreError for unreadable sectors."""
        make_directory(disk, directory)
        old = read_mark(disk, directory)
        names = [name for name in names_in(disk, directory) if name.endswith(_SUFFIX)]
        segments = {int(name.removesuffix(_SUFFIX)): _read(disk, directory / name) for name in names}
        if old is None:
            if segments:
                raise StoreCorruptError(
                    "the log's mark is missing, so that it is unknown what the log contained; move the "
                    "directory away: the server then joins its groups as a new member",
                    path=str(directory),
                )
            old = WalMark(0, identity, 0, 0, 0)
            write_mark(disk, directory, old)  # before the first segment, which would else be without one
        recovery = recover_log(segments, old.position, old.term_limit)
        if recovery.end.segment:
            sync_file(disk, directory / segment_name(recovery.end.segment))
        mark = WalMark(old.version + 1, identity, *min(old.position, recovery.end), old.term_limit)
        log = cls(disk, directory, mark, recovery, segment_bytes)
        log._begin_segment()
        return log, recovery

    def close(self) -> None:
        """Closes the file and drops what was not committed."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    # --- staging

    def begin_group(self, name: str, checkpoint: WalCheckpoint) -> int:
        """Adds a group. Returns its number, which the other methods take."""
        number = self._next_group
        self._next_group += 1
        group = WalGroup(RecoveredGroup(name, number, checkpoint.term, "", checkpoint, (), False))
        self._groups[number] = group
        self._stage(group.image())
        return number

    def begin_lost_group(self, name: str, checkpoint: WalCheckpoint) -> RecoveredGroup:
        """Adds a group that the owner knows and the log does not, although it may have contained it. It is
        damaged, has no entries, and may have voted in every term up to the limit."""
        number = self._next_group
        self._next_group += 1
        found = RecoveredGroup(name, number, self._term_limit, None, checkpoint, (), True)
        self._term_max = max(self._term_max, found.term)
        self._groups[number] = WalGroup(found)
        self._stage(found.image())
        return found

    def set_hard_state(self, group: int, term: int, vote: str) -> None:
        """Stages a group's term and vote."""
        self._term_max = max(self._term_max, term)
        self._stage(self._groups[group].hard_state(term, vote))

    def append(self, group: int, entries: Iterable[WalEntry]) -> None:
        """Stages entries. They replace those of the group from the first one's index on."""
        for entry in entries:
            self._stage(self._groups[group].append(entry))

    def copy(self, group: int, entries: Sequence[WalEntry]) -> None:
        """Stages the entries of a group behind its checkpoint once more: older segments need not keep them,
        and those before the checkpoint are not kept. Does nothing if these are not all of them."""
        for record in self._groups[group].copies(entries):
            self._stage(record)

    def checkpoint(self, group: int, checkpoint: WalCheckpoint) -> None:
        """Stages a checkpoint: the owner's state up to there is durable elsewhere."""
        self._stage(self._groups[group].set_checkpoint(checkpoint))

    def install(self, group: int, checkpoint: WalCheckpoint) -> None:
        """Stages a checkpoint that replaces all entries."""
        self._stage(self._groups[group].install(checkpoint))

    def remove_group(self, group: int) -> None:
        """Stages the removal of a group."""
        del self._groups[group]
        self._stage(WalRecord(WalKind.REMOVED, group))

    def set_recovered(self, group: int) -> None:
        """Stages the end of a group's damage: the owner has restored what the group acknowledged."""
        self._stage(self._groups[group].recover())

    def set_groups_known(self) -> None:
        """Stages that no group is missing any more: the owner has added, as damaged, all that it knows and
        the log did not."""
        self._may_lack_groups = False
        self._stage(WalRecord(WalKind.GROUPS_KNOWN))

    def _stage(self, record: WalRecord) -> None:
        self._staged.append(record)

    # --- the disk

    def commit(self) -> None:
        """Makes durable what was staged. After a StoreWriteError it is still staged, and the next call tries
        again."""
        if self._opening:
            self._begin_segment()
        if self._term_max > self._mark.term_limit:
            self._put_mark()
        if self._staged or self._unsynced:
            self._encode_staged()
            self._write_unsynced()
        if self._is_removal_due:
            self._remove_segments()
        if self._synced >= self._segment_bytes:
            self._opening = self._segment_beginning(WalPosition(self._number, self._synced))

    @property
    def must_sync(self) -> bool:
        """Whether write() syncs, because it begins a segment or renews the mark first."""
        return bool(self._opening) or self._term_max > self._mark.term_limit

    def write(self) -> int:
        """Hands what was staged to the operating system, without a sync: it survives the end of the process,
        and a power failure only after the next commit(). Returns how many bytes wait for that. Raises
        StoreWriteError, as commit() does."""
        if self.must_sync:
            self.commit()
        elif self._staged:
            self._encode_staged()
            self._put_unsynced()
        return self._unsynced_bytes

    def pinned(self) -> tuple[int, list[int]]:
        """Returns the number of segments, and the groups whose entries keep the oldest one."""
        oldest = min(self._entries_in, default=self._number)
        keepers = [
            group
            for group, highest in self._entries_in.get(oldest, {}).items()
            if group in self._groups and highest >= self._groups[group].checkpoint.keep_from
        ]
        return len(self._entries_in), keepers

    def put_mark(self) -> None:
        """Records in the mark how far the log is synced. Call it while the log is idle."""
        if self._mark.position != (self._number, self._synced):
            self._put_mark()

    def _encode_staged(self) -> None:
        highest = self._entries_in.setdefault(self._number, {})
        for staged in self._staged:
            # What is written again after a failed sync keeps its first record, which follows one that ended.
            record = structs.replace(staged, follows_sync=not self._unsynced)
            self._unsynced += record_parts(record, self._number, self._synced + self._unsynced_bytes)
            self._unsynced_bytes += record_bytes(len(record.payload))
            # INSTALLED replaces all entries. Of COPIED ones, the others follow before this segment is synced.
            if record.kind in (WalKind.INSTALLED, WalKind.COPIED):
                for one in self._entries_in.values():
                    one.pop(record.group, None)
            if record.kind in (WalKind.ENTRY, WalKind.COPIED):
                highest[record.group] = max(highest.get(record.group, 0), record.index)
            self._is_removal_due = self._is_removal_due or record.kind in _FREES_SEGMENTS
        self._staged.clear()

    def _write_unsynced(self) -> None:
        self._put_unsynced()
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            self._written = self._written_bytes = 0  # the system may have dropped it
            raise self._failure(error) from error
        self._synced += self._unsynced_bytes
        self._unsynced.clear()
        self._unsynced_bytes = self._written = self._written_bytes = 0

    def _put_unsynced(self) -> None:
        offset = self._synced + self._written_bytes
        self._unsynced[self._written :] = _joined(self._unsynced[self._written :])
        try:
            for data in self._unsynced[self._written :]:
                self._write(data, offset)
                offset += len(data)
        except OSError as error:
            self._written = self._written_bytes = 0
            raise self._failure(error) from error
        self._written, self._written_bytes = len(self._unsynced), self._unsynced_bytes

    def _failure(self, error: OSError) -> StoreWriteError:
        return StoreWriteError(
            f"cannot write or sync {self._unsynced_bytes} bytes at {self._synced}: {error.strerror}",
            path=str(self._path(self._number)),
        )

    def _write(self, data: bytes, offset: int) -> None:
        with memoryview(data) as view:
            written = 0
            while written < len(view):
                written += self._disk.write(self._fd, view[written:], offset + written)

    def _segment_beginning(self, end: WalPosition) -> bytes:
        """The first records of the next segment; the one before it ends at `end`."""
        number = self._number + 1
        head = WalRecord(WalKind.SEGMENT, 0, int(self._may_lack_groups), end.offset, end.segment, WAL_FORMAT)
        data = bytearray()
        for record in (head, *(group.image() for group in self._groups.values())):
            data += encode_record(record, number, len(data))
        return bytes(data)

    def _begin_segment(self) -> None:
        path = self._path(self._number + 1)
        try:
            self.close()
            self._fd = self._disk.open(path, truncate=True)
            self._write(self._opening, 0)
            self._disk.sync(self._fd)
        except OSError as error:
            raise StoreWriteError(f"cannot begin a segment: {error.strerror}", path=str(path)) from error
        sync_directory(self._disk, self._directory)
        self._number, self._synced = self._number + 1, len(self._opening)
        self._opening = b""
        self._put_mark()

    def _put_mark(self) -> None:
        old = self._mark
        limit = old.term_limit if self._term_max <= old.term_limit else self._term_max + TERMS_PER_MARK
        mark = WalMark(old.version + 1, old.identity, self._number, self._synced, limit)
        write_mark(self._disk, self._directory, mark)
        self._mark = mark

    def _remove_segments(self) -> None:
        """Removes old segments whose entries no group needs. A failure leaves them for the next time."""
        self._is_removal_due = False
        for number in sorted(self._entries_in):
            if number == self._number or any(
                group in self._groups and highest >= self._groups[group].checkpoint.keep_from
                for group, highest in self._entries_in[number].items()
            ):
                return
            try:
                remove_file(self._disk, self._path(number))
            except StoreError:
                return
            del self._entries_in[number]

    def _path(self, number: int) -> Path:
        return self._directory / segment_name(number)


def _read(disk: Disk, path: Path) -> bytes:
    try:
        return disk.read(path)
    except OSError as error:
        raise StoreError(f"cannot read the segment: {error.strerror}", path=str(path)) from error


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer parts: neighbours are joined, but for the large ones."""
    few: list[bytes] = []
    for part in parts:
        if len(part) < COPIED_BYTES_MAX:
            few.append(part)
            continue
        if few:
            yield b"".join(few)
            few.clear()
        yield part
    if few:
        yield b"".join(few)


def segment_name(number: int) -> str:
    """The file of a segment."""
    return f"{number:016d}{_SUFFIX}"
