"""The replication node: what goes to the disk before what leaves, owners, checkpoints, faults."""

from __future__ import annotations

from random import Random

import pytest

from penstock.errors import MisuseError, StoreError
from penstock.raft.leadership import ChangeResult
from penstock.raft.membership import ChangeKind, Membership
from penstock.raft.raft_host import Frame
from penstock.raft.raft_messages import Heartbeat
from penstock.raft.raft_replica import Role
from penstock.replication.group_port import CHECKPOINT_BYTES_MAX, PROPOSAL_BYTES_MAX, ProposalId
from penstock.replication.group_storage import GroupStorage
from penstock.replication.replication_node import SECOND_NS, NodeOutput
from penstock.testing.sim.sim_disk import SimDisk
from tests.support.replication_nodes import DIRECTORY, ListOwner, NodesUnderTest, NodeUnderTest

pytestmark = pytest.mark.feature("cluster.raft")


def propose(server: NodeUnderTest, *commands: bytes, group: str = "g") -> list[ProposalId]:
    proposals = [server.group(group).propose(one) for one in commands]
    assert None not in proposals
    server.nodes.settle()
    return [one for one in proposals if one is not None]


def test_a_command_reaches_every_owner_once_and_in_order() -> None:
    nodes = NodesUnderTest()
    nodes.start("g", "h")
    leader = nodes.leader()
    propose(leader, b"1", b"2", b"3")
    propose(nodes.leader("h"), b"x", group="h")
    nodes.pass_time(500)
    assert [one.owners["g"].commands for one in nodes.servers.values()] == [[b"1", b"2", b"3"]] * 3
    assert [one.owners["h"].commands for one in nodes.servers.values()] == [[b"x"]] * 3


def test_commands_survive_a_power_failure_of_all_servers() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    propose(nodes.leader(), b"1", b"2")
    for one in nodes.servers.values():
        one.stop(loses_power=True)
    for one in nodes.servers.values():
        one.start()
    nodes.link()
    nodes.leader()
    assert [one.owners["g"].commands for one in nodes.servers.values()] == [[b"1", b"2"]] * 3
    assert [one.findings.identity.boot for one in nodes.servers.values()] == [2] * 3


def test_nothing_is_committed_before_a_majority_has_it_on_disk() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    leader = nodes.leader()
    for one in nodes.servers.values():
        one.is_slow = True
    propose(leader, b"1")
    nodes.pass_time(300)
    assert leader.owners["g"].commands == []
    leader.finish_write()
    nodes.settle()
    assert leader.owners["g"].commands == []
    nodes.followers()[0].finish_write()
    nodes.settle()
    assert leader.owners["g"].commands == [b"1"]


def test_proposals_of_one_tick_are_one_write() -> None:
    nodes = NodesUnderTest("a")
    nodes.start("g", "h")
    nodes.leader()
    nodes["a"].is_slow = True
    for group in ("g", "h", "g"):
        nodes["a"].group(group).propose(b"x")
    nodes.settle()
    write = nodes["a"].pending
    assert write is not None
    assert write.sync
    assert len(write.writes) == 2
    nodes["a"].group("g").propose(b"y")
    nodes.settle()
    assert nodes["a"].pending is write, "one write at a time"


def test_without_a_sync_each_time_votes_are_synced_all_the_same() -> None:
    nodes = NodesUnderTest("a", sync_always=False, sync_interval_ns=10 * SECOND_NS)
    nodes["a"].is_slow = True
    nodes.start("g")
    syncs: list[bool] = []
    for _ in range(100):
        nodes.pass_time(100)
        if (write := nodes["a"].pending) is not None and not write.is_mark:
            syncs.append(write.sync)
            nodes["a"].finish_write()
        elif write is not None:
            nodes["a"].finish_write()
    assert syncs[:2] == [True, True]  # the group, then the term and the vote
    nodes["a"].group().propose(b"1")
    nodes.settle()
    assert nodes["a"].pending is not None
    assert not nodes["a"].pending.sync
    nodes["a"].finish_write()
    nodes.settle()
    assert nodes["a"].owners["g"].commands == [b"1"]
    nodes.pass_time(10_000)
    assert nodes["a"].pending is not None
    assert nodes["a"].pending.sync, "the interval is over"


def test_a_failed_write_is_repeated_and_nothing_that_waits_for_it_happens_before() -> None:
    nodes = NodesUnderTest("a")
    nodes.start("g")
    server = nodes.leader()
    server.disk.fail_rate = 1.0
    propose(server, b"1")
    nodes.pass_time(2000)
    assert isinstance(server.node.disk_error, StoreError)
    assert server.owners["g"].commands == []
    server.disk.fail_rate = 0.0
    nodes.pass_time(1000)
    assert server.node.disk_error is None
    assert server.owners["g"].commands == [b"1"]
    server.stop(loses_power=True)
    server.start()
    nodes.leader()
    assert server.owners["g"].commands == [b"1"]


def test_a_leader_whose_disk_fails_hands_over() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    leader = nodes.leader()
    leader.disk.fail_rate = 1.0
    propose(leader, b"1")
    nodes.pass_time(500)
    assert leader.group().role is not Role.LEADER
    other = nodes.leader()
    propose(other, b"2")
    assert other.owners["g"].commands[-1] == b"2"


def test_a_leader_whose_write_does_not_end_hands_over() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    leader = nodes.leader()
    leader.is_slow = True
    propose(leader, b"1")
    nodes.pass_time(3500)
    assert leader.group().role is not Role.LEADER


def test_a_fault_of_one_owner_stops_its_group_on_its_server_only(
    noted_faults: list[BaseException],
) -> None:
    nodes = NodesUnderTest()
    nodes.start("h")
    for name, one in nodes.servers.items():
        one.open("g", nodes.all, ListOwner(fails_at=b"bad" if name == "a" else b"-"))
    propose(nodes.leader(), b"bad", b"good")
    nodes.pass_time(2000)
    assert [one.owners["g"].commands for one in nodes.servers.values()] == [
        [],
        [b"bad", b"good"],
        [b"bad", b"good"],
    ]
    assert nodes["a"].owners["g"].events[-1] == ("failed", "a state machine's mistake at b'bad'")
    assert list(nodes["a"].node.failed_groups) == ["g"]
    propose(nodes.leader("h"), b"1", group="h")
    nodes.pass_time(500)
    assert nodes["a"].owners["h"].commands == [b"1"]
    assert [type(one) for one in noted_faults] == [ValueError]
    noted_faults.clear()


def test_a_peer_that_breaks_the_rules_of_consensus_stops_one_group_only(
    noted_faults: list[BaseException],
) -> None:
    nodes = NodesUnderTest()
    nodes.start("g", "h")
    leader = nodes.leader()
    propose(leader, b"1")
    follower = nodes.followers()[0]
    other = nodes.followers()[1].node.name
    usurper = Heartbeat(other, follower.node.name, leader.group().term, 0, 1, False)
    follower.node.receive(Frame(other, follower.node.name, 1, (("g", usurper),)))
    assert list(follower.node.failed_groups) == ["g"]
    assert "h" in follower.node.groups
    assert follower.owners["g"].events[-1][0] == "failed"
    assert noted_faults
    noted_faults.clear()


def test_a_read_sees_what_was_acknowledged_and_is_lost_with_the_leadership() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    leader = nodes.leader()
    propose(leader, b"1")
    assert leader.group().read_index(7)
    nodes.settle()
    assert leader.owners["g"].events[-1] == ("read", 7, [b"1"])
    assert not nodes.followers()[0].group().read_index(8)
    nodes.isolate(leader.server)
    assert leader.group().read_index(9)
    nodes.pass_time(3000)
    assert ("no read", 9) in leader.owners["g"].events


def test_a_proposal_of_a_deposed_leader_is_lost_for_certain_when_another_entry_is_committed() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    old = nodes.leader()
    nodes.isolate(old.server)
    [proposal] = propose(old, b"alone")
    new = nodes.leader()
    assert new is not old
    propose(new, b"1")
    assert not any(one[0] == "lost" for one in old.owners["g"].events), "it may still be committed"
    nodes.cut.clear()
    nodes.pass_time(2000)
    assert ("lost", proposal, True) in old.owners["g"].events
    assert old.owners["g"].commands == [b"1"]


def test_checkpoints_let_segments_go_also_of_groups_that_are_idle() -> None:
    nodes = NodesUnderTest("a", checkpoint_bytes=1000, keep_bytes=0, segments_max=2)
    server = nodes["a"]
    server.start(segment_bytes=2000)
    server.open("g", nodes.all)
    server.open("idle", nodes.all)
    nodes.leader()
    propose(nodes.leader("idle"), b"once", group="idle")
    for i in range(200):
        propose(server, b"%d" % i * 20)
    nodes.pass_time(2000)
    names = server.disk.names(DIRECTORY)
    assert len([name for name in names if name.endswith(".wal")]) <= 4, names
    server.stop(loses_power=True)
    server.start(segment_bytes=2000)
    nodes.leader()
    assert server.owners["idle"].commands == [b"once"]
    assert server.owners["g"].commands == [b"%d" % i * 20 for i in range(200)]


@pytest.mark.parametrize("how", ["closed", "failed"])
def test_a_group_without_an_owner_lets_segments_go_and_loses_nothing(
    how: str, noted_faults: list[BaseException]
) -> None:
    nodes = NodesUnderTest("a", checkpoint_bytes=1000, keep_bytes=0, segments_max=2)
    server = nodes["a"]
    server.start(segment_bytes=2000)
    server.open("g", nodes.all)
    server.open("set aside", nodes.all)
    nodes.leader()
    propose(nodes.leader("set aside"), b"once", b"twice", group="set aside")
    if how == "closed":
        closed: list[int] = []
        server.node.close_group("set aside", lambda: closed.append(1))
        nodes.settle()
        assert closed == [1]
    else:
        nodes.settle()
        server.node.group_failed("set aside", ValueError("a mistake"))
        noted_faults.clear()
    for i in range(200):
        propose(server, b"%d" % i * 20)
    nodes.pass_time(2000)
    names = server.disk.names(DIRECTORY)
    assert len([name for name in names if name.endswith(".wal")]) <= 5, names
    server.stop(loses_power=True)
    server.start(segment_bytes=2000)
    nodes.leader()
    nodes.leader("set aside")
    assert server.owners["set aside"].commands == [b"once", b"twice"]
    assert server.owners["g"].commands == [b"%d" % i * 20 for i in range(200)]


def test_a_checkpoint_may_take_its_time_and_may_fail() -> None:
    nodes = NodesUnderTest("a")
    nodes.start("g")
    server = nodes.leader()
    owner = server.owners["g"]
    owner.snapshots_at_once = False
    propose(server, b"1")
    server.group().checkpoint()
    nodes.settle()
    state = owner.state
    propose(server, b"2")
    owner.snapshots.pop()(None)
    server.group().checkpoint()
    nodes.settle()
    assert owner.snapshots == [], "it waits before it asks again"
    nodes.pass_time(6000)
    server.group().checkpoint()
    nodes.settle()
    [done] = owner.snapshots
    state = owner.state
    propose(server, b"3")
    done(state)
    nodes.settle()
    assert server.group().replica.log.snapshot.data == b"1\n2"
    server.stop()
    server.start()
    nodes.leader()
    assert server.owners["g"].commands == [b"1", b"2", b"3"]
    server.owners["g"].snapshots_at_once = False
    propose(server, b"4")
    server.group().checkpoint()
    nodes.settle()
    with pytest.raises(MisuseError, match="keep the state in files"):
        server.owners["g"].snapshots[-1](bytes(CHECKPOINT_BYTES_MAX + 1))


def test_much_behind_a_checkpoint_is_bounded_at_the_leader() -> None:
    nodes = NodesUnderTest("a", unsaved_bytes_max=1000)
    nodes.start("g")
    server = nodes.leader()
    owner = server.owners["g"]
    owner.snapshots_at_once = False
    while server.group().propose(bytes(100)) is not None:
        nodes.settle()
    assert 1000 < server.group().log_bytes < 1200
    [done] = owner.snapshots
    assert server.group().propose(b"refused") is None
    owner.snapshots.clear()
    done(None)
    nodes.pass_time(4000)
    assert owner.snapshots == [], "it waits before it asks again"
    nodes.pass_time(2000)
    owner.snapshots.pop()(b"state")
    assert server.group().log_bytes == 0
    propose(server, b"taken")
    assert owner.commands[-1] == b"taken"


def test_a_full_log_of_all_groups_bounds_each_of_them_closer() -> None:
    nodes = NodesUnderTest("a", checkpoint_bytes=300, segments_full=3, keep_bytes=0)
    server = nodes["a"]
    server.start(segment_bytes=2000)
    server.open("g", nodes.all)
    server.open("h", nodes.all)
    nodes.leader()
    nodes.leader("h")
    for name in ("g", "h"):
        server.owners[name].snapshots_at_once = False
    while server.group().propose(bytes(100)) is not None:
        nodes.settle()
    assert 2000 < server.group().log_bytes < 8000
    assert server.group("h").propose(b"it has little behind its checkpoint") is not None
    nodes.settle()
    server.owners["g"].snapshots_at_once = True
    server.owners["g"].snapshots[-1](b"state")  # of the first entries; the next one follows
    nodes.settle()
    assert server.group().propose(b"taken") is not None


def test_a_member_with_much_behind_its_checkpoint_gets_the_rest_after_it() -> None:
    nodes = NodesUnderTest(unsaved_bytes_max=1000)
    nodes.start("g")
    leader = nodes.leader()
    full = nodes.followers()[0]
    full.owners["g"].snapshots_at_once = False
    for number in range(30):
        propose(leader, b"%100d" % number)
    nodes.pass_time(1000)
    assert len(full.owners["g"].commands) < 12
    assert len(leader.owners["g"].commands) == 30, "the others are a majority"
    full.owners["g"].snapshots.pop()(full.owners["g"].state)
    full.owners["g"].snapshots_at_once = True
    nodes.pass_time(3000)
    assert full.owners["g"].commands == leader.owners["g"].commands


def test_a_checkpoint_that_was_given_up_for_another_state_is_not_waited_for() -> None:
    nodes = NodesUnderTest(keep_bytes=0)
    nodes.start("g")
    leader = nodes.leader()
    late = nodes.followers()[0]
    owner = late.owners["g"]
    owner.snapshots_at_once = False
    propose(leader, b"1")
    late.group().checkpoint()
    nodes.settle()
    [given_up] = owner.snapshots
    nodes.isolate(late.server)
    propose(leader, b"2", b"3")
    leader.group().checkpoint()
    nodes.settle()
    nodes.cut.clear()
    nodes.pass_time(2000)
    assert ("installed", leader.node.name) in owner.events
    propose(nodes.leader(), b"4")
    owner.snapshots_at_once = True
    late.group().checkpoint()
    nodes.settle()
    assert late.group().replica.log.snapshot.data == b"1\n2\n3\n4"
    given_up(b"1")
    nodes.settle()
    assert late.group().replica.log.snapshot.data == b"1\n2\n3\n4"


def test_a_member_that_lags_takes_the_state_of_a_checkpoint() -> None:
    nodes = NodesUnderTest(keep_bytes=0)
    nodes.start("g")
    leader = nodes.leader()
    late = nodes.followers()[0]
    nodes.isolate(late.server)
    propose(leader, b"1", b"2")
    leader.group().checkpoint()
    nodes.settle()
    late.owners["g"].can_install = False
    nodes.cut.clear()
    nodes.pass_time(1000)
    assert ("not installed", leader.node.name) in late.owners["g"].events
    late.owners["g"].can_install = True
    nodes.pass_time(2000)
    propose(nodes.leader(), b"3")
    nodes.pass_time(500)
    assert late.owners["g"].commands == [b"1", b"2", b"3"]
    late.stop(loses_power=True)
    late.start()
    nodes.link()
    nodes.pass_time(3000)
    assert late.owners["g"].commands == [b"1", b"2", b"3"]


def test_a_server_with_a_wiped_disk_joins_as_another_member() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    propose(nodes.leader(), b"1")
    gone = nodes.followers()[0]
    gone.stop()
    nodes.servers[gone.server] = new = NodeUnderTest(gone.server, nodes, disk_id="e")
    new.start()
    new.open("g", Membership(()))
    nodes.link()
    leader = nodes.leader()
    group = leader.group()
    assert group.change_members(ChangeKind.REMOVE, f"{gone.server}.d") is ChangeResult.PROPOSED
    nodes.settle()
    assert group.change_members(ChangeKind.ADD_LEARNER, f"{gone.server}.e") is ChangeResult.PROPOSED
    nodes.pass_time(1000)
    assert group.change_members(ChangeKind.PROMOTE, f"{gone.server}.e") is ChangeResult.PROPOSED
    nodes.pass_time(1000)
    assert new.owners["g"].commands == [b"1"]
    assert f"{gone.server}.e" in new.group().membership.voters


def test_a_disk_of_another_server_or_cluster_is_refused_and_left_alone() -> None:
    disk = SimDisk(Random(1))
    names = {"cluster_name": "c", "server_name": "a", "new_disk_id": "1"}
    storage, findings = GroupStorage.open(disk, DIRECTORY, **names)
    storage.close()
    with pytest.raises(StoreError, match="belongs to another server: it is of server 'a' of cluster 'c'"):
        GroupStorage.open(disk, DIRECTORY, **{**names, "server_name": "b"})
    with pytest.raises(StoreError, match="belongs to another cluster"):
        GroupStorage.open(disk, DIRECTORY, **{**names, "cluster_name": "d"})
    storage, again = GroupStorage.open(disk, DIRECTORY, **{**names, "new_disk_id": "2"})
    assert (again.replica_id, again.identity.boot) == (findings.replica_id, 2)


def test_a_disk_that_is_an_old_copy_is_refused_by_the_others() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    nodes.leader()
    one = nodes["a"]
    one.stop()
    one.start()
    one.stop()
    one.start()
    nodes.link()
    nodes.pass_time(1000)
    one.stop()
    one.disk = SimDisk(Random(1))
    one.start()
    nodes.link()
    nodes.pass_time(1000)
    assert one.node.is_refused
    one.node.tick()
    assert one.node.pump() == NodeOutput([], [], None, False)
    one.storage.mark_refused()
    one.stop()
    with pytest.raises(StoreError, match="it is an old copy"):
        one.start()


def test_a_group_created_while_the_log_may_lack_groups_begins_as_recovering() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    propose(nodes.leader(), b"1")
    lost = nodes["a"]
    lost.stop()
    for path, file in lost.disk.files():
        if path.endswith(".wal"):
            del file.data[:]
            file.sync_all()
    lost.start()
    assert lost.findings.may_lack_groups
    assert lost.node.unopened_groups == []
    lost.open("g", nodes.all)
    assert lost.group().is_recovering
    lost.node.set_groups_known()
    lost.open("new", Membership(("a.d",)))
    assert not lost.group("new").is_recovering
    nodes.link()
    nodes.pass_time(3000)
    assert lost.owners["g"].commands == [b"1"]
    assert not lost.group().is_recovering
    lost.stop(loses_power=True)
    lost.start()
    assert not lost.group().is_recovering


def test_removing_a_group_forgets_its_log_and_it_can_begin_again() -> None:
    nodes = NodesUnderTest("a")
    nodes.start("g", "h")
    propose(nodes.leader(), b"1")
    log = nodes["a"].group().replica.log
    assert log.entries_from(log.base_index + 1, 1 << 20)
    nodes["a"].node.remove_group("g")
    nodes["a"].node.remove_group("unknown")
    assert log.entries_from(log.base_index + 1, 1 << 20) == ()  # freed at once
    nodes["a"].open("g", nodes.all)
    propose(nodes.leader(), b"2")
    nodes["a"].stop(loses_power=True)
    nodes["a"].start()
    nodes.leader()
    assert nodes["a"].owners["g"].commands == [b"2"]


def test_a_group_without_an_owner_keeps_its_log_and_takes_no_part() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    propose(nodes.leader(), b"1")
    one = nodes.followers()[0]
    one.stop()
    opened, one.open = one.open, lambda *_: None  # type: ignore[method-assign, assignment]
    one.start()
    nodes.link()
    nodes.pass_time(2000)
    assert one.node.unopened_groups == ["g"]
    one.open = opened  # type: ignore[method-assign]
    one.stop()
    one.start()
    nodes.link()
    nodes.pass_time(2000)
    assert one.owners["g"].commands == [b"1"]


def test_a_clean_end_hands_over_what_the_server_leads() -> None:
    nodes = NodesUnderTest()
    nodes.start("g", "h")
    leader = nodes.leader()
    nodes.leader("h")
    leader.open("alone", Membership((leader.node.name,)))
    nodes.pass_time(2000)
    led = set(leader.node.led_groups)
    assert "alone" in led
    assert leader.node.leave() == len(led) - 1
    nodes.settle()
    assert leader.node.led_groups == ["alone"]
    assert leader.node.leave() == 0, "no other server can lead it"
    assert any(one.group().role is Role.LEADER for one in nodes.servers.values())


def test_mail_reaches_the_groups_owner_on_another_server() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    nodes["a"].group().send("b.d", b"block 7?")
    nodes.settle()
    assert nodes["b"].owners["g"].events[-1] == ("mail", "a.d", b"block 7?")
    nodes["b"].node.receive_mail("a.d", "unknown", b"")


def test_an_owner_that_misuses_its_group_gets_an_error() -> None:
    nodes = NodesUnderTest("a")
    nodes.start("g")
    group = nodes.leader().group()
    with pytest.raises(MisuseError, match="propose it in parts"):
        group.propose(bytes(PROPOSAL_BYTES_MAX + 1))
    with pytest.raises(MisuseError, match="open it"):
        nodes["a"].open("g", nodes.all)
    with pytest.raises(MisuseError, match="create it"):
        nodes["a"].open("unknown")


def test_idle_groups_send_and_write_nothing() -> None:
    nodes = NodesUnderTest()
    nodes.start(*(f"g{i}" for i in range(20)))
    nodes.leader("g0")
    nodes.pass_time(5000)
    frames = []
    for one in nodes.servers.values():
        output = one.node.pump()
        assert output.write is None
        frames += output.frames
    assert all(not frame.messages for frame in frames)


def test_an_idle_group_takes_a_checkpoint_when_it_is_asked_to() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    for _ in range(200):
        nodes.now += 50_000_000
        for one in nodes.servers.values():
            one.node.tick()
        nodes.settle()
    for one in nodes.servers.values():
        one.group().checkpoint()
    nodes.settle()
    assert all(one.group().replica.log.snapshot.index > 0 for one in nodes.servers.values())


def with_a_long_command(**options: object) -> tuple[NodesUnderTest, NodeUnderTest, NodeUnderTest]:
    """Nodes, the leader, and a follower that is at the first of three commands."""
    nodes = NodesUnderTest(**options)
    nodes.start("g")
    [late, _] = nodes.followers()
    late.owners["g"].takes_long = (b"long", b"longer")
    propose(nodes.leader(), b"long", b"2", b"longer", b"4")
    nodes.pass_time(500)
    return nodes, nodes.leader(), late


def test_commands_wait_behind_one_that_takes_long() -> None:
    nodes, leader, late = with_a_long_command()
    assert (late.owners["g"].commands, late.group().is_current) == ([], False)
    assert leader.owners["g"].commands == [b"long", b"2", b"longer", b"4"]
    late.owners["g"].end(late.group())
    assert late.owners["g"].commands == [b"long", b"2"]
    late.owners["g"].end(late.group())
    nodes.settle()
    assert (late.owners["g"].commands, late.group().is_current) == ([b"long", b"2", b"longer", b"4"], True)


def test_a_read_waits_for_a_command_that_takes_long() -> None:
    nodes = NodesUnderTest()
    nodes.start("g")
    leader = nodes.leader()
    owner = leader.owners["g"]
    owner.takes_long = (b"long",)
    propose(leader, b"long", b"2")
    assert leader.group().read_index(7)
    nodes.settle()
    assert not [one for one in owner.events if one[0] == "read"]
    owner.end(leader.group())
    assert [one for one in owner.events if one[0] == "read"] == [("read", 7, [b"long", b"2"])]


def test_a_member_that_is_elected_serves_when_it_has_applied_a_command_that_takes_long() -> None:
    nodes, leader, late = with_a_long_command()
    owner = late.owners["g"]
    leader.group().step_down(late.node.name)
    nodes.pass_time(500)
    assert late.group().role is Role.LEADER
    assert not [one for one in owner.events if one[0] is Role.LEADER]
    owner.end(late.group())
    owner.end(late.group())
    nodes.settle()
    assert [one for one in owner.events if one[0] is Role.LEADER]


def test_no_snapshot_is_taken_of_a_command_that_takes_long() -> None:
    nodes, _, late = with_a_long_command()
    late.group().checkpoint()
    nodes.pass_time(100)
    assert late.group().replica.log.snapshot.index == 0
    for _ in range(2):
        late.owners["g"].end(late.group())
    nodes.settle()
    assert late.group().replica.log.snapshot.index > 0


def test_a_state_of_another_server_waits_for_a_command_that_takes_long() -> None:
    nodes, leader, late = with_a_long_command(keep_bytes=0)
    owner = late.owners["g"]
    nodes.isolate(late.server)
    propose(leader, b"5")
    leader.group().checkpoint()
    nodes.pass_time(500)
    nodes.cut.clear()
    nodes.pass_time(2000)
    assert not [one for one in owner.events if one[0] == "installed"]
    for _ in range(2):
        owner.end(late.group())
    nodes.pass_time(2000)
    assert [one for one in owner.events if one[0] == "installed"]
    assert owner.commands == [b"long", b"2", b"longer", b"4", b"5"]


def test_a_server_that_ends_before_a_command_is_applied_applies_it_when_it_starts() -> None:
    nodes, _, late = with_a_long_command()
    late.stop(loses_power=True)
    late.start()
    nodes.link()
    nodes.pass_time(1000)
    assert late.owners["g"].commands == [b"long", b"2", b"longer", b"4"]


def test_what_is_raised_behind_a_command_that_takes_long_stops_the_group(
    noted_faults: list[BaseException],
) -> None:
    nodes, leader, late = with_a_long_command()
    late.owners["g"].fails_at = b"2"
    late.owners["g"].end(late.group())
    nodes.settle()
    assert late.owners["g"].events[-1][0] == "failed"
    assert leader.owners["g"].events[-1][0] != "failed"
    noted_faults.clear()
