"""The log of one replica: the entries after its snapshot, and how far they are on disk, committed and
applied.

Invariants, checked where they could break:
- the entries have consecutive indexes, and terms that never fall;
- base <= applied <= commit <= last, and applied <= durable <= last;
- a committed entry is never removed by a conflict;
- the membership in force is that of the last membership entry, committed or not.

Entries stay in memory until compact(). The write-ahead log and the state machine take the same objects, so
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.raft.membership import Membership
from penstock.raft.raft_messages import Entry, EntryKind, RaftSnapshot


class RaftLog:
    """See the module. snapshot: the state before the first entry. unsaved_index: the first entry that was not
    handed out for the disk. applied_index: the last entry that was handed out as committed. base_index: the
    index before the first entry. last_index: of the last entry. Both are attributes: every message asks for
    them several times."""

    def __init__(self, snapshot: RaftSnapshot, entries: Sequence[Entry] = (), commit_index: int = 0) -> None:
        self.snapshot = snapshot
        self._entries = list(entries)
        self._note_ends()
        assert all(one.index == snapshot.index + 1 + i for i, one in enumerate(entries)), "no gaps"
        self.commit_index = max(commit_index, snapshot.index)
        self.durable_index = self.last_index
        self.unsaved_index = self.last_index + 1
        self.applied_index = snapshot.index
        self._memberships = [(snapshot.index, snapshot.membership)]
        self._note_memberships(self._entries)
        assert self.commit_index <= self.last_index, "the log on disk ends before what was applied"

    # --- reading

    def _note_ends(self) -> None:
        entries = self._entries
        self.base_index = entries[0].index - 1 if entries else self.snapshot.index
        self.last_index = entries[-1].index if entries else self.snapshot.index

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    @property
    def membership(self) -> Membership:
        """The membership in force."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """The index of the membership in force."""
        return self._memberships[-1][0]

    def membership_at(self, index: int) -> Membership:
        """The membership in force at an index of the log, or at the snapshot."""
        return next(one for at, one in reversed(self._memberships) if at <= index)

    def term_at(self, index: int) -> int | None:
        """The term of the entry; None when the log has none there (any more)."""
        at = index - self.base_index - 1
        if 0 <= at < len(self._entries):
            return self._entries[at].term
        return self.snapshot.term if index == self.snapshot.index else None

    def entries_from(self, index: int, bytes_max: int, last: int | None = None) -> tuple[Entry, ...]:
        """Entries from an index: as many as fit, but at least one, none after `last`."""
        start = index - self.base_index - 1
        end = (self.last_index if last is None else last) - self.base_index
        assert start >= 0, "compacted entries are asked for"
        size = 0
        for at in range(start, end):
            size += len(self._entries[at].data) + 32
            if size > bytes_max and at > start:
                return tuple(self._entries[start:at])
        return tuple(self._entries[start:end])

    def discard(self) -> None:
        """Frees the entries of a replica that was removed. Nothing asks for them any more, but the replica is
        part of a cycle of objects, which stays until a garbage collection finds it."""
        self._entries = []
        self.base_index = self.last_index

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there has all that this one has, if this one's end is committed (5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_agreement(self, index: int, term: int) -> tuple[int, int]:
        """The last (index, term) at or before `index` whose term is at most `term`: where this log and one
        with that entry may agree. Skips a whole term of conflicting entries at a time. The
        index may be before the first entry: then a member that conflicts with the snapshot's last entry needs
        the snapshot."""
        at = min(index, self.last_index)
        while (known := self.term_at(at)) is not None and known > term:
            at -= 1
        return at, known or 0

    # --- writing

    def append(self, entries: Sequence[Entry]) -> None:
        """Adds a leader's own entries."""
        assert entries[0].index == self.last_index + 1, "a leader only appends"
        assert entries[0].term >= self.last_term
        self._entries.extend(entries)
        self.last_index = entries[-1].index
        self._note_memberships(entries)

    def merge(self, prev_index: int, entries: Sequence[Entry]) -> int:
        """Takes a leader's entries, whose predecessor this log has. Removes what contradicts them. Returns
        the last index that is now known to agree with the leader."""
        for i, one in enumerate(entries):
            if self.term_at(one.index) != one.term:
                if one.index <= self.last_index:
                    self._truncate(one.index)
                self.append(entries[i:])
                break
        return prev_index + len(entries)

    def _truncate(self, index: int) -> None:
        assert index > self.commit_index, "a committed entry contradicts the leader"
        del self._entries[index - self.base_index - 1 :]
        self._note_ends()
        self._memberships = [one for one in self._memberships if one[0] < index]
        self.unsaved_index = min(self.unsaved_index, index)
        self.durable_index = min(self.durable_index, index - 1)

    def _note_memberships(self, entries: Sequence[Entry]) -> None:
        for one in entries:
            if one.kind is EntryKind.MEMBERSHIP:
                self._memberships.append((one.index, Membership.decode(one.data)))

    # --- how far

    def take_unsaved(self) -> tuple[Entry, ...]:
        """The entries for the disk, once. The first one replaces all that the disk has from its index on."""
        if self.unsaved_index > self.last_index:
            return ()
        entries = tuple(self._entries[self.unsaved_index - self.base_index - 1 :])
        self.unsaved_index = self.last_index + 1
        return entries

    def synced(self, index: int, term: int) -> None:
        """The disk has everything up to that entry. If another one took its place meanwhile, that one's own
        sync follows."""
        if self.term_at(index) == term:
            self.durable_index = max(self.durable_index, min(index, self.unsaved_index - 1))

    def commit(self, index: int) -> bool:
        """Commits up to an index. Returns whether that was new."""
        assert index <= self.last_index, "an entry is committed that this log does not have"
        is_new = index > self.commit_index
        self.commit_index = max(self.commit_index, index)
        return is_new

    @property
    def has_committed(self) -> bool:
        """Whether take_committed() would return something."""
        return min(self.commit_index, self.durable_index) > self.applied_index

    def take_committed(self, bytes_max: int) -> tuple[Entry, ...]:
        """Committed entries to apply, once. Only what is on this disk: the state machine's files may survive
        a power failure that the log's end does not, and would then be ahead of it."""
        last = min(self.commit_index, self.durable_index)
        if last <= self.applied_index:
            return ()
        entries = self.entries_from(self.applied_index + 1, bytes_max, last)
        self.applied_index = entries[-1].index
        return entries

    def compact(self, snapshot: RaftSnapshot, keep_from: int) -> None:
        """Removes entries before `keep_from` that the snapshot has. The others stay for members that lag."""
        assert self.snapshot.index <= snapshot.index <= self.applied_index, "a snapshot is of applied entries"
        assert snapshot.term == self.term_at(snapshot.index)
        assert snapshot.membership == self.membership_at(snapshot.index)
        del self._entries[: max(0, min(keep_from - 1, snapshot.index) - self.base_index)]
        self.snapshot = snapshot
        self._note_ends()
        kept = [one for one in self._memberships if one[0] > snapshot.index]
        self._memberships = [(snapshot.index, snapshot.membership), *kept]

    def restore(self, snapshot: RaftSnapshot) -> None:
        """Takes a snapshot that the state machine has on disk. Keeps what follows it only if the log has the
        snapshot's last entry: otherwise the two contradict each other."""
        assert snapshot.index > self.commit_index, "a snapshot of the past"
        agrees = self.term_at(snapshot.index) == snapshot.term
        kept = self._entries[snapshot.index - self.base_index :] if agrees else []
        durable = self.durable_index if agrees else 0
        unsaved = self.unsaved_index if agrees else 0
        self._entries = list(kept)
        self.snapshot = snapshot
        self._note_ends()
        self.commit_index = self.applied_index = snapshot.index
        self.durable_index = max(snapshot.index, durable)
        self.unsaved_index = max(snapshot.index + 1, unsaved)
        self._memberships = [(snapshot.index, snapshot.membership)]
        self._note_memberships(self._entries)
