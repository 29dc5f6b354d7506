"""Servers in the meta state: they join, are seen, evacuated, removed, and come back."""

from __future__ import annotations

import pytest

from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import PeerStatus
from penstock.jetstream.meta.meta_effects import PeerAction, PeerEffect, StreamEffect, WorkLeft
from tests.support.meta_groups import TICKET, MetaGroup, error_of, is_answered, text_of

pytestmark = pytest.mark.feature("cluster.administration")


def actions(effects: list[object]) -> list[PeerAction]:
    return [one.action for one in effects if isinstance(one, PeerEffect)]


def test_a_server_joins_once_and_changes_with_its_configuration() -> None:
    group = MetaGroup(1)
    assert actions(group.effects) == [PeerAction.JOINED]
    group.join("A")
    assert group.effects == []
    group.join("A", tags=("x",))
    assert actions(group.effects) == [PeerAction.CHANGED]
    assert group.machine.tables.peers["A"].member == "a.d"


def test_the_first_founder_of_a_cluster_names_it() -> None:
    group = MetaGroup(0)
    group.apply(commands.FoundCluster("other"))
    assert group.machine.tables.cluster_id == "id"


def test_only_changes_of_what_is_seen_are_effects() -> None:
    group = MetaGroup(2)
    group.see("A", "Z", online=False)
    assert group.effects == [PeerEffect(PeerAction.CHANGED, "A")]
    group.see("A", online=False)
    assert group.effects == []


def test_a_removed_server_leaves_its_streams_and_then_the_group() -> None:
    group = MetaGroup(4)
    group.create("S")
    group.create("T")
    effects = group.apply(commands.RemoveServer("A", TICKET))
    assert PeerEffect(PeerAction.LEAVES, "A", TICKET) in effects
    assert "A" not in group.peers("S") + group.peers("T")
    assert error_of(group.apply(commands.RemoveServer("B", TICKET))) == 10202
    assert actions(group.apply(commands.PeerGone("A"))) == [PeerAction.GONE]
    assert set(group.machine.tables.peers) == set("BCD")
    assert group.apply(commands.PeerGone("B")) == []
    assert error_of(group.apply(commands.RemoveServer("A", TICKET))) == 10044
    assert error_of(group.apply(commands.RemoveServer("B", TICKET))) == 0


def test_a_stream_that_finds_no_other_server_shrinks_and_is_healed_by_the_next_one() -> None:
    group = MetaGroup(3)
    group.create("S")
    group.apply(commands.RemoveServer("A"))
    assert group.peers("S") == "BC"
    group.settle("S")
    group.apply(commands.PeerGone("A"))
    assert group.stream("S").is_short
    group.join("D")
    assert group.peers("S") == "BCD"
    group.settle("S")
    assert not group.stream("S").is_short


def test_the_only_replica_without_another_server_stays_where_it_is() -> None:
    group = MetaGroup(1)
    group.create("S", 1)
    group.apply(commands.RemoveServer("A"))
    assert group.peers("S") == "A"


def test_an_evacuated_server_gets_no_streams_until_its_next_start() -> None:
    group = MetaGroup(4)
    group.create("S")
    assert is_answered(group.apply(commands.EvacuateServer("A", TICKET)))
    assert group.machine.tables.peers["A"].status is PeerStatus.EVACUATED
    assert group.peers("S") == "BCD"
    group.create("T", subjects=["t"])
    assert group.peers("T") == "BCD"
    group.join("A")
    assert group.machine.tables.peers["A"].status is PeerStatus.EVACUATED
    group.join("A", boot=2)
    assert group.machine.tables.peers["A"].status is PeerStatus.MEMBER
    assert error_of(group.apply(commands.EvacuateServer("Z", TICKET))) == 10044


def test_a_start_does_not_undo_a_removal() -> None:
    group = MetaGroup(4)
    group.apply(commands.RemoveServer("A"))
    group.join("A", boot=2)
    assert group.machine.tables.peers["A"].status is PeerStatus.REMOVING


def test_many_streams_leave_a_server_in_slices() -> None:
    group = MetaGroup(4, lazy=True)
    for number in range(20):
        group.create(f"S{number}")
    before = len(group.machine.tables.streams_on("A"))
    assert before == 15
    group.apply(commands.EvacuateServer("A"))
    command: commands.MetaCommand = commands.Reassign(4)
    rounds, moved = 0, 0
    while True:
        effects = group.apply(command)
        slice_moved = sum(isinstance(one, StreamEffect) for one in effects)
        assert slice_moved <= 4
        moved += slice_moved
        rounds += 1
        left = [one.command for one in effects if isinstance(one, WorkLeft)]
        if not left:
            break
        command = left[0]
    assert (rounds, moved) == (4, 15)
    assert not any("A" in group.stream(f"S{number}").target for number in range(20))


def test_streams_that_cannot_leave_do_not_keep_the_slices_busy() -> None:
    group = MetaGroup(1, lazy=True)
    for number in range(5):
        group.create(f"S{number}", 1)
    group.apply(commands.EvacuateServer("A"))
    effects = group.apply(commands.Reassign(3))
    assert effects == [WorkLeft(commands.Reassign(3, after=("$G", "S2")))]
    assert group.apply(commands.Reassign(3, after=("$G", "S2"))) == []


def test_a_scale_down_in_progress_goes_on_without_the_removed_server() -> None:
    group = MetaGroup(5)
    group.create("S", 5)
    group.update("S", num_replicas=3)
    group.apply(commands.RemoveServer("A"))
    stream = group.stream("S")
    assert stream.desired is not None
    assert stream.desired.shrink_to == 3
    assert sorted(stream.target) == ["B", "C", "D", "E"]


@pytest.mark.feature("cluster.tags")
def test_a_replacement_has_a_unique_tag_of_its_own() -> None:
    group = MetaGroup(0)
    for name, zone in (("A", 1), ("B", 2), ("C", 3), ("D", 1), ("E", 2)):
        group.join(name, tags=(f"az:{zone}",))
    group.create("S", unique_tag="az:")
    zones = {group.machine.tables.peers[peer].tags for peer in group.stream("S").target}
    assert len(zones) == 3
    gone = next(peer for peer in group.stream("S").target if peer in "AD")
    remove = commands.RemoveFromStream("$G", "S", gone, "az:", TICKET)
    assert is_answered(group.apply(remove))
    assert set(group.stream("S").target) & set("AD") == set("AD") - {gone}


def test_an_offline_server_of_a_quorum_may_be_chosen_and_fewer_may_not() -> None:
    group = MetaGroup(3)
    group.see("A", online=False)
    group.create("S")
    assert group.peers("S") == "ABC"
    assert group.stream("S").group.preferred != "A"
    group.see("B", online=False)
    assert text_of(group.create("T", subjects=["t"])).endswith("peer offline")


def test_deleted_streams_of_a_server_that_is_gone_need_no_confirmation() -> None:
    group = MetaGroup(3)
    group.create("S", 3)
    group.apply(commands.DeleteStream("$G", "S"))
    (tombstone,) = group.machine.tables.tombstones.values()
    for peer in "BC":
        group.apply(commands.ConfirmRemoved(peer, (tombstone.incarnation,), len(group.log)))
    group.apply(commands.RemoveServer("A"))
    group.apply(commands.PeerGone("A"))
    assert group.machine.tables.tombstones == {}
