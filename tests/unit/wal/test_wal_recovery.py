"""Recovery of the write-ahead log: from whole, torn and damaged bytes, beside a model of lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from penstock.errors import MisuseError, StoreFormatError
from penstock.wal import wal_records
from penstock.wal.group_recovery import RecoveredGroup
from penstock.wal.wal_reading import read_pieces
from penstock.wal.wal_records import WAL_FRAME_BYTES, WalKind, WalRecord, encode_record
from penstock.wal.wal_recovery import WalPosition, WalRecovery, recover_log
from tests.support.wal_model import TERM_LIMIT, LogModel, some_log


class WalMachine(RuleBasedStateMachine):
    """A log that is written, rolled and truncated; whatever was done, recovery gives the model."""

    def __init__(self) -> None:
        super().__init__()
        self.log = LogModel()

    @rule()
    def a_group_begins(self) -> None:
        self.log.begin()

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data(), more=st.integers(1, 2), vote=st.sampled_from(("", "a", "b")))
    def it_votes(self, data: st.DataObject, more: int, vote: str) -> None:
        self.log.vote(self.some(data), more, vote)

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data(), back=st.integers(0, 3), count=st.integers(0, 4), payload=st.binary(max_size=20))
    def it_appends(self, data: st.DataObject, back: int, count: int, payload: bytes) -> None:
        self.log.append(self.some(data), back, count, payload)

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data(), back=st.integers(0, 3), keep=st.integers(0, 3))
    def it_reaches_a_checkpoint(self, data: st.DataObject, back: int, keep: int) -> None:
        self.log.checkpoint(self.some(data), back, keep)

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data())
    def it_is_copied(self, data: st.DataObject) -> None:
        self.log.copy(self.some(data))

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data(), more=st.integers(1, 5))
    def it_installs_a_state(self, data: st.DataObject, more: int) -> None:
        self.log.install(self.some(data), more)

    @precondition(lambda self: self.log.groups)
    @rule(data=st.data())
    def it_is_removed(self, data: st.DataObject) -> None:
        self.log.remove(self.some(data))

    @rule()
    def the_log_is_synced(self) -> None:
        self.log.sync()

    @rule()
    def a_segment_begins(self) -> None:
        self.log.roll()

    @rule()
    def segments_that_no_group_needs_are_removed(self) -> None:
        oldest = self.log.oldest_needed()
        self.log.segments = {n: data for n, data in self.log.segments.items() if n >= oldest}

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.log.groups)))

    @invariant()
    def recovery_gives_the_model(self) -> None:
        found = self.log.recover()
        assert found.groups == self.log.expected()
        assert found.end == self.log.end
        assert (found.damages, found.lost_groups) == ((), ())
        assert not found.may_lack_groups
        assert not found.is_end_lost


WalMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_recovery_gives_what_was_written = WalMachine.TestCase


def copied_log() -> tuple[LogModel, int]:
    """A log whose last write copies the entries of a group, and where that begins."""
    log = LogModel()
    a, b = log.begin(), log.begin()
    log.append(a, 0, 3, b"first")
    log.checkpoint(a, 2, 0)
    log.append(b, 0, 2)
    log.roll()
    log.append(a, 1, 2, b"second")
    log.sync()
    log.roll()
    start = log.end.offset
    log.copy(a)
    return log, start


def test_a_torn_copy_loses_nothing() -> None:
    log, start = copied_log()
    expected = log.expected()
    whole = log.segments[log.number]
    for end in range(start, len(whole)):
        log.segments[log.number] = whole[:end]
        found = log.recover()
        entries = [one for one in found.groups[1].entries if one.index > found.groups[1].checkpoint.index]
        assert tuple(entries) == expected[1].entries, end
        assert (found.groups[2], found.groups[1].is_damaged) == (expected[2], False)
        assert found.entries_in[2][1] == 4, "the older segments stay until all is copied"


def test_a_flipped_bit_in_a_copy_loses_nothing_that_is_there_twice() -> None:
    log, start = copied_log()
    log.sync()
    whole = bytes(log.segments[log.number])
    for bit in range(8 * start, 8 * len(whole)):
        log.segments[log.number] = bytearray(whole)
        log.segments[log.number][bit // 8] ^= 1 << bit % 8
        found = log.recover().groups[1]
        entries = [one for one in found.entries if one.index > found.checkpoint.index]
        assert tuple(entries) == log.expected()[1].entries, bit


def test_entries_after_a_copy_replace_it() -> None:
    log, _ = copied_log()
    log.append(1, 2, 1, b"third")
    log.sync()
    assert log.recover().groups == log.expected()
    assert log.oldest_needed() == 1, "the other group"
    log.copy(2)
    log.sync()
    assert log.oldest_needed() == 3
    del log.segments[1], log.segments[2]
    assert log.recover().groups == log.expected()


def check_consistent(log: LogModel, found: WalRecovery) -> None:
    """Whatever is damaged: a group that does not say so is whole, and no group has a log that never was."""
    expected = log.expected()
    for number, group in found.groups.items():
        if not group.is_damaged and number in expected:
            check_nothing_lost(group, expected[number])
        assert group.vote is not None or group.is_damaged
        check_history(log, group)
    if not found.may_lack_groups:
        assert found.groups.keys() == expected.keys()


def check_nothing_lost(group: RecoveredGroup, expected: RecoveredGroup) -> None:
    """The last checkpoint may be lost, if the entries since the one before are there; and entries that a
    checkpoint covers may be, which are kept for others only."""
    at = expected.checkpoint.index
    assert group.checkpoint.index <= at
    assert (group.term, group.vote, group.last) == (expected.term, expected.vote, expected.last)
    after = [one for one in group.entries if one.index > at]
    assert after == [one for one in expected.entries if one.index > at]


def check_history(log: LogModel, group: RecoveredGroup) -> None:
    """Each entry followed what it follows now when it was written."""
    entries = {one.index: (one.index, one.term) for one in group.entries}
    before = {group.checkpoint.index: (group.checkpoint.index, group.checkpoint.term), **entries}
    for entry in group.entries:
        if entry.index - 1 in before:
            assert (before[entry.index - 1], entry) in log.written[group.number]


def flipped(data: bytearray, bit: int) -> bytearray:
    copy = bytearray(data)
    copy[bit // 8] ^= 1 << bit % 8
    return copy


def flips(log: LogModel) -> Iterator[tuple[int, int]]:
    """Flips one bit of each byte, one after the other: (segment, offset)."""
    for number, data in list(log.segments.items()):
        for at in range(len(data)):
            log.segments[number] = flipped(data, at * 8 + at % 8)
            yield number, at
        log.segments[number] = data


def test_a_flipped_bit_costs_at_most_its_record_and_marks_its_group_only() -> None:
    log = some_log()
    expected = log.expected()
    payloads = {
        (number, at): piece.record
        for number, data in log.segments.items()
        for piece in read_pieces(bytes(data), number)
        for at in range(piece.offset + WAL_FRAME_BYTES, piece.end - WAL_FRAME_BYTES)
    }
    damaged = 0
    for number, at in flips(log):
        found = log.recover()
        record = payloads.get((number, at))
        if record is None:  # in a head or tail: the other one has the same
            assert (found.groups, found.damages) == (expected, ()), (number, at)
            continue
        [damage] = found.damages
        assert damage.record is not None
        assert structs.replace(damage.record, payload=record.payload) == record
        check_consistent(log, found)
        others = {n: one for n, one in found.groups.items() if n != record.group}
        assert others == {n: one for n, one in expected.items() if n != record.group}
        damaged += any(one.is_damaged for one in found.groups.values())
    assert damaged > 100


def test_a_tail_that_is_torn_at_any_byte_ends_after_its_last_whole_record() -> None:
    log = some_log()
    marked, number = log.mark, log.number
    whole = {log.end.offset: log.expected()}
    for write in (
        lambda: log.vote(1, 1, "b"),
        lambda: log.append(1, 0, 1, b"torn"),
        lambda: log.vote(3, 1, "b"),
        lambda: log.append(3, 1, 1, b"replaces"),
        lambda: log.checkpoint(2, 0, 0),
        lambda: log.install(2, 4),
        lambda: log.remove(3),
    ):
        write()
        whole[log.end.offset] = log.expected()
    data = bytes(log.segments[number])
    for at in range(marked.offset, len(data)):
        for rest in (b"", bytes(len(data) - at), b"\xf5WAL" * 30):
            log.segments[number] = bytearray(data[:at] + rest)
            found = log.recover(mark=marked)
            # A record needs no tail if its place is there.
            complete = at + WAL_FRAME_BYTES if rest else at
            last = max(end for end in whole if end <= complete)
            assert (found.end, found.damages) == ((number, last), ())
            assert found.groups == whole[last], at


def test_an_unsynced_write_whose_first_part_is_missing_ends_there() -> None:
    log = some_log()
    expected, start = log.expected(), log.end.offset
    log.append(1, 0, 3, b"not synced")
    [first, *_] = [
        one for one in read_pieces(bytes(log.segments[log.number]), log.number) if one.offset == start
    ]
    log.segments[log.number][start : first.end] = bytes(first.end - start)
    found = log.recover(mark=WalPosition(log.number, start))
    assert (found.groups, found.end.offset, found.damages) == (expected, start, ())


def test_damage_before_synced_bytes_is_reported_without_a_mark_too() -> None:
    log = some_log()
    log.append(1, 0, 1, b"synced")
    at = log.end.offset - WAL_FRAME_BYTES - 1
    log.sync()
    log.append(2, 0, 1, b"shows that the first was synced")
    log.segments[log.number][at] ^= 1
    found = log.recover(mark=WalPosition())
    [damage] = found.damages
    assert damage.record is not None
    assert (damage.record.group, damage.record.index) == (1, log.groups[1].last[0])
    assert [number for number, one in found.groups.items() if one.is_damaged] == [1]


def test_bytes_of_which_nothing_is_known_mark_every_group_as_damaged_with_an_unknown_vote() -> None:
    log = some_log()
    data = log.segments[log.number]
    pieces = read_pieces(bytes(data), log.number)
    data[pieces[5].offset : pieces[7].end] = bytes(pieces[7].end - pieces[5].offset)
    found = log.recover()
    assert found.may_lack_groups
    assert found.groups.keys() == log.groups.keys()
    for group in found.groups.values():
        assert (group.is_damaged, group.vote, group.term) == (True, None, TERM_LIMIT)
        check_history(log, group)


def test_damage_in_an_older_segment_concerns_only_groups_whose_entries_it_took() -> None:
    log = some_log()
    data = log.segments[2]
    pieces = read_pieces(bytes(data), 2)
    [first, *_] = [one for one in pieces if one.record and one.record.group == 3 and one.record.index == 1]
    data[first.offset : first.end] = bytes(first.end - first.offset)
    found = log.recover()
    expected = log.expected()
    assert [number for number, one in found.groups.items() if one.is_damaged] == [3]
    assert (found.groups[1], found.groups[2]) == (expected[1], expected[2])
    assert (found.groups[3].term, found.groups[3].vote) == (expected[3].term, expected[3].vote)
    assert not found.may_lack_groups


@pytest.mark.parametrize(("lost", "damaged"), [(1, set()), (2, {1, 3})])
def test_a_lost_segment_damages_the_groups_that_need_its_entries(lost: int, damaged: set[int]) -> None:
    log = some_log()
    del log.segments[lost]
    found = log.recover()
    check_consistent(log, found)
    assert {number for number, one in found.groups.items() if one.is_damaged} == damaged


def test_a_log_that_ends_before_its_mark_is_damaged_in_every_group() -> None:
    log = some_log()
    del log.segments[log.number][-1:]
    found = log.recover()
    assert found.is_end_lost
    assert all(one.is_damaged and one.vote is None for one in found.groups.values())
    del log.segments[log.number]
    assert log.recover().is_end_lost


def test_a_segment_whose_beginning_is_torn_changes_nothing() -> None:
    log = some_log()
    mark, end, expected = log.mark, log.end, log.expected()
    log.roll()
    data = bytes(log.segments[log.number])
    for at in range(len(data)):
        log.segments[log.number] = bytearray(data[:at])
        found = log.recover(mark=mark)
        assert (found.groups, found.damages, found.newest) == (expected, (), log.number)
        assert found.end in (end, (log.number, found.end.offset))
        assert not found.is_end_lost


def test_a_group_whose_beginning_is_lost_is_named_by_its_number() -> None:
    log = LogModel()
    log.sync()
    start = log.end.offset
    log.begin()
    log.sync()
    log.segments[log.number][start + WAL_FRAME_BYTES] ^= 1
    found = log.recover()
    assert (found.groups, found.lost_groups, found.may_lack_groups) == ({}, (1,), True)


def test_a_group_whose_removal_is_lost_ends_with_the_next_segment() -> None:
    log = some_log()
    start = log.end.offset
    log.remove(3)
    log.sync()
    log.segments[log.number][start:] = bytes(2 * WAL_FRAME_BYTES)
    assert log.recover().groups[3].is_damaged
    log.roll()
    log.vote(1, 1, "a")
    assert log.recover().groups.keys() == {1, 2}


def test_a_log_inside_a_payload_is_not_read() -> None:
    inner = bytes(some_log().segments[1])
    log = LogModel()
    number = log.begin()
    log.append(number, 0, 1, inner)
    log.sync()
    start = read_pieces(bytes(log.segments[1]), 1)[-1].offset
    log.segments[1][start + 5] ^= 1
    log.segments[1][-5] ^= 1
    pieces = read_pieces(bytes(log.segments[1]), 1)
    assert [one.record for one in pieces if one.offset >= start] == [None]


def test_a_log_of_a_newer_version_is_refused() -> None:
    head = WalRecord(WalKind.SEGMENT, detail=wal_records.WAL_FORMAT + 1)
    with pytest.raises(StoreFormatError, match="start the version that wrote it"):
        recover_log({1: encode_record(head, 1, 0)}, WalPosition(), 0)


def test_a_payload_that_no_record_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_records, "PAYLOAD_BYTES_MAX", 3)
    with pytest.raises(MisuseError, match="split it"):
        encode_record(WalRecord(WalKind.ENTRY, payload=b"four"), 1, 0)


DAMAGE = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 1 << 16), st.integers(1, 300), st.binary(max_size=3)),
    max_size=4,
)


@given(DAMAGE)
@settings(max_examples=300, deadline=None)
def test_no_damage_gives_a_log_that_never_was(damage: list[tuple[int, int, int, bytes]]) -> None:
    log = some_log()
    for number, place, length, data in damage:
        segment = log.segments[number]
        at = place % len(segment)
        end = min(at + length, len(segment))
        segment[at:end] = (data * 300)[: end - at].ljust(end - at, b"\0")
    check_consistent(log, log.recover())
