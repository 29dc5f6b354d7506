"""Streams in the meta state: what is created, updated, scaled, moved and removed, and what is refused."""

from __future__ import annotations

import pytest

from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.meta_commands import AccountRules, PlacementRules
from penstock.jetstream.meta.meta_effects import AssetAction, StreamEffect
from penstock.jetstream.meta.meta_machine import MetaMachine
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AccountLimits, RetentionPolicy, StorageType, StreamSource
from tests.support.meta_groups import TICKET, MetaGroup, error_of, is_answered, no_limits, text_of

pytestmark = pytest.mark.feature("cluster.administration")


def action_of(effects: list[object]) -> AssetAction:
    return next(one.action for one in effects if isinstance(one, StreamEffect))


def test_a_stream_gets_servers_a_group_and_an_incarnation() -> None:
    group = MetaGroup()
    effects = group.create("S")
    stream = group.stream("S")
    assert sorted(stream.group.peers) == ["A", "B", "C"]
    assert stream.group.name.startswith("S-R3F-")
    assert len(stream.group.name) == len("S-R3F-") + 8
    assert stream.group.preferred in stream.group.peers
    assert stream.incarnation == len(group.log)
    assert stream.created == group.now
    assert effects == [StreamEffect(AssetAction.CREATED, "$G", "S", stream.incarnation, TICKET)]


def test_the_same_stream_again_is_present_and_another_one_is_refused() -> None:
    group = MetaGroup()
    group.create("S")
    before = group.stream("S")
    assert action_of(group.create("S")) is AssetAction.PRESENT
    assert group.stream("S") == before
    assert text_of(group.create("S", max_msgs=5)) == codes.STREAM_NAME_EXIST.description
    assert error_of(group.create("S", is_restore=True)) == 10130
    assert group.stream("S") == before


def test_of_two_streams_with_one_subject_the_first_in_the_log_wins() -> None:
    group = MetaGroup()
    assert error_of(group.create("S", subjects=["a.*"])) == 0
    assert error_of(group.create("T", subjects=["a.b"])) == 10065
    assert error_of(group.create("T", subjects=["a.b"], account="OTHER")) == 0
    group.apply(commands.DeleteStream("$G", "S"))
    assert error_of(group.create("T", subjects=["a.b"])) == 0


def test_an_update_to_the_subjects_of_another_stream_is_refused() -> None:
    group = MetaGroup()
    group.create("S", subjects=["a"])
    group.create("T", subjects=["b"])
    assert error_of(group.update("T", subjects=["b", "a"])) == 10065
    assert error_of(group.update("S", subjects=["c"])) == 0
    assert error_of(group.update("T", subjects=["b", "a"])) == 0


def test_mirrors_of_each_other_are_refused() -> None:
    group = MetaGroup()
    group.create("S", mirror=StreamSource(name="T"))
    assert error_of(group.create("T", mirror=StreamSource(name="S"))) == 10052


@pytest.mark.parametrize(
    ("limits", "fields", "code"),
    [
        ({"max_streams": 1}, {}, 10027),
        ({"max_storage": 500}, {"max_bytes": 100}, 10047),
        ({"max_storage": 600}, {"max_bytes": 100}, 0),
        ({"max_memory": 500}, {"max_bytes": 100}, 0),
        ({"max_memory": 299}, {"max_bytes": 100, "storage": StorageType.MEMORY}, 10028),
        ({"max_bytes_required": True}, {}, 10113),
        ({"storage_max_stream_bytes": 99}, {"max_bytes": 100}, 10122),
    ],
)
def test_the_limits_of_an_account_count_every_replica(
    limits: dict[str, int], fields: dict[str, object], code: int
) -> None:
    group = MetaGroup()
    group.create("S", subjects=["s"], max_bytes=100)
    assert error_of(group.create("T", rules=no_limits(**limits), **fields)) == code


def test_a_tier_counts_its_own_streams_once() -> None:
    group = MetaGroup()
    rules = AccountRules({"R3": AccountLimits(max_streams=2, max_storage=200)})
    assert error_of(group.create("S", max_bytes=100, rules=rules)) == 0
    assert error_of(group.create("T", 1, max_bytes=100, rules=rules)) == 10120
    assert error_of(group.create("T", max_bytes=101, rules=rules)) == 10047
    assert error_of(group.create("T", max_bytes=100, rules=rules)) == 0
    assert error_of(group.create("U", rules=rules)) == 10027


def test_reservations_of_a_server_count_before_anything_is_stored() -> None:
    group = MetaGroup(1, max_storage=1000)
    assert error_of(group.create("S", 1, max_bytes=600)) == 0
    assert text_of(group.create("T", 1, max_bytes=600)).endswith("insufficient storage")
    assert error_of(group.create("T", 1, max_bytes=400)) == 0


def test_streams_spread_evenly_over_servers_that_are_alike() -> None:
    group = MetaGroup(5)
    for number in range(20):
        group.create(f"S{number}")
    loads = [group.machine.tables.load(peer).replicated for peer in "ABCDE"]
    assert loads == [12] * 5
    leads = group.machine.tables.leads()
    assert max(leads.values()) - min(leads.values()) <= 1


def test_a_restored_stream_is_on_the_server_that_gets_its_data() -> None:
    group = MetaGroup(5)
    group.create("S", 3, on="E", is_restore=True)
    assert "E" in group.stream("S").group.peers
    assert group.stream("S").group.preferred == "E"


def test_too_many_replicas_are_refused_with_the_official_text() -> None:
    effects = MetaGroup().create("S", 5)
    assert error_of(effects) == 10005
    assert text_of(effects) == "no suitable peers for placement"


def test_a_refused_command_changes_nothing_but_the_index_and_the_time() -> None:
    group = MetaGroup()
    group.create("S", subjects=["a"])
    tables = group.machine.tables
    before = tables.encode()
    assert error_of(group.create("T", subjects=["a"])) == 10065
    assert error_of(group.update("S", num_replicas=5)) == 10005
    assert error_of(group.consume("S", "c", deliver_policy="last")) == 0
    group.apply(commands.DeleteConsumer("$G", "S", "c"))
    again = MetaMachine.restore(before)
    again.tables.begin(tables.applied, tables.now)
    assert again.snapshot() == tables.encode()


# --- scale ---------------------------------------------------------------------------------------


def test_a_scale_up_keeps_the_servers_and_renames_a_group_of_one() -> None:
    group = MetaGroup(5)
    group.create("S", 1)
    (home,) = group.stream("S").group.peers
    effects = group.update("S", num_replicas=3)
    stream = group.stream("S")
    assert stream.group.peers == (home,)
    assert stream.target[0] == home
    assert len(set(stream.target)) == 3
    assert stream.group.name.startswith("S-R3F-")
    assert stream.group.preferred == home
    assert [one.action for one in effects if isinstance(one, StreamEffect)] == [
        AssetAction.UPDATED,
        AssetAction.MOVED,
    ]
    group.settle("S")
    assert group.stream("S").desired is None
    assert set(group.stream("S").group.peers) == set(stream.target)
    name = group.stream("S").group.name
    group.update("S", num_replicas=5)
    assert group.stream("S").group.name == name


def test_a_scale_down_lets_the_leader_choose_and_remembers_who_leaves() -> None:
    group = MetaGroup()
    group.create("S")
    group.update("S", num_replicas=1)
    stream = group.stream("S")
    assert stream.desired is not None
    assert stream.desired.shrink_to == 1
    assert sorted(stream.hosts) == ["A", "B", "C"]
    group.apply(commands.ChoosePeers("$G", "S", stream.incarnation, ("A", "B")))  # one too many
    group.apply(commands.ChoosePeers("$G", "S", stream.incarnation, ("Z",)))
    assert group.stream("S").target == stream.target
    group.apply(commands.ChoosePeers("$G", "S", stream.incarnation, ("B",)))
    assert group.stream("S").target == ("B",)
    assert sorted(group.stream("S").hosts) == ["A", "B", "C"]
    group.apply(commands.SettleMembers("$G", "S", stream.incarnation, ("B",), len(group.log)))
    settled = group.stream("S")
    assert settled.group.peers == ("B",)
    assert settled.leaving == ("A", "C")
    group.apply(commands.ConfirmRemoved("A", (stream.incarnation,), len(group.log)))
    assert group.stream("S").leaving == ("C",)


def test_a_late_report_of_members_takes_the_stream_from_no_server() -> None:
    group = MetaGroup()
    group.create("S", 1)
    (home,) = group.stream("S").group.peers
    incarnation, before = group.stream("S").incarnation, len(group.log)
    group.update("S", num_replicas=3)
    group.apply(commands.CancelMove("$G", "S"))
    late = commands.SettleMembers("$G", "S", incarnation, (home,), before)
    group.apply(late)
    assert sorted(group.stream("S").hosts) == ["A", "B", "C"]
    group.settle("S")
    assert group.stream("S").hosts == (home,)
    group.apply(late)
    assert group.stream("S").hosts == (home,)


def test_a_server_that_was_wanted_for_a_while_has_the_stream_until_the_group_reports() -> None:
    group = MetaGroup(4)
    group.create("S", 1, on="A")
    group.update("S", num_replicas=3)
    wanted = group.stream("S").target
    group.apply(commands.CancelMove("$G", "S"))
    assert set(group.stream("S").hosts) == set(wanted)
    assert group.stream("S").leaving == ()
    group.settle("S")
    assert set(group.stream("S").leaving) == set(wanted) - {"A"}


def test_scales_may_follow_each_other_before_the_first_is_done() -> None:
    group = MetaGroup(5)
    group.create("S", 1)
    assert error_of(group.update("S", num_replicas=3)) == 0
    assert error_of(group.update("S", num_replicas=5)) == 0
    assert len(group.stream("S").target) == 5
    origin = group.stream("S").desired
    assert origin is not None
    assert origin.origin is not None
    assert origin.origin.replicas == 1


def test_a_scale_up_beyond_the_limit_of_replicated_streams_is_refused() -> None:
    group = MetaGroup()
    group.create("S", subjects=["s"])
    group.create("T", 1)
    assert error_of(group.update("T", num_replicas=3, ha_max=1)) == 10023
    assert group.stream("T").config.num_replicas == 1


# --- move ----------------------------------------------------------------------------------------


def tagged(count: int = 6) -> MetaGroup:
    """Servers A, C, E with tag x and B, D, F with tag y."""
    group = MetaGroup(0)
    for number, name in enumerate("ABCDEF"[:count]):
        group.join(name, tags=("y",) if number % 2 else ("x",))
    return group


def test_another_placement_moves_and_keeps_the_servers_that_suit() -> None:
    group = tagged()
    group.create("S", 2, tags=["x"])
    before = group.stream("S").group.peers
    group.update("S", tags=["y"])
    stream = group.stream("S")
    assert stream.desired is not None
    assert stream.desired.is_move
    assert set(stream.target) <= set("BDF")
    assert set(before) <= set(stream.hosts)
    group.settle("S")
    assert sorted(group.stream("S").leaving) == sorted(before)
    for tags in (["!x"], ["!X"], [" Y "]):  # the servers are those that suit
        group.update("S", tags=tags)
        assert group.stream("S").desired is None


def test_a_move_is_refused_with_a_scale_and_while_something_is_in_progress() -> None:
    group = tagged()
    group.create("S", 1, tags=["x"])
    assert error_of(group.update("S", tags=["y"], num_replicas=3)) == 10123
    assert error_of(group.update("S", tags=["y"], retention=RetentionPolicy.INTEREST)) == 10123
    assert error_of(group.update("S", tags=["y"])) == 0
    assert error_of(group.update("S", tags=["x"])) == 10124
    assert error_of(group.update("S", num_replicas=3)) == 10124
    assert error_of(group.update("S", max_msgs=7)) == 0
    group.settle("S")
    assert error_of(group.update("S", num_replicas=3)) == 0
    assert error_of(group.update("S", tags=["x"])) == 10226


def test_a_move_without_servers_is_refused_with_the_tags() -> None:
    group = tagged()
    group.create("S", 3, tags=["x"])
    assert text_of(group.update("S", tags=["z"])) == (
        "no suitable peers for placement, tags not matched ['z']"
    )


@pytest.mark.parametrize("settled", [False, True])
def test_a_cancelled_move_goes_back_to_where_it_began(settled: bool) -> None:
    group = tagged()
    group.create("S", 2, tags=["x"])
    before = group.stream("S")
    assert error_of(group.apply(commands.CancelMove("$G", "S", TICKET))) == 10129
    group.update("S", tags=["y"])
    if settled:
        group.settle("S")
        assert error_of(group.apply(commands.CancelMove("$G", "S", TICKET))) == 10129
        return
    assert error_of(group.apply(commands.CancelMove("$G", "S", TICKET))) == 0
    stream = group.stream("S")
    assert stream.target == before.group.peers
    assert stream.config == before.config
    assert error_of(group.update("S", tags=["y"])) == 10124
    group.settle("S")
    assert group.stream("S").group.peers == before.group.peers
    assert group.stream("S").desired is None


def test_a_cancelled_scale_restores_the_replicas() -> None:
    group = MetaGroup()
    group.create("S", 1)
    group.update("S", num_replicas=3)
    group.apply(commands.CancelMove("$G", "S", TICKET))
    assert group.stream("S").config.num_replicas == 1
    assert len(group.stream("S").target) == 1
    group.settle("S")
    assert len(group.stream("S").leaving) == 2


def test_a_stream_moves_off_a_named_server() -> None:
    group = MetaGroup(4)
    group.create("S")
    leave = group.stream("S").group.peers[1]
    rules = PlacementRules(("c",))
    move = commands.MoveStream("$G", "S", rules, leave.lower(), (), TICKET)
    assert error_of(group.apply(move)) == 0
    assert leave not in group.stream("S").target
    assert len(group.stream("S").target) == 3
    assert error_of(group.apply(move)) == 10040
    other = group.stream("S").target[0]
    assert error_of(group.apply(commands.MoveStream("$G", "S", rules, other, (), TICKET))) == 10124
    assert error_of(group.apply(commands.MoveStream("$G", "S", rules, "none", (), TICKET))) == 10044


def test_a_stream_moves_to_another_cluster_when_its_own_has_no_server_left() -> None:
    group = MetaGroup(3)
    for name in "XYZ":
        group.join(name, cluster="d")
    group.create("S")
    group.apply(commands.MoveStream("$G", "S", PlacementRules(("c",)), "a", (), TICKET))
    assert group.peers("S") == "XYZ"
    group.settle("S")
    assert group.stream("S").group.cluster == "d"


# --- remove --------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_a_tombstone_until_its_servers_confirm() -> None:
    group = MetaGroup()
    group.create("S")
    incarnation = group.stream("S").incarnation
    effects = group.apply(commands.DeleteStream("$G", "S", ticket=TICKET))
    assert action_of(effects) is AssetAction.REMOVED
    assert is_answered(effects)
    tombstones = group.machine.tables.tombstones
    assert sorted(tombstones[incarnation].peers) == ["A", "B", "C"]
    for peer in "ABC":
        group.apply(commands.ConfirmRemoved(peer, (incarnation,), len(group.log)))
    assert tombstones == {}
    assert error_of(group.apply(commands.DeleteStream("$G", "S", ticket=TICKET))) == 10059


def test_a_member_that_cannot_create_a_stream_answers_with_its_error() -> None:
    group = MetaGroup()
    group.create("S")
    incarnation = group.stream("S").incarnation
    failed = commands.DeleteStream("$G", "S", incarnation, codes.INSUFFICIENT_RESOURCES, TICKET)
    assert error_of(group.apply(failed)) == 10023
    assert group.machine.tables.find_stream("$G", "S") is None
    group.create("S")
    assert group.apply(failed) == []
    assert group.stream("S").incarnation != incarnation


def test_a_removed_member_is_replaced() -> None:
    group = MetaGroup(4)
    group.create("S")
    gone = group.stream("S").group.peers[0]
    remove = commands.RemoveFromStream("$G", "S", gone.lower(), ticket=TICKET)
    assert is_answered(group.apply(remove))
    assert gone not in group.stream("S").target
    assert len(group.stream("S").target) == 3
    assert error_of(group.apply(commands.CancelMove("$G", "S", TICKET))) == 10129
    group.settle("S")
    assert error_of(group.apply(remove)) == 10040


def test_a_member_without_a_replacement_is_not_removed() -> None:
    group = MetaGroup()
    group.create("S")
    before = group.stream("S")
    assert error_of(group.apply(commands.RemoveFromStream("$G", "S", "A", ticket=TICKET))) == 10075
    assert group.stream("S") == before
    assert error_of(group.apply(commands.RemoveFromStream("$G", "S", "Z", ticket=TICKET))) == 10040


def test_an_offline_stream_is_not_updated_and_can_be_deleted() -> None:
    group = MetaGroup()
    group.create("S")
    group.see("A", "B", "C", online=False)
    assert error_of(group.update("S", max_msgs=1)) == 10118
    assert is_answered(group.apply(commands.DeleteStream("$G", "S", ticket=TICKET)))


def test_an_account_is_purged_in_slices() -> None:
    group = MetaGroup(lazy=True)
    for number in range(5):
        group.create(f"S{number}", 1)
    group.create("T", 1, account="OTHER")
    purge = commands.PurgeAccount("$G", 2, TICKET)
    for left in (3, 1):
        effects = group.apply(purge)
        assert len(group.machine.tables.assets("$G").streams) == left
        assert not is_answered(effects)
    assert is_answered(group.apply(purge))
    assert set(group.machine.tables.accounts) == {"OTHER"}
    assert is_answered(group.apply(purge))


def test_immutable_fields_are_checked_when_the_update_is_applied() -> None:
    group = MetaGroup()
    group.create("S")
    assert error_of(group.update("S", storage=StorageType.MEMORY)) == 10052


def test_limits_below_those_of_consumers_name_the_consumers() -> None:
    group = MetaGroup()
    group.create("S")
    for name in ("b", "a"):
        group.consume("S", name, durable_name=name, max_ack_pending=100)
    limits = type(group.stream("S").config.consumer_limits)(max_ack_pending=50)
    effects = group.update("S", consumer_limits=limits)
    assert error_of(effects) == 10069
    assert text_of(effects) == "change to limits violates consumers: a, b"
