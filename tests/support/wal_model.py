"""A dumb model of the write-ahead log: lists of entries beside the bytes that say the same."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from penstock.wal.group_recovery import RecoveredGroup, WalCheckpoint, WalEntry
from penstock.wal.wal_records import WAL_FORMAT, WalKind, WalRecord, encode_record
from penstock.wal.wal_recovery import WalPosition, WalRecovery, recover_log

TERM_LIMIT = 1000
"""No group of a model reaches it."""


@dataclass
class GroupModel:
    """What a group must be. entries: those that are not before keep_from."""

    name: str
    number: int
    term: int = 0
    vote: str = ""
    checkpoint: WalCheckpoint = field(default_factory=WalCheckpoint)
    entries: list[WalEntry] = field(default_factory=list)

    @property
    def last(self) -> tuple[int, int]:
        one = self.entries[-1] if self.entries else self.checkpoint
        return one.index, one.term

    def term_at(self, index: int) -> int:
        terms = {one.index: one.term for one in self.entries}
        return terms.get(index, self.checkpoint.term if index == self.checkpoint.index else 0)

    def recovered(self) -> RecoveredGroup:
        return RecoveredGroup(
            self.name, self.number, self.term, self.vote, self.checkpoint, tuple(self.entries), False
        )


class LogModel:
    """Groups and segments. written: (predecessor, entry) of all entries ever written, by group: what may
    follow what."""

    def __init__(self) -> None:
        self.groups: dict[int, GroupModel] = {}
        self.segments: dict[int, bytearray] = {}
        self.number = 0
        self.next_group = 1
        self.mark = WalPosition()
        self.written: dict[int, set[tuple[tuple[int, int], WalEntry]]] = {}
        self._was_synced = False
        self.roll()

    # --- bytes

    def write(self, record: WalRecord) -> None:
        data = self.segments[self.number]
        data += encode_record(structs.replace(record, follows_sync=self._was_synced), self.number, len(data))
        self._was_synced = False

    def sync(self) -> None:
        self._was_synced = True
        self.mark = self.end

    @property
    def end(self) -> WalPosition:
        return WalPosition(self.number, len(self.segments[self.number]))

    def roll(self) -> None:
        """Begins a segment."""
        before = self.end if self.number else WalPosition()
        self.number += 1
        self.segments[self.number] = bytearray()
        self._was_synced = False
        self.write(
            WalRecord(WalKind.SEGMENT, index=before.offset, previous=before.segment, detail=WAL_FORMAT)
        )
        for group in self.groups.values():
            self.write(group.recovered().image())
        self.sync()

    def recover(self, *, mark: WalPosition | None = None) -> WalRecovery:
        segments = {number: bytes(data) for number, data in self.segments.items()}
        return recover_log(segments, self.mark if mark is None else mark, TERM_LIMIT)

    def expected(self) -> dict[int, RecoveredGroup]:
        return {number: one.recovered() for number, one in self.groups.items()}

    # --- groups

    def begin(self, data: bytes = b"members") -> int:
        number = self.next_group
        self.next_group += 1
        group = GroupModel(f"g{number}", number, checkpoint=WalCheckpoint(data=data))
        self.groups[number] = group
        self.written[number] = set()
        self.write(group.recovered().image())
        return number

    def vote(self, number: int, more: int, vote: str) -> None:
        group = self.groups[number]
        group.term, group.vote = group.term + more, vote
        self.write(WalRecord(WalKind.HARD_STATE, number, group.term, payload=vote.encode()))

    def append(self, number: int, back: int, count: int, data: bytes = b"") -> None:
        """Entries of the group's term, in place of the last ones that are not in the checkpoint."""
        group = self.groups[number]
        last = group.last[0]
        first = max(last - back, group.checkpoint.index) + 1
        if first <= last and group.term_at(last) == group.term:
            self.vote(number, 1, "")  # a term has one leader, which replaces nothing
        if group.term == 0:
            self.vote(number, 1, "a")
        group.entries = [one for one in group.entries if one.index < first]
        for index in range(first, first + count):
            before = group.last
            entry = WalEntry(index, group.term, 1, b"%d/%d " % (index, group.term) + data)
            group.entries.append(entry)
            self.written[number].add((before, entry))
            self.write(WalRecord(WalKind.ENTRY, number, entry.term, index, before[1], 1, entry.data))
        if not count and first <= last:  # nothing on disk says that the old ones are gone
            self.append(number, 0, 1, data)

    def checkpoint(self, number: int, back: int, keep: int) -> None:
        group = self.groups[number]
        index = max(group.last[0] - back, group.checkpoint.index)
        keep_from = max(1, index + 1 - keep, group.checkpoint.keep_from)
        at = WalCheckpoint(index, group.term_at(index), keep_from, b"state %d" % index)
        group.entries = [one for one in group.entries if one.index >= keep_from]
        group.checkpoint = at
        self.write(WalRecord(WalKind.CHECKPOINT, number, at.term, at.index, at.keep_from, 0, at.data))

    def copy(self, number: int) -> None:
        """The entries behind the checkpoint once more, and none before it."""
        group = self.groups[number]
        at = group.checkpoint
        group.checkpoint = structs.replace(at, keep_from=at.index + 1)
        group.entries = [one for one in group.entries if one.index > at.index]
        self.write(WalRecord(WalKind.CHECKPOINT, number, at.term, at.index, at.index + 1, 0, at.data))
        term = at.term
        for one in group.entries:
            self.write(WalRecord(WalKind.COPIED, number, one.term, one.index, term, one.kind, one.data))
            term = one.term

    def install(self, number: int, more: int) -> None:
        group = self.groups[number]
        if group.term == 0:
            self.vote(number, 1, "a")
        index = group.last[0] + more
        group.entries = []
        group.checkpoint = at = WalCheckpoint(index, group.term, index + 1, b"state %d" % index)
        self.write(WalRecord(WalKind.INSTALLED, number, at.term, at.index, at.keep_from, 0, at.data))

    def remove(self, number: int) -> None:
        del self.groups[number]
        self.write(WalRecord(WalKind.REMOVED, number))

    def oldest_needed(self) -> int:
        """The first segment that must stay, by what recovery says."""
        found = self.recover()
        for number in sorted(self.segments):
            for group, highest in found.entries_in.get(number, {}).items():
                if group in self.groups and highest >= self.groups[group].checkpoint.keep_from:
                    return number
        return self.number


def some_log() -> LogModel:
    """Three segments and groups with everything that a log may have."""
    log = LogModel()
    a, b = log.begin(), log.begin()
    log.append(a, 0, 3, b"first")
    log.sync()
    log.append(b, 0, 2)
    log.vote(b, 1, "b")
    log.append(b, 1, 2)
    log.sync()
    log.checkpoint(a, 1, 1)
    log.roll()
    c = log.begin()
    log.append(a, 1, 2, b"second" * 9)
    log.sync()
    log.install(b, 3)
    log.append(b, 0, 1)
    log.append(c, 0, 3)
    log.sync()
    log.roll()
    log.append(c, 2, 2, b"\xf5WAL\xf5END")
    log.sync()
    log.vote(a, 2, "c")
    log.checkpoint(b, 0, 0)
    log.append(a, 0, 1)
    log.sync()
    return log
