"""Many groups on one server: frames, heartbeats of servers, restarts, and the identity of disks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.raft.disk_identity import DiskIdentity, IdentityProblem, start_with
from penstock.raft.membership import Membership
from penstock.raft.raft_host import Frame, RaftHost
from penstock.raft.raft_log import RaftLog
from penstock.raft.raft_messages import HardState, PreVote, RaftSnapshot
from penstock.raft.raft_options import MILLISECOND_NS
from penstock.raft.raft_replica import RaftReplica, Role
from tests.support.raft_groups import ELECTION_NS, HEARTBEAT_NS, OPTIONS

QUIET = replace(OPTIONS, quiesce_after_ns=ELECTION_NS)
FIRST = RaftSnapshot(0, 0, Membership(("a", "b", "c")))


class Hosts:
    """Three servers with the same groups; frames arrive at once, or are lost."""

    def __init__(self, groups: int) -> None:
        self.now = 0
        self.hosts: dict[str, RaftHost] = {}
        self.groups = [f"g{i}" for i in range(groups)]
        self.dead: set[str] = set()
        self.frames: list[Frame] = []
        for at, name in enumerate("abc"):
            self.start(name, 1, first=at / 3)

    def start(self, name: str, boot: int, *, first: float = 0.5) -> None:
        host = self.hosts[name] = RaftHost(name, boot, QUIET)
        host.set_peers("abc", self.now)
        for group in self.groups:
            replica = RaftReplica(
                name, RaftLog(FIRST), HardState(), QUIET, lambda: first, self.now, boot=boot
            )
            host.add(group, replica)

    def pass_time(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while self.now < end:
            self.now += 50 * MILLISECOND_NS
            for name, host in self.hosts.items():
                if name not in self.dead:
                    host.tick(self.now)
            self.settle()

    def settle(self) -> None:
        for _ in range(100):
            frames = []
            for name, host in self.hosts.items():
                if name not in self.dead:
                    host.synced(host.ready(self.now), self.now)
                    frames += host.take_frames(self.now)
            if not frames:
                return
            self.frames += frames
            for frame in frames:
                if not {frame.sender, frame.to} & self.dead:
                    self.hosts[frame.to].receive(frame, self.now)
        raise AssertionError("the servers do not settle")

    def leaders(self, group: str) -> list[str]:
        return [
            name
            for name, host in self.hosts.items()
            if name not in self.dead and host.touch(group).role is Role.LEADER
        ]


def test_the_messages_of_all_groups_share_a_frame() -> None:
    hosts = Hosts(50)
    hosts.pass_time(2 * ELECTION_NS)
    votes = [frame for frame in hosts.frames if any(isinstance(one, PreVote) for _, one in frame.messages)]
    assert len(votes) == 2
    assert len(votes[0].messages) == 50


def test_idle_groups_cost_one_empty_frame_per_interval_and_pair() -> None:
    hosts = Hosts(100)
    hosts.pass_time(5 * ELECTION_NS)
    hosts.frames.clear()
    hosts.pass_time(10 * HEARTBEAT_NS)
    assert not any(frame.messages for frame in hosts.frames)
    assert len(hosts.frames) <= 6 * 11
    assert hosts.leaders("g7") == ["a"]


def test_active_groups_are_asked_only_when_something_happened_to_them() -> None:
    hosts = Hosts(50)
    hosts.pass_time(2 * ELECTION_NS)
    leader = hosts.hosts["a"]
    for group in hosts.groups:
        assert leader.touch(group).propose([b"x"], hosts.now)
    hosts.settle()
    assert (len(leader.active), leader.touched) == (50, ()), "they wait for their timers"
    assert leader.touch("g7").propose([b"x"], hosts.now)
    assert leader.touched == ("g7",)
    assert [one.group for one in leader.ready(hosts.now)] == ["g7"]
    leader.tick(hosts.now)
    assert len(leader.touched) == 50


def test_the_idle_groups_of_a_dead_server_get_other_leaders() -> None:
    hosts = Hosts(20)
    hosts.pass_time(5 * ELECTION_NS)
    hosts.dead.add("a")
    hosts.pass_time(3 * ELECTION_NS)
    assert [hosts.leaders(group) for group in hosts.groups] == [["b"]] * 20


def test_a_server_that_left_the_cluster_leads_no_idle_group_any_more() -> None:
    """Its disk was wiped, for example, so that it comes back as another one."""
    hosts = Hosts(3)
    hosts.pass_time(5 * ELECTION_NS)
    hosts.dead.add("a")
    for name in "bc":
        hosts.hosts[name].set_peers("bc", hosts.now)
    hosts.pass_time(3 * ELECTION_NS)
    assert [hosts.leaders(group) for group in hosts.groups] == [["b"]] * 3


def test_a_server_that_joins_again_is_there_before_its_first_frame() -> None:
    hosts = Hosts(1)
    hosts.pass_time(2 * ELECTION_NS)
    hosts.hosts["a"].set_peers("ab", hosts.now)
    hosts.hosts["a"].set_peers("abc", hosts.now)
    lead = hosts.hosts["a"].touch("g0").leadership
    assert lead is not None
    assert not lead.peers["c"].is_down


def test_a_server_that_started_again_leads_no_idle_group_any_more() -> None:
    hosts = Hosts(3)
    hosts.pass_time(5 * ELECTION_NS)
    term = hosts.hosts["b"].touch("g0").term
    old = {group: hosts.hosts["a"].touch(group) for group in hosts.groups}
    hosts.start("a", 2)
    for group in hosts.groups:
        hosts.hosts["a"].remove(group)
        replica = RaftReplica(
            "a", old[group].log, old[group].hard_state, QUIET, lambda: 0.5, hosts.now, boot=2
        )
        hosts.hosts["a"].add(group, replica)
    hosts.pass_time(3 * ELECTION_NS)
    for group in hosts.groups:
        assert len(hosts.leaders(group)) == 1
        assert hosts.hosts["b"].touch(group).term > term


def test_frames_of_an_earlier_start_are_dropped_and_an_old_copy_of_a_disk_is_refused() -> None:
    host = RaftHost("a", 1, QUIET)
    host.set_peers("ab", 0)
    host.receive(Frame("b", "a", 5), 0)
    host.receive(Frame("b", "a", 4), 1)
    refusals = [frame for frame in host.take_frames(1) if frame.refused_boot]
    assert refusals == [Frame("a", "b", 1, (), 5)]
    old_copy = RaftHost("b", 4, QUIET)
    old_copy.set_peers("ab", 0)
    old_copy.receive(refusals[0], 2)
    assert old_copy.is_refused


def test_a_server_that_does_not_answer_is_down_until_its_next_frame() -> None:
    hosts = Hosts(1)
    hosts.pass_time(ELECTION_NS)
    hosts.dead.add("c")
    hosts.pass_time(2 * ELECTION_NS)
    assert hosts.hosts["a"].is_down("c")
    hosts.dead.clear()
    hosts.pass_time(2 * HEARTBEAT_NS)
    assert not hosts.hosts["a"].is_down("c")


def test_a_lost_connection_is_a_hint_that_costs_a_live_leader_nothing() -> None:
    hosts = Hosts(4)
    hosts.pass_time(5 * ELECTION_NS)
    hosts.hosts["b"].link_lost("a", hosts.now)
    hosts.pass_time(2 * ELECTION_NS)
    assert [hosts.leaders(group) for group in hosts.groups] == [["a"]] * 4
    assert hosts.hosts["b"].touch("g0").term == 1


def test_a_disk_of_another_server_or_cluster_is_no_member_and_each_start_counts() -> None:
    first = start_with(None, "C", "s1", "x7")
    assert first == DiskIdentity("C", "s1", "x7", 1)
    assert first.replica_id == "s1.x7"
    stored = DiskIdentity.decode(first.encode())
    assert start_with(stored, "C", "s1", "new") == DiskIdentity("C", "s1", "x7", 2)
    assert start_with(stored, "D", "s1", "new") is IdentityProblem.OTHER_CLUSTER
    assert start_with(stored, "C", "s2", "new") is IdentityProblem.OTHER_SERVER
    for data in (b"", b"[]", b"{}", b'{"cluster_name":1}'):
        with pytest.raises(ValueError):
            DiskIdentity.decode(data)


def test_a_wiped_disk_is_another_member() -> None:
    first, again = start_with(None, "C", "s1", "x7"), start_with(None, "C", "s1", "k2")
    assert isinstance(first, DiskIdentity)
    assert isinstance(again, DiskIdentity)
    assert first.replica_id != again.replica_id
