"""Replication: sections 5.3, 5.4.2 and 7 of the Raft paper, flow control, and what waits for the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.peer_progress import ProgressState
from penstock.raft.raft_messages import (
    Append,
    AppendReply,
    EntryKind,
    HardState,
    Heartbeat,
    InstallSnapshot,
    RaftSnapshot,
)
from penstock.raft.raft_replica import Role
from tests.support.raft_groups import ELECTION_NS, HEARTBEAT_NS, OPTIONS, RaftGroup, entry


def snapshot_of(group: RaftGroup, name: str, data: bytes = b"state") -> RaftSnapshot:
    log = group[name].log
    term = log.term_at(log.applied_index)
    assert term is not None
    return RaftSnapshot(log.applied_index, term, log.membership, data)


def test_a_command_is_applied_by_every_member_once_and_in_order() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    for i in range(5):
        group.propose("a", b"%d" % i)
    for name in "abc":
        assert group.commands(name) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_follower_takes_no_proposals() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    assert group.propose("b", b"x") == 0


def test_the_commands_of_a_tick_share_a_message() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.sent.clear()
    group["a"].propose([b"1", b"2"], group.now)
    group["a"].propose([b"3"], group.now)
    group.settle()
    assert [len(one.entries) for one in group.messages(Append) if one.entries] == [3, 3]


def test_an_entry_commits_only_when_a_majority_has_it_on_disk() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    for name in "bc":
        group.members[name].is_slow = True
    group.propose("a", b"x")
    assert group.commands("a") == []
    group.sync("b")
    group.settle()
    assert group.commands("a") == [b"x"]


def test_the_leaders_own_entry_counts_only_after_its_sync() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.members["a"].is_slow = True
    group.isolate("c")
    group.propose("a", b"x")
    assert group["a"].log.commit_index == 1
    group.sync("a")
    group.settle()
    assert group["a"].log.commit_index == 2


def test_followers_may_commit_what_the_leaders_slow_disk_does_not_have_yet() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.members["a"].is_slow = True
    group.propose("a", b"x")
    assert group.commands("b") == [b"x"]
    assert group.commands("a") == []  # applied only what is on its own disk
    group.sync("a")
    group.settle()
    assert group.commands("a") == [b"x"]


def test_a_sync_of_entries_that_were_replaced_meanwhile_makes_nothing_durable() -> None:
    group = RaftGroup("abc")
    group.members["c"].is_slow = True
    group["c"].step(Append("a", "c", 1, 0, 0, (entry(1, 1), entry(2, 1)), 0), 0)
    group.collect(group.members["c"])
    group["c"].step(Append("b", "c", 2, 0, 0, (entry(1, 2),), 0), 0)
    first = group.members["c"].waiting.pop()
    group["c"].synced(first, 0)
    assert group["c"].log.durable_index == 0


def test_entries_that_contradict_the_leader_are_replaced() -> None:
    # The logs of figure 7 of the Raft paper, without the leader's own last term.
    logs = {
        "a": "1114455666", "b": "111445566", "c": "1114",
        "d": "11144556666", "e": "111444", "f": "11122233333",
    }  # fmt: skip
    group = RaftGroup("abcdef", logs=logs)
    group.isolate("d")  # its log is longer
    group.elect("a")
    group.heal()
    group.pass_time(2 * ELECTION_NS)
    expected = [(one.index, one.term) for one in group.members["a"].entries]
    assert len(expected) >= 11
    for name in "bcdef":
        assert [(one.index, one.term) for one in group.members[name].entries] == expected
        assert group[name].log.commit_index == group["a"].log.commit_index


def test_a_conflict_of_a_whole_term_costs_one_round_trip() -> None:
    group = RaftGroup("ab", logs={"a": "1" + "4" * 60, "b": "1" + "3" * 60})
    group.elect("a")
    assert sum(one.is_rejected for one in group.messages(AppendReply)) <= 2
    assert group["b"].log.last_index == 62


def test_an_entry_of_an_older_term_does_not_commit_by_count() -> None:
    """Figure 8 of the Raft paper."""
    group = RaftGroup("abc", logs={"a": "12", "b": "1", "c": "1"})
    group.drop = lambda message: isinstance(message, Append) and any(one.term > 2 for one in message.entries)
    group.elect("a")
    group["b"].step(Append("a", "b", 3, 1, 1, (entry(2, 2),), 0), group.now)
    group.settle()
    assert group["a"].leadership is not None
    assert group["a"].log.commit_index == 0  # on a majority, but of term 2
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert group["a"].log.commit_index == 3


def test_a_lost_append_is_sent_again_after_the_next_heartbeat() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.drop = lambda message: isinstance(message, Append)
    group.propose("a", b"x")
    group.drop = lambda message: False
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.commands("c") == [b"x"]


def test_the_reply_to_a_heartbeat_replaces_a_lost_reply_to_an_append() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.drop = lambda message: isinstance(message, AppendReply)
    group.propose("a", b"x")
    group.sent.clear()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("a") == [b"x"]
    assert not any(one.entries for one in group.messages(Append))


def test_bytes_in_flight_are_bounded_for_each_member() -> None:
    options = replace(OPTIONS, append_bytes_max=200, inflight_bytes_max=400)
    group = RaftGroup("ab", options=options)
    group.elect("a")
    group.sent.clear()
    group.drop = lambda message: isinstance(message, AppendReply)
    group.propose("a", *[b"x" * 68] * 20)
    assert sum(len(one.entries) for one in group.messages(Append)) == 4
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert len(group.commands("b")) == 20


def test_proposals_are_refused_while_too_much_is_uncommitted() -> None:
    group = RaftGroup("abc", options=replace(OPTIONS, uncommitted_bytes_max=100))
    group.elect("a")
    group.isolate("a")
    assert group.propose("a", b"x" * 100) > 0
    assert group.propose("a", b"y") == 0
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.propose("a", b"y") > 0


def test_a_heartbeat_does_not_commit_what_the_follower_may_not_have() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.members["b"].entries.pop()
    group.members["b"].start(group.now)  # as after a disk that lied
    group["b"].step(Heartbeat("a", "b", 1, 2, 9, False), group.now)
    assert (group["b"].log.commit_index, group["b"].log.last_index) == (0, 1)


def test_a_member_knows_the_commit_index_when_the_leader_has_named_it_and_all_of_it_is_here() -> None:
    group = RaftGroup("abc")
    assert group["b"].known_commit is None
    group.elect("a")
    group.propose("a", b"1", b"2", b"3")
    group.pass_time(HEARTBEAT_NS)
    assert group["a"].known_commit == group["b"].known_commit == 4
    group.members["b"].start(group.now)
    group.drop = lambda message: message.to == "b" and isinstance(message, Append)
    group.pass_time(3 * HEARTBEAT_NS)  # heartbeats alone
    assert group["b"].leader == "a"
    assert (group["b"].known_commit, group["b"].log.commit_index) == (None, 0)
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert group["b"].known_commit == 4


def test_a_member_that_restarts_with_all_that_is_committed_knows_it_from_a_heartbeat() -> None:
    group = RaftGroup("abc", options=replace(OPTIONS, quiesce_after_ns=5 * HEARTBEAT_NS))
    group.elect("a")
    group.propose("a", b"1")
    group.pass_time(HEARTBEAT_NS)
    member = group.members["b"]
    member.snapshot = RaftSnapshot(2, 1, group.first.membership)  # a checkpoint of everything
    member.entries = []
    member.start(group.now)
    group.sent.clear()
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.messages(Append) == [], "there is nothing to send"
    assert group["b"].known_commit == 2
    group.pass_time(20 * HEARTBEAT_NS)
    assert group["b"].is_quiesced and group["c"].is_quiesced


def test_a_member_that_lags_does_not_take_what_it_has_for_all_that_is_committed() -> None:
    options = replace(OPTIONS, append_bytes_max=200, inflight_bytes_max=200)
    group = RaftGroup("abc", options=options)
    group.elect("a")
    group.isolate("b")
    group.propose("a", *[b"x" * 68] * 20)
    group.heal()
    group.members["b"].start(group.now)
    seen = set()
    for _ in range(2_000):
        group.members["b"].replica.tick(group.now)
        group.members["a"].replica.tick(group.now)
        for member in group.members.values():
            group.collect(member)
        if group.network:
            message = group.network.pop(0)
            group[message.to].step(message, group.now)
            seen.add((group["b"].known_commit, group["b"].log.commit_index))
        else:
            group.now += HEARTBEAT_NS
    assert {known for known, _ in seen} == {None, 21}
    assert len({commit for _, commit in seen}) > 5
    assert all(commit == 21 for known, commit in seen if known is not None)


def test_a_leader_names_its_commit_index_at_once_when_an_entry_of_its_term_is_committed() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.isolate("a")
    group.elect("b")
    group["b"].tick(group.now)  # no time passes
    group.settle()
    assert group["b"].known_commit == group["c"].known_commit == group["b"].log.commit_index == 3


def test_a_restarted_member_continues_from_its_disk() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group.members["b"].start(group.now)
    group.propose("a", b"2")
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("b") == [b"1", b"2"]


def test_all_members_restart_and_lose_nothing() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    for member in group.members.values():
        member.start(group.now)
    group.elect("c")
    group.settle()
    assert group.commands("c") == [b"1"]


def test_a_member_whose_entries_are_gone_gets_a_snapshot() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1", b"2")
    snapshot = snapshot_of(group, "a")
    group["a"].compact(snapshot)
    group.propose("a", b"3")
    group.heal()
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.members["c"].offered == [snapshot]
    assert group["c"].log.last_index == 1
    group["c"].snapshot_installed(snapshot, group.now)
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("c") == [b"3"]
    assert group["c"].log.commit_index == group["a"].log.commit_index


def test_a_member_that_conflicts_with_the_last_entry_of_the_snapshot_gets_the_snapshot() -> None:
    group = RaftGroup("abc", logs={"a": "13", "b": "1222", "c": "13"})
    group.isolate("b")
    group.elect("a")
    log = group["a"].log
    snapshot = RaftSnapshot(2, 3, log.membership, b"state")
    group["a"].compact(snapshot)
    group.sent.clear()
    group.heal()
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.members["b"].offered == [snapshot]
    assert len(group.messages(AppendReply)) < 10


def test_a_snapshot_that_was_lost_or_failed_is_offered_again() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1")
    snapshot = snapshot_of(group, "a")
    group["a"].compact(snapshot)
    group.heal()
    group.drop = lambda message: isinstance(message, InstallSnapshot)
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.members["c"].offered == []
    group.drop = lambda message: False
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.members["c"].offered == [snapshot]
    group.pass_time(5 * HEARTBEAT_NS)
    assert group.members["c"].offered == [snapshot]  # not while it is taken
    group["c"].snapshot_failed(snapshot)
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.members["c"].offered == [snapshot, snapshot]


def test_entries_that_are_kept_spare_a_lagging_member_the_snapshot() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1", b"2")
    group["a"].compact(snapshot_of(group, "a"), keep_from=1)
    group.heal()
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.members["c"].offered == []
    assert group.commands("c") == [b"1", b"2"]


def test_a_replica_that_takes_a_snapshot_does_not_stand_for_election() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.isolate("c")
    group.propose("a", b"1")
    group["a"].compact(snapshot_of(group, "a"))
    group.heal()
    group.pass_time(3 * HEARTBEAT_NS)
    assert group.members["c"].offered
    group.isolate("c")
    group.pass_time(3 * ELECTION_NS)
    assert group["c"].role is Role.FOLLOWER


def test_a_member_restarts_from_its_own_snapshot() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    snapshot = snapshot_of(group, "b")
    group["b"].compact(snapshot)
    member = group.members["b"]
    member.snapshot, member.entries = snapshot, [one for one in member.entries if one.index > snapshot.index]
    member.start(group.now)
    group.propose("a", b"2")
    group.pass_time(2 * HEARTBEAT_NS)
    assert group.commands("b") == [b"2"]


def test_a_late_append_from_before_the_snapshot_is_answered_with_what_is_committed() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    late = next(one for one in group.messages(Append) if one.to == "b" and one.entries)
    group["b"].compact(snapshot_of(group, "b"))
    group.sent.clear()
    group["b"].step(late, group.now)
    group.collect(group.members["b"])
    assert [(one.is_rejected, one.index) for one in group.messages(AppendReply)] == [(False, 2)]


def test_a_follower_that_refuses_a_snapshot_it_does_not_need_goes_on() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.propose("a", b"1")
    group["b"].step(InstallSnapshot("a", "b", 1, snapshot_of(group, "a")), group.now)
    group.settle()
    assert group.members["b"].offered == []
    group.propose("a", b"2")
    assert group.commands("b") == [b"1", b"2"]


def test_the_first_entry_of_a_term_is_the_leaders_own() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    assert [(one.term, one.kind) for one in group.members["b"].entries] == [(1, EntryKind.NOOP)]


def test_a_group_on_a_slow_disk_keeps_several_syncs_in_flight() -> None:
    group = RaftGroup("abc")
    group.elect("a")
    group.members["b"].is_slow = True
    for i in range(3):
        group.propose("a", b"%d" % i)
    assert len([one for one in group.members["b"].waiting if one.entries]) == 3
    group.sync("b")
    group.settle()
    assert group.commands("b") == [b"0", b"1", b"2"]


def test_a_log_that_ends_before_its_hard_states_term_starts() -> None:
    group = RaftGroup("abc")
    group.members["a"].hard_state = HardState(7, "b")
    group.members["a"].start(0)
    assert group["a"].hard_state == HardState(7, "b")


def test_the_states_of_a_member_s_progress_are_probe_replicate_and_snapshot() -> None:
    group = RaftGroup("abc")
    lead = group.elect("a").leadership
    assert lead is not None
    assert lead.peers["b"].state is ProgressState.REPLICATE
    group.isolate("b")
    group.propose("a", b"1")
    group["a"].compact(snapshot_of(group, "a"))
    group.heal()
    group.pass_time(2 * HEARTBEAT_NS)
    assert lead.peers["b"].state is ProgressState.SNAPSHOT
    group["b"].snapshot_installed(group.members["b"].offered[0], group.now)
    group.settle()
    assert lead.peers["b"].state is ProgressState.REPLICATE
    with pytest.raises(AssertionError, match="another replica"):
        group["a"].step(Append("b", "c", 1, 0, 0, (), 0), group.now)
