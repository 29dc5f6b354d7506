"""What goes beyond the paper's core: membership, reads, transfer, quiescence, recovery of a damaged log."""

from __future__ import annotations

from dataclasses import replace

from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_messages import (
    UNKNOWN_VOTE,
    Append,
    AppendReply,
    HardState,
    Heartbeat,
    HeartbeatReply,
    PreVote,
    PreVoteReply,
    TimeoutNow,
    Vote,
    VoteReply,
)
from penstock.raft.raft_replica import Role
from tests.support.raft_groups import ELECTION_NS, HEARTBEAT_NS, OPTIONS, RaftGroup

ADD, PROMOTE, REMOVE = ChangeKind.ADD_LEARNER, ChangeKind.PROMOTE, ChangeKind.REMOVE


def change(group: RaftGroup, name: str, kind: ChangeKind, member: str) -> ChangeResult:
    result = group[name].change_membership(kind, member, group.now)
    group.settle()
    return result


# --- membership


def test_a_server_joins_as_a_learner_and_is_promoted_when_it_has_the_log() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.add("d")
    group.isolate("d")
    assert change(group, "a", ADD, "d") is ChangeResult.PROPOSED
    assert change(group, "a", PROMOTE, "d") is ChangeResult.NOT_CAUGHT_UP
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("d") == [b"1"]
    assert change(group, "a", PROMOTE, "d") is ChangeResult.PROPOSED
    assert {group[name].log.membership for name in "abcd"} == {Membership(("a", "b", "c", "d"))}


def test_a_learner_does_not_count_in_a_quorum() -> None:
    group = RaftGroup("abc", learners="l")
    group.elect("a")
    group.isolate("b", "c")
    group.propose("a", b"x")
    assert group.commands("a") == []


def test_there_is_one_uncommitted_change_at_most() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    assert change(group, "a", REMOVE, "b") is ChangeResult.PROPOSED
    assert change(group, "a", REMOVE, "c") is ChangeResult.CHANGE_PENDING


def test_a_leader_that_has_committed_nothing_of_its_term_changes_no_membership() -> None:
    """The erratum of 2015: a change of an earlier leader may still be in the log of others."""
    group = RaftGroup("abc")
    group.drop = lambda message: isinstance(message, Append)
    group.elect("a")
    assert change(group, "a", REMOVE, "b") is ChangeResult.TERM_NOT_COMMITTED


def test_a_change_counts_as_soon_as_it_is_in_the_log() -> None:
    group = RaftGroup("abcd")
    group.elect("a")
    group.isolate("c", "d")
    assert change(group, "a", REMOVE, "d") is ChangeResult.PROPOSED
    assert group["a"].log.commit_index == 2  # two of three


def test_a_change_that_is_replaced_is_undone() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    change(group, "a", REMOVE, "b")
    assert group["a"].log.membership == Membership(("a", "c"))
    group.elect("b")
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group["a"].log.membership == Membership(("a", "b", "c"))


def test_a_removed_leader_leads_until_the_change_is_committed_and_names_a_successor() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    change(group, "a", REMOVE, "a")
    assert group["a"].role is Role.LEADER
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group["a"].role is Role.FOLLOWER
    assert group.leaders() in (["b"], ["c"])
    group.pass_time(5 * ELECTION_NS)
    assert group["a"].role is Role.FOLLOWER


def test_the_last_voter_cannot_be_removed_and_others_must_make_sense() -> None:
    group = RaftGroup("a", learners="l")
    group.elect("a")
    assert change(group, "a", REMOVE, "a") is ChangeResult.IMPOSSIBLE
    assert change(group, "a", REMOVE, "x") is ChangeResult.IMPOSSIBLE
    assert change(group, "a", ADD, "l") is ChangeResult.IMPOSSIBLE
    assert change(group, "l", REMOVE, "l") is ChangeResult.NOT_LEADING
    assert change(group, "a", REMOVE, "l") is ChangeResult.PROPOSED


def test_from_one_server_to_three_and_back_keeps_every_command() -> None:
    group = RaftGroup("a")
    group.elect("a")
    group.propose("a", b"1")
    for name in "bc":
        group.add(name)
        assert change(group, "a", ADD, name) is ChangeResult.PROPOSED
        group.pass_time(2 * HEARTBEAT_NS)
        assert change(group, "a", PROMOTE, name) is ChangeResult.PROPOSED
        group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("c") == [b"1"]
    for name in "bc":
        assert change(group, "a", REMOVE, name) is ChangeResult.PROPOSED
    group.isolate("a")
    group.propose("a", b"2")
    assert group.commands("a") == [b"1", b"2"]


# --- reads


def test_a_read_is_confirmed_by_a_majority_after_it_came_in() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.isolate("a")
    assert group["a"].read_index(7)
    group.settle()
    assert group.members["a"].reads == []
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.members["a"].reads == [(7, 2)]


def test_a_deposed_leader_confirms_no_read() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    group.elect("b")
    group.propose("b", b"later")
    group["a"].read_index(1)
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.members["a"].reads == []


def test_a_new_leader_confirms_reads_only_after_an_entry_of_its_term_is_committed() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.isolate("a")
    group.drop = lambda message: isinstance(message, Append)
    group.elect("b")
    group["b"].read_index(1)
    group.pass_time(HEARTBEAT_NS)
    assert group.members["b"].reads == []
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.members["b"].reads == [(1, 3)]


def test_answers_from_before_a_read_do_not_confirm_it() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.pass_time(HEARTBEAT_NS)
    late = [one for one in group.messages(HeartbeatReply) if one.to == "a"]
    group.isolate("a")
    group["a"].read_index(1)
    group.settle()
    for message in late:
        group["a"].step(message, group.now)
    group.settle()
    assert group.members["a"].reads == []


def test_the_reads_of_a_tick_share_a_round_and_a_group_of_one_needs_none() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.sent.clear()
    for i in range(10):
        group["a"].read_index(i)
    group.settle()
    assert len(group.members["a"].reads) == 10
    assert len(group.messages(Heartbeat)) == 2
    alone = RaftGroup("a")
    alone.elect("a")
    alone["a"].read_index(1)
    alone.settle()
    assert alone.members["a"].reads == [(1, 1)]


# --- transfer


def test_a_transfer_goes_to_the_named_voter_without_a_timeout() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    assert group["a"].transfer("c", group.now)
    group.settle()
    assert group.roles() == {"a": "follower 2", "b": "follower 2", "c": "leader 2"}


def test_a_transfer_waits_until_the_successor_has_the_log_and_refuses_proposals() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1")
    assert group["a"].transfer("c", group.now)
    group.settle()
    assert group.messages(TimeoutNow) == []
    assert group.propose("a", b"2") == 0
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.leaders() == ["c"]
    assert group.commands("c") == [b"1"]


def test_a_transfer_that_takes_too_long_is_given_up() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group["a"].transfer("c", group.now)
    group.propose("a", b"0")
    group.pass_time(2 * ELECTION_NS)
    assert group.propose("a", b"1") > 0
    assert group.commands("b") == [b"1"]


def test_a_transfer_to_a_learner_or_a_stranger_is_refused() -> None:
    group = RaftGroup("ab", learners="l")
    group.elect("a")
    assert not group["a"].transfer("l", group.now)
    assert not group["a"].transfer("x", group.now)
    assert not group["a"].transfer("a", group.now)
    assert not group["b"].transfer("a", group.now)


# --- quiescence


def quiet() -> RaftGroup:
    group = RaftGroup("abc", options=replace(OPTIONS, quiesce_after_ns=ELECTION_NS))
    group.elect("a")
    group.propose("a", b"1")
    group.pass_time(3 * ELECTION_NS)
    return group


def test_an_idle_group_sends_nothing_and_keeps_its_leader() -> None:
    group = quiet()
    group.sent.clear()
    group.pass_time(20 * ELECTION_NS)
    assert group.sent == []
    assert group.roles() == {"a": "leader 1", "b": "follower 1", "c": "follower 1"}
    assert {group[name].deadline for name in "abc"} == {None}


def test_a_proposal_wakes_an_idle_group() -> None:
    group = quiet()
    group.propose("a", b"2")
    group.pass_time(HEARTBEAT_NS)
    assert group.commands("c") == [b"1", b"2"]
    assert group["b"].deadline is not None


def test_a_group_with_a_lagging_member_does_not_become_idle_but_with_a_dead_one_it_does() -> None:
    group = RaftGroup("abc", options=replace(OPTIONS, quiesce_after_ns=ELECTION_NS))
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1")
    group.pass_time(5 * ELECTION_NS)
    assert group["a"].deadline is not None
    group["a"].peer_down("c", group.now)
    group.pass_time(5 * ELECTION_NS)
    assert group["a"].deadline is None
    group.heal()
    group["a"].peer_up("c", group.now)
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("c") == [b"1"]


def test_a_leader_of_an_idle_group_that_was_deposed_gets_the_votes_of_its_followers() -> None:
    """A member that lost its log answers in a later term, and does not vote itself."""
    group = quiet()
    group.isolate("c")
    group["a"].step(AppendReply("c", "a", 9, 0, True, 0, 0, 1), group.now)
    assert group["a"].role is Role.FOLLOWER
    group.pass_time(5 * ELECTION_NS)
    assert group.leaders() in (["a"], ["b"])


def test_a_late_pre_vote_of_the_leader_does_not_show_that_it_leads_no_more() -> None:
    group = quiet()
    group["b"].step(PreVote("a", "b", 1, 0, 0), group.now)
    assert group["b"].leader == "a"


def test_the_loss_of_the_leaders_server_wakes_an_idle_group() -> None:
    group = quiet()
    group.isolate("a")
    for name in "bc":
        group[name].peer_down("a", group.now)
    group.pass_time(2 * ELECTION_NS)
    assert len(group.leaders()) == 2  # the deposed one sleeps until its server hears of others
    group["a"].peer_down("b", group.now)
    group["a"].peer_down("c", group.now)
    group.pass_time(2 * ELECTION_NS)
    assert group["a"].role is not Role.LEADER


def test_a_restarted_follower_of_an_idle_group_wakes_its_leader() -> None:
    group = quiet()
    group.members["b"].start(group.now)
    group.pass_time(3 * ELECTION_NS)
    assert group["b"].leader == "a"
    assert group["a"].term == 1


# --- a damaged log


def damaged(group: RaftGroup, name: str, entries: int) -> None:
    """The member starts again with fewer entries than it acknowledged."""
    member = group.members[name]
    member.entries = member.entries[:entries]
    member.start(group.now, is_recovering=True)


def test_a_recovering_replica_neither_votes_nor_stands_for_election() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.isolate("a")
    damaged(group, "b", 1)
    group.pass_time(10 * ELECTION_NS)
    assert group["b"].role is Role.FOLLOWER
    assert group.leaders() == []
    assert not any(
        one.is_granted for one in group.messages(PreVoteReply) if one.sender == "b" and one.to == "c"
    )


def test_a_recovering_replica_votes_again_when_it_has_what_was_committed() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    damaged(group, "b", 1)
    group.pass_time(4 * HEARTBEAT_NS)
    assert not group["b"].is_recovering
    assert group.commands("b") == [b"1"]
    group.isolate("a")
    group.pass_time(6 * ELECTION_NS)
    assert group.leaders() in (["b"], ["c"])


def test_the_leader_forgets_what_a_recovering_replica_acknowledged() -> None:
    group = RaftGroup("abcde")
    group.elect("a")
    group.isolate("c", "d", "e")
    group.propose("a", b"1")
    late = [one for one in group.messages(AppendReply) if one.sender == "b"]
    group.isolate("a", "b")
    damaged(group, "b", 1)
    lead = group["a"].leadership
    assert lead is not None
    assert lead.peers["b"].match == 2
    group.cut -= {("a", "b"), ("b", "a")}
    group.drop = lambda message: isinstance(message, Append)
    group.pass_time(3 * HEARTBEAT_NS)
    for message in late:
        group["a"].step(message, group.now)  # a late acknowledgement of what is lost
    assert lead.peers["b"].match < 2
    group.drop = lambda message: False
    group.pass_time(3 * HEARTBEAT_NS)
    assert not group["b"].is_recovering


def test_a_replica_that_does_not_know_its_vote_grants_none_in_that_term() -> None:
    group = RaftGroup("abc")
    group.members["b"].hard_state = HardState(4, UNKNOWN_VOTE)
    group.members["b"].start(0)
    group.drop = lambda message: True
    group["b"].step(Vote("a", "b", 4, 0, 0, False), 0)
    group["b"].step(Vote("a", "b", 5, 0, 0, False), 0)
    group.collect(group.members["b"])
    assert [(one.term, one.is_granted) for one in group.messages(VoteReply)] == [(4, False), (5, True)]


def test_a_leader_of_an_older_term_does_not_end_a_recovery() -> None:
    """What the replica acknowledged in a later term is not that leader's to know."""
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    member = group.members["b"]
    member.hard_state = HardState(3, UNKNOWN_VOTE)
    member.start(group.now, is_recovering=True)
    group.pass_time(HEARTBEAT_NS)
    assert group["b"].is_recovering
    group.heal()
    group.pass_time(10 * ELECTION_NS)
    assert not group["b"].is_recovering
    assert group["b"].term > 3
