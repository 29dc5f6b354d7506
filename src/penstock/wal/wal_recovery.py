"""All segments of a log, as bytes: every group as it was, or marked as damaged.

A segment begins with the number and the end of the one before it, and with the state of every group. The
newest segment may end in a torn tail; of an older one the end is known, and a fault before it is damage. A
damaged record names its group. Bytes of which nothing is known may have been of any group: all groups count
as damaged until the next segment's beginning says what each of them had.

Invariants: recovery changes nothing; what it drops as torn was never acknowledged, apart from the last write
before a power failure (see wal_reading.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from penstock.wal.group_recovery import GroupRecovery, RecoveredGroup, WalCheckpoint, WalEntry
from penstock.wal.wal_reading import WalPiece, cut_tail, proven_end, read_pieces
from penstock.wal.wal_records import WalKind, WalRecord, decode_image


class WalPosition(NamedTuple):
    """A place in the log. segment: 0 = before all."""

    segment: int = 0
    offset: int = 0


class WalDamage(NamedTuple):
    """A damaged place, for the log file. record: what was there, without its payload; None = unknown."""

    segment: int
    offset: int
    end: int
    record: WalRecord | None


class WalRecovery(NamedTuple):
    """The log. groups: by number. end: where the log ends, which the next segment names. newest: the highest
    number of a segment, also of one without contents. next_group: higher than every number of a group that a
    record names. entries_in: of each segment, the highest index of each group's entries in it: it may go when
    no group needs these. lost_groups: numbers of groups of which nothing else is known. may_lack_groups: more
    groups may be lost, and the owner has to treat every one that it knows and the log does not as damaged; so
    it stays until the owner has done that. is_end_lost: the log ends before the mark. term_limit: see
    recover_log()."""

    groups: dict[int, RecoveredGroup]
    end: WalPosition
    newest: int
    next_group: int
    entries_in: dict[int, dict[int, int]]
    damages: tuple[WalDamage, ...]
    lost_groups: tuple[int, ...]
    may_lack_groups: bool
    is_end_lost: bool
    term_limit: int


class _Segment(NamedTuple):
    """A segment of the chain. is_begun: its beginning was synced, with the state of every group. follows_gap:
    what was before it is not known for certain."""

    number: int
    pieces: list[WalPiece]
    end: int
    is_begun: bool
    follows_gap: bool


def recover_log(segments: Mapping[int, bytes], mark: WalPosition, term_limit: int) -> WalRecovery:
    """Recovers a log. segments: their bytes by number. mark: up to where the log was synced at least.
    term_limit: no record has a higher term. Raises StoreFormatError for a log of a newer version."""
    chain = _chain(segments, mark)
    fold = _LogFold()
    is_end_lost = False
    for one in chain:
        fold.segment(one)
        if one.number == mark.segment and one.end < mark.offset:
            # At this place, not at the log's end: the next start may have begun a segment and have stopped
            # before its beginning said of all groups that they are damaged.
            is_end_lost = True
            fold.lose_all()
    end = WalPosition(chain[-1].number, chain[-1].end) if chain else WalPosition()
    if end.segment < mark.segment:
        is_end_lost = True
        fold.lose_all()
    groups = {number: one.result(term_limit) for number, one in fold.groups.items() if one.name}
    lost = tuple(sorted(number for number, one in fold.groups.items() if not one.name))
    entries_in = {number: fold.entries_in.get(number, {}) for number in segments}
    return WalRecovery(
        groups, end, max(segments, default=0), fold.next_group, entries_in, tuple(fold.damages), lost,
        fold.may_lack_groups or bool(lost), is_end_lost, term_limit,
    )  # fmt: skip


def _chain(segments: Mapping[int, bytes], mark: WalPosition) -> list[_Segment]:
    """The segments that belong to the log, the oldest first. One that no later one names was being made when
    the server stopped, and nothing in it was used."""
    chain: list[_Segment] = []
    wanted: int | None = None  # the number before the last one found, None if that one does not say
    stated_end: int | None = None
    for number in sorted(segments, reverse=True):
        if wanted is not None and number > wanted:
            continue
        is_missing = wanted is not None and wanted != number
        if is_missing and chain:
            chain[-1] = chain[-1]._replace(follows_gap=True)
        pieces = read_pieces(segments[number], number)
        proven = proven_end(pieces, mark.offset if mark.segment == number else 0)
        if stated_end is not None and not is_missing:
            pieces = [one for one in pieces if one.offset < stated_end]
            end = stated_end
        else:
            pieces, end = cut_tail(pieces, proven)
        if not pieces and not chain and mark.segment != number:
            continue
        head = pieces[0].record if pieces and pieces[0].offset == 0 else None
        is_headed = head is not None and head.kind is WalKind.SEGMENT
        chain.append(_Segment(number, pieces, end, is_headed and proven > 0, not is_headed))
        wanted, stated_end = (head.previous, head.index) if head and is_headed else (None, None)
    return chain[::-1]


class _LogFold:
    """The groups while the records are read in their order."""

    def __init__(self) -> None:
        self.groups: dict[int, GroupRecovery] = {}
        self.entries_in: dict[int, dict[int, int]] = {}
        self.damages: list[WalDamage] = []
        self.may_lack_groups = False
        self.next_group = 1

    def segment(self, segment: _Segment) -> None:
        if segment.follows_gap:
            self.lose_all()
        if segment.is_begun:
            self.may_lack_groups = False  # its beginning names all of them
        before = set(self.groups)
        highest: dict[int, int] = defaultdict(int)
        at = 0
        for piece in segment.pieces:
            if piece.record is None:
                self.lose_all()
            else:
                self._record(piece.record, is_whole=piece.is_whole)
                if piece.record.kind in (WalKind.ENTRY, WalKind.COPIED):
                    group = piece.record.group
                    highest[group] = max(highest[group], piece.record.index)
            if not piece.is_whole:
                self.damages.append(WalDamage(segment.number, piece.offset, piece.end, piece.record))
            at = piece.end
        if at < segment.end:
            self.damages.append(WalDamage(segment.number, at, segment.end, None))
            self.lose_all()
        self.entries_in[segment.number] = dict(highest)
        if segment.is_begun and not self.may_lack_groups:
            records = [one.record for one in segment.pieces if one.record is not None]
            named = {one.group for one in records if one.kind is WalKind.GROUP}
            for number in before - named:  # the record of its removal is lost
                self.groups.pop(number, None)

    def lose_all(self) -> None:
        """Records of unknown groups are lost."""
        self.may_lack_groups = True
        for one in self.groups.values():
            one.note_damage()

    def _record(self, record: WalRecord, *, is_whole: bool) -> None:
        if record.kind is WalKind.SEGMENT:
            self.may_lack_groups = self.may_lack_groups or bool(record.term)
            return
        if record.kind is WalKind.GROUPS_KNOWN:
            self.may_lack_groups = False
            return
        self.next_group = max(self.next_group, record.group + 1)
        if record.kind is WalKind.REMOVED:
            self.groups.pop(record.group, None)
            return
        group = self.groups.get(record.group)
        if group is None:
            group = self.groups[record.group] = GroupRecovery(record.group)
        _APPLY[record.kind](group, record, is_whole)
        if record.kind is WalKind.COPIED and group.is_copied:
            for one in self.entries_in.values():
                one.pop(record.group, None)


def _apply_image(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    image = decode_image(record.payload) if is_whole else None
    if image is None:
        group.note_damage()
    else:
        group.image(record.term, (record.index, record.previous), image, is_damaged=bool(record.detail))


def _apply_entry(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    entry = WalEntry(record.index, record.term, record.detail, record.payload)
    group.entry(entry, record.previous, is_whole=is_whole)


def _apply_copied(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    if is_whole:  # else the original holds, or is missed
        group.copied(WalEntry(record.index, record.term, record.detail, record.payload), record.previous)


def _apply_hard_state(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    group.hard_state(record.term, record.payload.decode("utf-8", "surrogateescape") if is_whole else None)


def _apply_checkpoint(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    if is_whole:  # else the checkpoint before it still holds: the owner's state is durable further than that
        group.checkpoint(WalCheckpoint(record.index, record.term, record.previous, record.payload))


def _apply_installed(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    if is_whole:
        group.installed(WalCheckpoint(record.index, record.term, record.previous, record.payload))
    else:
        group.installed_unknown(record.index, record.term)


def _apply_recovered(group: GroupRecovery, record: WalRecord, is_whole: bool) -> None:
    group.set_recovered()


_APPLY = {
    WalKind.GROUP: _apply_image,
    WalKind.ENTRY: _apply_entry,
    WalKind.HARD_STATE: _apply_hard_state,
    WalKind.CHECKPOINT: _apply_checkpoint,
    WalKind.INSTALLED: _apply_installed,
    WalKind.RECOVERED: _apply_recovered,
    WalKind.COPIED: _apply_copied,
}
