"""Entries that leave after the leader's own write, with the promise that a member's write commits them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import Append, AppendReply
from penstock.raft.raft_options import MILLISECOND_NS
from tests.support.raft_groups import HEARTBEAT_NS, OPTIONS, RaftGroup

WRITE_FIRST = replace(OPTIONS, write_first_bytes_max=1000)


@pytest.fixture
def group() -> RaftGroup:
    group = RaftGroup("abc", options=WRITE_FIRST)
    group.elect("a")
    group.sent.clear()
    return group


def appends(group: RaftGroup, to: str = "") -> list[Append]:
    return [one for one in group.sent if isinstance(one, Append) and to in ("", one.to)]


def test_a_command_costs_each_member_one_message_and_one_answer(group: RaftGroup) -> None:
    group.propose("a", b"x")
    assert [type(one) for one in group.sent] == [Append, Append, AppendReply, AppendReply]
    assert {name: one.applied[-1].data for name, one in group.members.items()} == dict.fromkeys("abc", b"x")


def test_without_the_option_a_message_about_the_commit_follows() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.sent.clear()
    group.propose("a", b"x")
    assert len(appends(group)) == 4


def test_entries_wait_for_the_leaders_disk_and_a_member_commits_with_its_own_write(group: RaftGroup) -> None:
    group.members["a"].is_slow = group.members["b"].is_slow = True
    index = group.propose("a", b"x")
    assert appends(group) == []
    group.sync("a")
    group.cut |= {("c", "a"), ("a", "c")}
    group.settle()
    assert [one.commit for one in appends(group, "b")] == [index]
    assert group["b"].log.commit_index == index - 1
    group.cut.add(("b", "a"))  # the leader does not hear of it
    group.sync("b")
    group.settle()
    assert group["b"].log.commit_index == group["b"].log.applied_index == index
    assert group["a"].log.commit_index == index - 1


def test_more_bytes_than_that_do_not_wait(group: RaftGroup) -> None:
    group.members["a"].is_slow = True
    group.propose("a", b"x" * 1001)
    assert {one.to for one in appends(group)} == {"b", "c"}


def test_a_leader_whose_disk_does_not_answer_sends_with_the_next_heartbeat(group: RaftGroup) -> None:
    group.members["a"].is_slow = True
    index = group.propose("a", b"x")
    group.pass_time(HEARTBEAT_NS + 50 * MILLISECOND_NS)
    assert {name: group[name].log.durable_index for name in "bc"} == {"b": index, "c": index}


def test_a_leader_that_hands_over_sends_at_once(group: RaftGroup) -> None:
    group.members["a"].is_slow = True
    group.propose("a", b"x")
    assert group["a"].transfer("b", group.now)
    group.settle()
    assert {one.to for one in appends(group) if one.entries} == {"b", "c"}


def test_nothing_is_promised_where_two_are_no_majority() -> None:
    group = RaftGroup("abcde", options=WRITE_FIRST)
    group.elect("a")
    group.sent.clear()
    index = group.propose("a", b"x")
    assert {one.commit for one in appends(group) if one.entries} == {index - 1}
    assert {one.applied[-1].data for one in group.members.values()} == {b"x"}


def test_a_learner_gets_no_promise(group: RaftGroup) -> None:
    group.add("l")
    group["a"].change_membership(ChangeKind.ADD_LEARNER, "l", group.now)
    group.settle()
    assert group["l"].log.membership == Membership(("a", "b", "c"), ("l",))
    group.isolate("b", "c")
    index = group.propose("a", b"x")
    assert group["l"].log.last_index == index
    assert group["l"].log.commit_index == index - 1


def test_a_read_waits_for_what_a_member_may_have_committed(group: RaftGroup) -> None:
    group.cut |= {("b", "a"), ("c", "a")}
    index = group.propose("a", b"x")
    assert group["b"].log.applied_index == index
    group.heal()
    group.drop = lambda message: isinstance(message, AppendReply)
    assert group["a"].read_index(7)
    group.collect(group.members["a"])
    assert group.members["a"].reads == []
    group.settle()
    assert group.members["a"].reads == [(7, index)]


def test_a_member_that_lost_its_log_recovers_what_it_may_have_committed(group: RaftGroup) -> None:
    group.cut |= {("b", "a"), ("c", "a")}
    index = group.propose("a", b"x")
    group.heal()
    lost = group.members["b"]
    lost.entries = lost.entries[: index - 1]
    group.isolate("c")
    lost.start(group.now, is_recovering=True)
    group.drop = lambda message: isinstance(message, Append) and bool(message.entries)
    group.pass_time(2 * HEARTBEAT_NS)
    assert group["a"].log.commit_index == index - 1
    assert group["b"].is_recovering
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert not group["b"].is_recovering
    assert group["b"].log.commit_index == index
