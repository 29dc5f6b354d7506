"""A group whose majority is lost for good goes on with fewer members, for as long as an operator says."""

from __future__ import annotations

import pytest

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_replica import RescueProblem, Role
from tests.support.raft_groups import ELECTION_NS, RaftGroup

pytestmark = pytest.mark.feature("cluster.administration")


def bereft(voters: str = "abc", left: str = "a") -> RaftGroup:
    """A group with one command whose other members are gone, as those that are left know by now."""
    group = RaftGroup(voters)
    group.elect(left[0])
    group.propose(left[0], b"x")
    group.isolate(*(one for one in voters if one not in left))
    group.pass_time(4 * ELECTION_NS)
    assert not [one for one in group.leaders() if one in left]
    return group


def test_one_member_goes_on_and_removes_those_that_are_lost() -> None:
    group = bereft()
    assert group["a"].rescue(1, group.now) is None
    group.pass_time(ELECTION_NS)
    assert group["a"].role is Role.LEADER
    group.propose("a", b"y")
    assert group.commands("a") == [b"x", b"y"]
    assert group["a"].read_index(7)
    group.pass_time(ELECTION_NS)
    assert 7 in dict(group.members["a"].reads)
    for lost in "bc":
        group["a"].change_membership(ChangeKind.REMOVE, lost, group.now)
        group.settle()
    group["a"].end_rescue(group.now)
    group.propose("a", b"z")
    group.pass_time(4 * ELECTION_NS)
    assert (group["a"].role, group.commands("a")) == (Role.LEADER, [b"x", b"y", b"z"])
    assert group["a"].quorum_needed == 1


def test_a_leader_without_a_majority_steps_down_when_the_rescue_ends() -> None:
    group = bereft()
    group["a"].rescue(1, group.now)
    group.pass_time(ELECTION_NS)
    group["a"].end_rescue(group.now)
    assert group["a"].quorum_needed == 2
    group.propose("a", b"never acknowledged")
    group.pass_time(4 * ELECTION_NS)
    assert group["a"].role is not Role.LEADER
    assert group.commands("a") == [b"x"]


def test_those_that_are_left_agree_as_many_as_were_asked_for() -> None:
    group = bereft("abcde", "ab")
    for name in "ab":
        assert group[name].rescue(2, group.now) is None
    group.pass_time(3 * ELECTION_NS)
    [leader] = [one for one in group.leaders() if one in "ab"]
    group.propose(leader, b"y")
    assert group.commands("a") == group.commands("b") == [b"x", b"y"]
    other = "a" if leader == "b" else "b"
    group.isolate(leader)
    group.propose(leader, b"alone")
    assert group.commands(leader) == [b"x", b"y"], "two are needed"
    group.pass_time(4 * ELECTION_NS)
    assert group[other].role is not Role.LEADER


@pytest.mark.parametrize("quorum", [0, -1, 3])
def test_the_quorum_can_only_be_lowered_and_not_to_nothing(quorum: int) -> None:
    group = bereft()
    assert group["a"].rescue(quorum, group.now) is RescueProblem.BAD_QUORUM
    group["a"].rescue(1, group.now)
    assert group["a"].rescue(2, group.now) is RescueProblem.BAD_QUORUM, "it is one now"


def test_a_member_that_knows_a_leader_needs_no_rescue() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"x")
    for name in "abc":
        assert group[name].rescue(1, group.now) is RescueProblem.LEADER_KNOWN


def test_a_member_that_may_not_vote_is_not_rescued() -> None:
    group = RaftGroup("abc", learners="d")
    assert group["d"].rescue(1, group.now) is RescueProblem.NOT_VOTING
    group.members["a"].start(group.now, is_recovering=True)
    assert group["a"].rescue(1, group.now) is RescueProblem.NOT_VOTING


def test_a_member_without_any_data_is_not_rescued() -> None:
    group = RaftGroup("abc")
    assert group["a"].rescue(1, group.now) is RescueProblem.EMPTY_LOG


def test_a_lowered_quorum_counts_voters_and_is_never_more_than_a_majority() -> None:
    membership = Membership(("a", "b", "c", "d", "e"), ("f",))
    assert [membership.quorum(lowered) for lowered in (0, 1, 2, 3, 4)] == [3, 1, 2, 3, 3]
    assert membership.is_quorum("ab", 2)
    assert not membership.is_quorum("af", 2)
    values = {"a": 9, "b": 8, "c": 7, "f": 99}
    assert [membership.quorum_value(values, lowered) for lowered in (0, 1, 2)] == [7, 9, 8]
