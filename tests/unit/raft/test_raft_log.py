"""The log and the membership against dumb models."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import Entry, EntryKind, RaftSnapshot
from tests.support.raft_groups import entry

FIRST = RaftSnapshot(0, 0, Membership(("a",)))
TERMS = st.lists(st.integers(1, 4), max_size=12).map(sorted)


class LogModel(RuleBasedStateMachine):
    """A log beside a dictionary of terms."""

    def __init__(self) -> None:
        super().__init__()
        self.log = RaftLog(FIRST)
        self.terms: dict[int, int] = {}  # of all entries, removed ones too
        self.last = self.committed = self.durable = self.applied = self.snapshot = self.handed = 0
        self.disk: dict[int, int] = {}

    @property
    def last_term(self) -> int:
        return self.terms.get(self.last, 0)

    @rule(more=st.integers(0, 2), count=st.integers(1, 3))
    def a_leader_appends(self, more: int, count: int) -> None:
        term = max(1, self.last_term + more)
        self.log.append([entry(self.last + 1 + i, term) for i in range(count)])
        self.terms.update({self.last + 1 + i: term for i in range(count)})
        self.last += count

    @rule(back=st.integers(0, 5), count=st.integers(0, 4), data=st.data())
    def a_follower_merges(self, back: int, count: int, data: st.DataObject) -> None:
        prev = max(self.committed, self.last - back)
        kept = data.draw(st.integers(0, count)) if prev + count <= self.last else 0
        terms = [self.terms[prev + 1 + i] for i in range(kept)]
        for _ in range(count - kept):
            terms.append(max(terms[-1] if terms else 1, self.terms.get(prev, 1), self.last_term) + 1)
        agreed = self.log.merge(prev, [entry(prev + 1 + i, term) for i, term in enumerate(terms)])
        assert agreed == prev + count
        if any(
            self.terms.get(prev + 1 + i) != term or prev + 1 + i > self.last for i, term in enumerate(terms)
        ):
            first = next(
                i
                for i, term in enumerate(terms)
                if prev + 1 + i > self.last or self.terms[prev + 1 + i] != term
            )
            self.last = prev + count
            self.terms.update({prev + 1 + i: term for i, term in enumerate(terms)})
            self.handed = min(self.handed, prev + first)
            self.durable = min(self.durable, prev + first)

    @rule()
    def it_goes_to_disk(self) -> None:
        entries = self.log.take_unsaved()
        assert [(one.index, one.term) for one in entries] == [
            (i, self.terms[i]) for i in range(self.handed + 1, self.last + 1)
        ]
        if entries:
            self.disk = {i: term for i, term in self.disk.items() if i < entries[0].index}
            self.disk.update({one.index: one.term for one in entries})
            self.handed = self.last
            self.log.synced(entries[-1].index, entries[-1].term)
            self.durable = self.last

    @precondition(lambda self: self.last > self.committed)
    @rule(data=st.data())
    def it_commits(self, data: st.DataObject) -> None:
        self.committed = data.draw(st.integers(self.committed + 1, self.last))
        assert self.log.commit(self.committed)

    @rule()
    def it_applies(self) -> None:
        taken = self.log.take_committed(1 << 30)
        end = max(self.applied, min(self.committed, self.durable))
        assert [(one.index, one.term) for one in taken] == [
            (i, self.terms[i]) for i in range(self.applied + 1, end + 1)
        ]
        self.applied = end

    @rule(keep=st.integers(0, 3))
    def it_is_compacted(self, keep: int) -> None:
        if self.applied > self.snapshot:
            self.snapshot = self.applied
            term = self.terms[self.snapshot]
            snapshot = RaftSnapshot(self.snapshot, term, FIRST.membership)
            self.log.compact(snapshot, self.snapshot + 1 - keep)

    @rule(ahead=st.integers(1, 4))
    def it_is_restored(self, ahead: int) -> None:
        index = self.committed + ahead
        term = self.terms[index] if index <= self.last and ahead % 2 else self.last_term + 1
        agrees = index <= self.last and self.terms[index] == term
        self.log.restore(RaftSnapshot(index, term, FIRST.membership))
        self.last = self.last if agrees else index
        self.terms[index] = term
        self.durable = max(index, self.durable if agrees else 0)
        self.handed = max(index, self.handed if agrees else 0)
        self.snapshot = self.committed = self.applied = index

    @invariant()
    def it_equals_the_model(self) -> None:
        log = self.log
        assert (log.last_index, log.last_term) == (self.last, self.last_term)
        assert log.commit_index == self.committed
        assert (log.durable_index, log.applied_index) == (max(self.durable, self.snapshot), self.applied)
        for index in range(self.snapshot, self.last + 1):
            assert log.term_at(index) == self.terms.get(index, 0)
        assert log.term_at(self.last + 1) is None


TestLogAgainstItsModel = LogModel.TestCase


@given(TERMS, st.integers(0, 14), st.integers(0, 5))
def test_the_last_agreement_is_the_last_entry_of_at_most_that_term(
    terms: list[int], index: int, term: int
) -> None:
    log = RaftLog(FIRST, [entry(i + 1, one) for i, one in enumerate(terms)])
    expected = max(i for i in range(min(index, len(terms)) + 1) if i == 0 or terms[i - 1] <= term)
    assert log.last_agreement(index, term) == (expected, terms[expected - 1] if expected else 0)


@given(TERMS, TERMS)
def test_up_to_date_is_the_order_of_term_then_length(own: list[int], other: list[int]) -> None:
    log = RaftLog(FIRST, [entry(i + 1, one) for i, one in enumerate(own)])
    last = (other[-1] if other else 0, len(other))
    assert log.is_up_to_date(last[1], last[0]) == (last >= ((own[-1] if own else 0), len(own)))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_the_quorum_value_is_reached_by_a_majority_and_the_next_is_not(values: list[int]) -> None:
    voters = tuple(f"v{i}" for i in range(len(values)))
    value = Membership(voters).quorum_value(dict(zip(voters, values, strict=True)))
    assert 2 * sum(one >= value for one in values) > len(values)
    assert 2 * sum(one > value for one in values) <= len(values)


@pytest.mark.parametrize("count", range(1, 6))
def test_majorities_of_memberships_that_differ_by_one_change_have_a_common_member(count: int) -> None:
    before = Membership(tuple("abcde"[:count]), ("l",))
    changes = [(ChangeKind.PROMOTE, "l"), *((ChangeKind.REMOVE, name) for name in before.voters)]
    for kind, name in changes:
        after = before.changed(kind, name)
        if after is None:
            assert count == 1
            continue
        for old in (set(one) for size in range(7) for one in combinations(before.voters, size)):
            for new in (set(one) for size in range(7) for one in combinations(after.voters, size)):
                assert not before.is_quorum(old) or not after.is_quorum(new) or old & new


@pytest.mark.parametrize("data", [b"", b"[]", b"[[1],[]]", b'{"a":1}', b"[[],[],[]]", b"\xff"])
def test_what_is_no_membership_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Membership.decode(data)


def test_the_membership_in_force_is_that_of_the_last_entry_and_goes_with_it() -> None:
    log = RaftLog(FIRST)
    for i, names in enumerate(["ab", "abc"]):
        log.append([Entry(i + 1, 1, EntryKind.MEMBERSHIP, Membership(tuple(names)).encode())])
    assert log.membership.voters == ("a", "b", "c")
    assert (log.membership_at(0), log.membership_at(1).voters) == (FIRST.membership, ("a", "b"))
    log.merge(1, [entry(2, 2)])
    assert log.membership.voters == ("a", "b")


def test_a_committed_entry_is_never_replaced() -> None:
    log = RaftLog(FIRST, [entry(1, 1), entry(2, 1)])
    log.commit(2)
    with pytest.raises(AssertionError, match="committed entry contradicts"):
        log.merge(1, [entry(2, 2)])


def test_entries_are_cut_to_a_size_but_there_is_one_at_least() -> None:
    log = RaftLog(FIRST, [entry(i, 1, b"x" * 68) for i in range(1, 6)])
    assert [len(log.entries_from(1, size)) for size in (1, 100, 199, 200, 1000)] == [1, 1, 1, 2, 5]
