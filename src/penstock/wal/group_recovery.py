"""Rebuilds one group from its records, in the order in which they were written.

An entry replaces all entries from its index on. It names the term of the entry before it; entries that do
not fit together show that something between them is lost, and the group then ends before the gap. A log
with such a gap never existed, but each part of it without one did, so that the owner gets a log that it once
had, and the group is *damaged*: it may have acknowledged more. Damaged entries are not deleted: they remain
in their segment, and the owner replaces them by appending them again.

Invariant: of two neighbours in the result, the later one named the term of the earlier one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.wal.wal_records import GroupImage, WalKind, WalRecord


class WalEntry(msgspec.Struct, frozen=True):
    """An entry of a group. kind: the owner's."""

    index: int
    term: int
    kind: int
    data: bytes


class WalCheckpoint(msgspec.Struct, frozen=True):
    """The owner's state up to (index, term) is durable elsewhere. keep_from: entries before it may be gone.
    data: the owner's."""

    index: int = 0
    term: int = 0
    keep_from: int = 1
    data: bytes = b""


class RecoveredGroup(NamedTuple):
    """A group as the log has it. vote: of the term; None = it may have voted, and the record is lost.
    entries: without gaps; they end after the checkpoint or at it, and begin at keep_from or later.
    is_damaged: it may have acknowledged more than this."""

    name: str
    number: int
    term: int
    vote: str | None
    checkpoint: WalCheckpoint
    entries: tuple[WalEntry, ...]
    is_damaged: bool

    @property
    def last(self) -> tuple[int, int]:
        """Index and term of the last entry, or of the checkpoint."""
        one = self.entries[-1] if self.entries else self.checkpoint
        return one.index, one.term

    def image(self) -> WalRecord:
        """The GROUP record: everything but the entries."""
        return group_record(
            self.name,
            self.number,
            self.term,
            self.vote,
            self.checkpoint,
            self.last,
            is_damaged=self.is_damaged,
        )


def group_record(
    name: str,
    number: int,
    term: int,
    vote: str | None,
    at: WalCheckpoint,
    last: tuple[int, int],
    *,
    is_damaged: bool,
) -> WalRecord:
    """A GROUP record."""
    image = GroupImage(name, vote, at.index, at.term, at.keep_from, at.data)
    return WalRecord(WalKind.GROUP, number, term, *last, int(is_damaged), image.encode())


class GroupRecovery:
    """See the module. name: "" while no record named the group."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = ""
        self._term = 0
        self._vote: str | None = ""
        self._checkpoint = WalCheckpoint()
        self._entries: dict[int, tuple[WalEntry, int]] = {}  # with the term before it; indexes ascend
        self._is_unordered = False  # copied entries follow later ones
        self._copied_to = 0  # the last entry that is copied with all those behind the checkpoint before it
        self._last = (0, 0)  # index and term of the last entry that was written
        self._is_damaged = False
        self._may_lack_all = False

    # --- records

    def image(self, term: int, last: tuple[int, int], image: GroupImage, *, is_damaged: bool) -> None:
        """Applies the whole state of the group, with which a segment begins. It shows what is missing before
        it, so earlier damage at unknown places no longer matters."""
        self.name = image.name
        self._term, self._vote = term, image.vote
        self._set_checkpoint(
            WalCheckpoint(
                image.checkpoint_index, image.checkpoint_term, image.keep_from, image.checkpoint_data
            )
        )
        self._drop_from(last[0] + 1)
        self._last = last
        self._is_damaged, self._may_lack_all = is_damaged, False

    def entry(self, entry: WalEntry, previous_term: int, *, is_whole: bool) -> None:
        """Applies an entry. is_whole: its data is intact."""
        self._copied_to = 0
        if entry.term > self._term:  # its hard state was written before it
            self._term, self._vote, self._is_damaged = entry.term, None, True
        self._drop_from(entry.index)
        if is_whole:
            self._entries[entry.index] = (entry, previous_term)
        self._last = (entry.index, entry.term)

    def copied(self, entry: WalEntry, previous_term: int) -> None:
        """Applies a copy of an entry. A torn copy leaves the entries as they were."""
        if not self._checkpoint.keep_from <= entry.index <= self._last[0]:
            return
        if entry.index not in self._entries and self._entries and next(reversed(self._entries)) > entry.index:
            self._is_unordered = True
        self._entries[entry.index] = (entry, previous_term)
        begins = entry.index == self._checkpoint.index + 1
        if begins or entry.index == self._copied_to + 1:
            self._copied_to = entry.index

    @property
    def is_copied(self) -> bool:
        """Whether all entries behind the checkpoint are copied since it was set."""
        return self._copied_to == self._last[0] > self._checkpoint.index

    def hard_state(self, term: int, vote: str | None) -> None:
        """Applies a term and its vote; None when the vote is lost."""
        self._term, self._vote = term, vote
        self._is_damaged = self._is_damaged or vote is None

    def checkpoint(self, checkpoint: WalCheckpoint) -> None:
        """Applies a checkpoint within the log."""
        self._set_checkpoint(checkpoint)
        if checkpoint.index > self._last[0]:
            self._last = (checkpoint.index, checkpoint.term)
            self._is_damaged = True  # a state of entries that the log does not have

    def installed(self, checkpoint: WalCheckpoint) -> None:
        """Applies a checkpoint that replaces the log."""
        self._entries.clear()
        self._checkpoint = checkpoint
        self._last = (checkpoint.index, checkpoint.term)

    def installed_unknown(self, index: int, term: int) -> None:
        """Applies a checkpoint that replaces the log and whose data is lost: the log ends at the checkpoint
        before it."""
        self._entries.clear()
        self._last = (index, term)
        self._is_damaged = True

    def note_damage(self) -> None:
        """Marks the group as damaged: lost records may be its own."""
        self._may_lack_all = True

    def set_recovered(self) -> None:
        """Ends the damage: the owner has restored what the group acknowledged."""
        self._is_damaged = False

    def _drop_from(self, index: int) -> None:
        if self._is_unordered:
            self._entries = dict(sorted(self._entries.items()))
            self._is_unordered = False
        while self._entries and next(reversed(self._entries)) >= index:
            self._entries.popitem()

    def _set_checkpoint(self, checkpoint: WalCheckpoint) -> None:
        if checkpoint.keep_from > self._checkpoint.keep_from:
            self._entries = {at: one for at, one in self._entries.items() if at >= checkpoint.keep_from}
        self._checkpoint, self._copied_to = checkpoint, 0

    # --- result

    def result(self, term_limit: int) -> RecoveredGroup:
        """Returns the group. term_limit: no record has a higher term."""
        at = self._checkpoint
        entries = [*self._entries_before(at), *self._entries_after(at)]
        end = (entries[-1].index, entries[-1].term) if entries else (at.index, at.term)
        is_damaged = self._is_damaged or self._may_lack_all or end != self._last
        term, vote = self._term, self._vote
        if self._may_lack_all:  # it may have voted in any term that the log has reached
            term, vote = max(term, term_limit), None
        return RecoveredGroup(self.name, self.number, term, vote, at, tuple(entries), is_damaged)

    def _entries_before(self, at: WalCheckpoint) -> list[WalEntry]:
        """Entries up to the checkpoint that are still wanted."""
        found: list[WalEntry] = []
        term = at.term
        for index in range(at.index, at.keep_from - 1, -1):
            one, previous_term = self._entries.get(index, _NONE)
            if one is None or one.term != term:
                break
            found.append(one)
            term = previous_term
        return found[::-1]

    def _entries_after(self, at: WalCheckpoint) -> list[WalEntry]:
        found: list[WalEntry] = []
        term = at.term
        for index in range(at.index + 1, self._last[0] + 1):
            one, previous_term = self._entries.get(index, _NONE)
            if one is None or previous_term != term:
                break
            found.append(one)
            term = one.term
        return found


_NONE: tuple[None, int] = (None, 0)
