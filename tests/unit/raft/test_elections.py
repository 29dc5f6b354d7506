"""Elections: sections 5.2 and 5.4.1 of the Raft paper, pre-vote and check-quorum of the thesis (9.6, 6.2)."""

from __future__ import annotations

import pytest

from penstock.raft.raft_messages import NO_VOTE, Heartbeat, PreVote, Vote, VoteReply
from penstock.raft.raft_replica import TRANSITIONS, RaftReplica, Role
from tests.support.raft_groups import ELECTION_NS, RaftGroup


def test_a_replica_starts_as_a_follower_of_no_leader() -> None:
    group = RaftGroup("abc")
    assert (group["a"].role, group["a"].leader, group["a"].term) == (Role.FOLLOWER, None, 0)


def test_a_voter_that_hears_of_no_leader_is_elected_by_a_majority() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    assert group.roles() == {"a": "leader 1", "b": "follower 1", "c": "follower 1"}
    assert {group[name].leader for name in "abc"} == {"a"}


def test_a_group_of_one_elects_itself_and_commits() -> None:
    group = RaftGroup("a")
    group.elect("a")
    group.propose("a", b"x")
    assert group.commands("a") == [b"x"]


def test_a_candidate_without_a_majority_does_not_lead() -> None:
    group = RaftGroup("abcde")
    group.isolate("a", "b")
    group.pass_time(5 * ELECTION_NS)
    assert group["a"].role is not Role.LEADER
    assert group["b"].role is not Role.LEADER


def test_a_pre_vote_changes_no_term_so_a_member_that_was_cut_off_deposes_no_leader() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.pass_time(10 * ELECTION_NS)
    assert group["c"].term == 1
    group.heal()
    group.pass_time(2 * ELECTION_NS)
    assert group.roles() == {"a": "leader 1", "b": "follower 1", "c": "follower 1"}


def test_no_vote_is_granted_while_the_leader_is_heard() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group["b"].step(Vote("c", "b", 9, 100, 9, False), group.now)
    group.settle()
    assert group.roles() == {"a": "leader 1", "b": "follower 1", "c": "follower 1"}


def test_a_leader_ignores_votes_and_pre_votes_of_later_terms() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group["a"].step(Vote("c", "a", 9, 100, 9, False), group.now)
    group["a"].step(PreVote("c", "a", 9, 100, 9), group.now)
    group.settle()
    assert group.leaders() == ["a"]


def test_a_leader_that_a_majority_does_not_answer_steps_down() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    group.pass_time(5 * ELECTION_NS)
    assert group["a"].role is not Role.LEADER
    assert group.leaders() in (["b"], ["c"])


def test_a_leader_that_only_some_hear_keeps_leading_with_a_majority() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.pass_time(5 * ELECTION_NS)
    assert group.leaders() == ["a"]


@pytest.mark.parametrize(
    ("own", "asked", "granted"),
    [("11", "11", True), ("112", "1111", False), ("111", "112", True), ("111", "11", False), ("", "", True)],
)
def test_a_vote_goes_only_to_a_log_that_is_as_up_to_date(own: str, asked: str, *, granted: bool) -> None:
    group = RaftGroup("ab", logs={"a": asked, "b": own})
    group["b"].step(Vote("a", "b", 3, len(asked), int(asked[-1:] or 0), False), 0)
    group.collect(group.members["b"])
    assert [one.is_granted for one in group.messages(VoteReply)] == [granted]


def test_one_vote_a_term_and_the_same_one_again_when_asked_again() -> None:
    group = RaftGroup("abc")
    group.drop = lambda message: True
    for candidate in "aba":
        group["c"].step(Vote(candidate, "c", 1, 0, 0, False), 0)
    group.collect(group.members["c"])
    assert [one.is_granted for one in group.messages(VoteReply)] == [True, False, True]


def test_a_vote_leaves_only_when_it_is_on_disk() -> None:
    group = RaftGroup("abc")
    group.members["b"].is_slow = True
    group["b"].step(Vote("a", "b", 1, 0, 0, False), 0)
    group.collect(group.members["b"])
    assert group.messages(VoteReply) == []
    group.sync("b")
    assert [one.is_granted for one in group.messages(VoteReply)] == [True]
    assert group.members["b"].hard_state.vote == "a"


def test_a_candidate_asks_for_votes_only_when_its_own_is_on_disk() -> None:
    group = RaftGroup("abc")
    group.members["a"].is_slow = True
    group.now += 2 * ELECTION_NS
    group["a"].tick(group.now)
    group.settle()
    assert group["a"].role is Role.CANDIDATE
    assert group.messages(Vote) == []
    group.sync("a")
    group.settle()
    assert group["a"].role is Role.LEADER


def test_a_restarted_voter_remembers_its_vote() -> None:
    group = RaftGroup("abc")
    group.drop = lambda message: True
    group["c"].step(Vote("a", "c", 1, 0, 0, False), 0)
    group.collect(group.members["c"])
    group.members["c"].start(0)
    group["c"].step(Vote("b", "c", 1, 0, 0, False), 0)
    group.collect(group.members["c"])
    assert [one.is_granted for one in group.messages(VoteReply)] == [True, False]


def test_two_candidates_that_split_the_votes_try_again_in_a_later_term() -> None:
    group = RaftGroup("abcd")
    group.now += 2 * ELECTION_NS
    for name in "ab":
        group[name].tick(group.now)
    group.settle()
    group.pass_time(4 * ELECTION_NS)
    assert len(group.leaders()) == 1


def test_a_candidate_follows_the_leader_of_its_term() -> None:
    group = RaftGroup("abc")
    group.isolate("a")
    group.now += 2 * ELECTION_NS
    group["a"].tick(group.now)
    group.collect(group.members["a"])
    assert group["a"].role is Role.PRE_CANDIDATE
    group["a"].step(Heartbeat("b", "a", 1, 0, 1, False), group.now)
    assert (group["a"].role, group["a"].leader) == (Role.FOLLOWER, "b")


def test_a_deposed_leader_learns_of_the_later_term_from_the_reply_to_its_append() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    group.elect("b")
    assert group.leaders() == ["a", "b"]
    group.heal()
    group.propose("a", b"lost")
    group.pass_time(ELECTION_NS)
    assert group.leaders() == ["b"]
    assert group.roles()["a"] == "follower 2"


def test_a_message_of_an_older_term_changes_nothing() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group["c"].step(Heartbeat("b", "c", 0, 0, 1, False), group.now)
    assert group["c"].leader == "a"


def test_a_learner_does_not_stand_for_election_but_votes_for_others() -> None:
    group = RaftGroup("ab", learners="l")
    group.pass_time(ELECTION_NS - 1)
    group["l"].tick(5 * ELECTION_NS)
    assert group["l"].role is Role.FOLLOWER
    group["l"].step(Vote("a", "l", 1, 0, 0, False), group.now)  # it may not know that it was promoted
    group.collect(group.members["l"])
    assert [one.is_granted for one in group.messages(VoteReply)] == [True]


def test_the_vote_of_a_learner_does_not_count() -> None:
    group = RaftGroup("abc", learners="l")
    group.isolate("a", "l")
    group.now += 2 * ELECTION_NS
    group["a"].tick(group.now)
    group.settle()
    assert group["a"].role is Role.PRE_CANDIDATE


def test_the_hint_that_the_leaders_server_is_gone_starts_an_election_without_the_timeout() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("a")
    for name in "bc":
        group[name].peer_down("a", group.now)
    group.pass_time(ELECTION_NS // 2)
    assert group.leaders() in (["a", "b"], ["a", "c"])


def test_a_wrong_hint_costs_no_term() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group["b"].peer_down("a", group.now)
    group.pass_time(2 * ELECTION_NS)
    assert group.roles() == {"a": "leader 1", "b": "follower 1", "c": "follower 1"}


def test_every_role_has_its_transitions_and_illegal_ones_are_assertions() -> None:
    assert set(TRANSITIONS) == set(Role)
    group = RaftGroup("abc")
    group.elect("a")
    with pytest.raises(AssertionError, match="cannot become"):
        RaftReplica._become(group["a"], Role.CANDIDATE)
    assert group["b"].hard_state.vote in ("a", NO_VOTE)
