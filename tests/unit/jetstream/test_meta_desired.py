"""What a server should have, what it does about the difference, and how a group changes its members."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream.consumer.state import ConsumerMeta
from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.desired_state import (
    AwaitMeta,
    ConfirmMissing,
    ConsumerDifference,
    Difference,
    QuarantineStored,
    RelabelStored,
    RemoveStored,
    StartStream,
    StoredStream,
    consumer_difference,
    differences,
    wanted,
)
from penstock.jetstream.meta.membership_steps import (
    AwaitProgress,
    ChangeMember,
    GroupView,
    StatusType,
    TransferLeadership,
    next_change,
    next_step,
)
from penstock.protocol.api import ApiConsumerConfig
from penstock.raft.membership import ChangeKind, Membership
from tests.support.examples import examples
from tests.support.meta_groups import MetaGroup, error_of

pytestmark = pytest.mark.feature("cluster.administration")


def stored(group: MetaGroup, stream_name: str, /, **fields: object) -> StoredStream:
    """The stream as a server stores it that has it as assigned."""
    stream = group.stream(stream_name)
    known = {"account": "$G", "name": stream_name, "cluster_id": "id"}
    known |= {"incarnation": stream.incarnation, "group": stream.group.name}
    return StoredStream(**{**known, **fields})  # type: ignore[arg-type]


def of(group: MetaGroup, peer: str, *have: StoredStream, is_current: bool = True) -> list[Difference]:
    return differences(group.machine.tables, peer, have, is_current=is_current)


def kinds(found: list[Difference]) -> list[type]:
    return [type(one) for one in found]


# --- differences ---------------------------------------------------------------------------------


def test_a_server_starts_what_it_should_have_and_founds_the_group() -> None:
    group = MetaGroup()
    group.create("S")
    (start,) = of(group, "A")
    assert isinstance(start, StartStream)
    assert sorted(start.founders) == ["a.d", "b.d", "c.d"]
    assert of(group, "A", stored(group, "S")) == []
    assert [one.name for one in wanted(group.machine.tables, "A")] == ["S"]


def test_a_server_that_joins_later_or_has_lost_its_disk_founds_nothing() -> None:
    group = MetaGroup(4)
    group.create("S", 1)
    (home,) = group.stream("S").group.peers
    group.update("S", num_replicas=3)
    for peer in group.stream("S").target:
        (start,) = of(group, peer)
        assert isinstance(start, StartStream)
        assert start.founders == ((f"{home.lower()}.d",) if peer == home else ())
    group.join(home, disk="new", boot=2)
    (start,) = of(group, home)
    assert isinstance(start, StartStream)
    assert start.founders == ()


def test_a_deleted_stream_is_removed_also_by_a_server_that_was_down() -> None:
    group = MetaGroup()
    group.create("S")
    old = stored(group, "S")
    group.apply(commands.DeleteStream("$G", "S"))
    group.create("S")
    removal, start = of(group, "A", old)
    assert removal == RemoveStored(old, "the stream was deleted")
    assert isinstance(start, StartStream)
    assert of(group, "A", old, stored(group, "S")) == [removal]


def test_a_stream_that_moved_away_is_removed_and_confirmed() -> None:
    group = MetaGroup(4)
    group.create("S")
    (away,) = set("ABCD") - set(group.stream("S").group.peers)
    leave = group.stream("S").group.peers[0]
    have = stored(group, "S")
    group.apply(commands.RemoveFromStream("$G", "S", leave))
    assert of(group, leave, have) == []
    assert kinds(of(group, away)) == [StartStream]
    group.settle("S")
    assert of(group, leave, have) == [RemoveStored(have, "the stream has moved to other servers")]
    assert of(group, leave, have, is_current=False) == [AwaitMeta(have)]
    assert of(group, leave) == [ConfirmMissing((have.incarnation,))]
    group.apply(commands.ConfirmRemoved(leave, (have.incarnation,), len(group.log)))
    assert of(group, leave) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"incarnation": 77}, "does not know the stream and did not delete it"),
        ({"cluster_id": "other"}, "belongs to cluster other"),
        ({"cluster_id": ""}, "without a cluster"),
    ],
)
def test_a_stream_that_the_cluster_does_not_know_is_quarantined(fields: dict[str, object], text: str) -> None:
    group = MetaGroup()
    group.create("S")
    unknown = stored(group, "S", name="LOST", **fields)
    assert of(group, "A", unknown, stored(group, "S"), is_current=False) == [AwaitMeta(unknown)]
    (found,) = of(group, "A", unknown, stored(group, "S"))
    assert isinstance(found, QuarantineStored)
    assert text in found.reason


def test_a_meta_state_that_was_lost_costs_no_stream() -> None:
    group = MetaGroup()
    group.create("S")
    have = stored(group, "S")
    empty = MetaGroup()
    assert kinds(of(empty, "A", have)) == [QuarantineStored]
    empty.create("S")
    empty.create("T", subjects=["t"])
    other = stored(group, "S", incarnation=empty.stream("S").incarnation + 1)
    assert kinds(of(empty, "A", other)) == [QuarantineStored, StartStream, StartStream]


def test_another_stream_of_the_name_is_set_aside_before_the_new_one_starts() -> None:
    group = MetaGroup()
    group.create("S")
    other = stored(group, "S", incarnation=1)
    found = of(group, "A", other)
    assert kinds(found) == [QuarantineStored, StartStream]
    assert "another stream of this name" in found[0].reason  # type: ignore[union-attr]


def test_a_scaled_group_gets_its_new_name() -> None:
    group = MetaGroup()
    group.create("S", 1)
    (home,) = group.stream("S").group.peers
    have = stored(group, "S")
    group.update("S", num_replicas=3)
    assert of(group, home, have) == [RelabelStored(have, group.stream("S"))]


def test_a_stream_from_before_the_cluster_is_adopted_and_keeps_its_files() -> None:
    group = MetaGroup()
    group.create("T", subjects=["t"])
    before = stored(group, "T", name="S", cluster_id="", incarnation=0)
    config = group.stream("T").config
    adopt = commands.AdoptStream("$G", type(config)(name="S", subjects=["s"]), 5, "B", "", 0, b"t")
    assert kinds(of(group, "B", before, stored(group, "T"))) == [QuarantineStored]
    assert error_of(group.apply(adopt)) == 0
    stream = group.stream("S")
    assert (stream.hosts, stream.created) == (("B",), 5)
    assert of(group, "B", before, stored(group, "T")) == [RelabelStored(before, stream)]
    assert of(group, "B", stored(group, "S"), stored(group, "T")) == []
    assert error_of(group.apply(adopt)) == 0
    elsewhere = commands.AdoptStream("$G", type(config)(name="S", subjects=["s"]), 5, "A", "", 0, b"t")
    assert error_of(group.apply(elsewhere)) == 10058
    group.update("S", num_replicas=3)
    assert set(group.stream("S").target) == set("ABC")


def test_consumers_that_were_created_again_are_dropped_and_set() -> None:
    group = MetaGroup()
    group.create("S")
    metas = {}
    for name in "abcd":
        group.consume("S", name, durable_name=name)
        one = group.consumer("S", name)
        metas[name] = ConsumerMeta(one.config, name, one.created, 1)
    differences = {name: consumer_difference(group.consumer("S", name), metas[name]) for name in metas}
    assert set(differences.values()) == {ConsumerDifference.NONE}
    group.apply(commands.DeleteConsumer("$G", "S", "a"))
    group.consume("S", "a", durable_name="a")
    group.consume("S", "b", durable_name="b", max_ack_pending=9)
    group.apply(commands.DeleteConsumer("$G", "S", "c"))
    assigned = group.machine.tables.consumers("$G", "S")
    assert {name: consumer_difference(assigned.get(name), metas[name]) for name in metas} == {
        "a": ConsumerDifference.TO_DROP,
        "b": ConsumerDifference.TO_SET,
        "c": ConsumerDifference.TO_DROP,
        "d": ConsumerDifference.NONE,
    }
    assert consumer_difference(assigned["a"], None) is ConsumerDifference.TO_SET
    assert consumer_difference(None, None) is ConsumerDifference.NONE


@pytest.mark.parametrize("kind", [{"direct": True}, {"sourcing": True}])
def test_consumers_of_mirrors_and_sources_are_not_compared(kind: dict[str, bool]) -> None:
    config = ApiConsumerConfig(name="m", **kind)
    assert consumer_difference(None, ConsumerMeta(config, "m", 1, 1)) is ConsumerDifference.NONE
    driven = ConsumerMeta(ApiConsumerConfig(name="m"), "m", 1, 1, driven=True)
    assert consumer_difference(None, driven) is ConsumerDifference.NONE


# --- membership ----------------------------------------------------------------------------------


def view(voters: str, learners: str = "", **fields: object) -> GroupView:
    known = {"leader": voters[:1], "online": set("ABCDEF"), "caught_up": set()}
    return GroupView(voters=tuple(voters), learners=tuple(learners), **{**known, **fields})  # type: ignore[arg-type]


def waits(step: object) -> str:
    assert isinstance(step, AwaitProgress)
    return step.status.type


def test_a_server_joins_as_a_learner_and_is_promoted_when_it_has_the_log() -> None:
    assert next_change(view("A"), "AB") == ChangeMember(ChangeKind.ADD_LEARNER, "B")
    assert waits(next_change(view("A", "B"), "AB")) == StatusType.CATCHUP
    assert next_change(view("A", "B", caught_up={"B"}), "AB") == ChangeMember(ChangeKind.PROMOTE, "B")
    assert next_change(view("AB"), "AB") is None


def test_one_change_is_committed_before_the_next() -> None:
    assert waits(next_change(view("A", is_changing=True), "AB")) == StatusType.MEMBERSHIP


def test_others_leave_after_those_who_join_and_the_leader_last() -> None:
    assert next_change(view("ABC", "D", caught_up={"D"}), "BCD") == ChangeMember(ChangeKind.PROMOTE, "D")
    assert next_change(view("ABCD"), "BCD") == TransferLeadership("B")
    assert next_change(view("ABCD", leader="C"), "BCD") == ChangeMember(ChangeKind.REMOVE, "A")
    assert next_change(view("ABC"), "C") == ChangeMember(ChangeKind.REMOVE, "B")
    assert next_change(view("AC", lags={"C": 1}), "C") == TransferLeadership("C")


def test_an_offline_member_leaves_first() -> None:
    step = next_change(view("ABCDE", online=set("ABCD")), "ABC")
    assert step == ChangeMember(ChangeKind.REMOVE, "E")


def test_a_step_that_would_cost_the_majority_waits() -> None:
    assert waits(next_change(view("ABC", online={"A", "C"}, leader="A"), "AB")) == StatusType.QUORUM


def test_a_wanted_server_that_is_offline_is_waited_for() -> None:
    assert waits(next_change(view("A", online={"A"}), "AB")) == StatusType.BLOCKED
    assert waits(next_change(view("A", "B", online={"A"}), "AB")) == StatusType.BLOCKED
    step = next_change(view("A", "B", online={"A", "C"}), "ABC")
    assert step == ChangeMember(ChangeKind.ADD_LEARNER, "C")


def test_learners_that_are_not_wanted_leave() -> None:
    assert next_change(view("A", "B"), "A") == ChangeMember(ChangeKind.REMOVE, "B")


def group_view(group: MetaGroup, name: str, **fields: object) -> GroupView:
    members = [f"{peer.lower()}.d" for peer in group.stream(name).group.peers]
    known = {"leader": members[0], "voters": members, "online": set(members)}
    return GroupView(**{**known, **fields})  # type: ignore[arg-type]


def test_the_leader_of_a_group_reports_when_it_is_as_wanted() -> None:
    group = MetaGroup()
    group.create("S")
    tables, stream = group.machine.tables, group.stream("S")
    assert next_step(tables, stream, group_view(group, "S"), is_current=True) is None
    group.update("S", num_replicas=2)
    assert (
        waits(next_step(tables, group.stream("S"), group_view(group, "S"), is_current=False))
        == StatusType.META
    )
    group.apply(commands.CancelMove("$G", "S"))
    group.settle("S")
    stream = group.stream("S")
    group.update("S", num_replicas=1)
    choice = next_step(tables, group.stream("S"), group_view(group, "S"), is_current=True)
    assert choice == commands.ChoosePeers("$G", "S", stream.incarnation, (stream.group.peers[0],))
    group.apply(choice)
    leader = f"{stream.group.peers[0].lower()}.d"
    report = next_step(tables, group.stream("S"), group_view(group, "S", voters=[leader]), is_current=True)
    assert report == commands.SettleMembers(
        "$G", "S", stream.incarnation, (stream.group.peers[0],), len(group.log)
    )
    group.apply(report)
    assert group.stream("S").desired is None


def test_a_member_with_another_disk_is_replaced_by_itself() -> None:
    group = MetaGroup()
    group.create("S")
    leader = group.stream("S").group.peers[0]
    wiped = group.stream("S").group.peers[1]
    seen = group_view(group, "S")
    group.join(wiped, disk="new", boot=2)
    new = f"{wiped.lower()}.new"
    online = {*seen.online, new} - {f"{wiped.lower()}.d"}
    step = next_step(
        group.machine.tables, group.stream("S"), group_view(group, "S", online=online), is_current=True
    )
    assert leader != wiped
    assert step == ChangeMember(ChangeKind.ADD_LEARNER, new)
    voters = [*seen.voters, new]
    again = group_view(group, "S", voters=voters, online=online)
    step = next_step(group.machine.tables, group.stream("S"), again, is_current=True)
    assert step == ChangeMember(ChangeKind.REMOVE, f"{wiped.lower()}.d")


class WalkingGroup:
    """A group that makes the steps, while its members come and go."""

    def __init__(self, start: Sequence[str], target: Sequence[str], chance: random.Random) -> None:
        self.membership = Membership(tuple(sorted(start)))
        self.leader = chance.choice(list(start))
        self.target = target
        self._chance = chance
        self._smallest = min(len(start), len(target))

    def walk(self, *, is_calm: bool) -> bool:
        """Makes one step; returns whether the target is reached."""
        everyone = {*self.membership.members, *self.target}
        online = everyone if is_calm else {one for one in everyone if self._chance.random() < 0.7}
        online.add(self.leader)
        voters = self.membership.voters
        had_quorum = self.membership.is_quorum(online)
        seen = GroupView(
            leader=self.leader,
            voters=voters,
            learners=self.membership.learners,
            caught_up={one for one in self.membership.learners if is_calm or self._chance.random() < 0.5},
            online=online,
        )
        step = next_change(seen, self.target)
        match step:
            case None:
                return True
            case ChangeMember(kind, member):
                assert member != self.leader
                changed = self.membership.changed(kind, member)
                assert changed is not None, "a change that the group would refuse"
                assert changed.is_quorum(online) or not had_quorum
                assert len(changed.voters) >= self._smallest
                self.membership = changed
            case TransferLeadership(member):
                assert member in voters
                assert member in online
                self.leader = member
            case AwaitProgress():
                assert not is_calm
        return False


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sets(st.sampled_from("ABCDEFG"), min_size=1, max_size=5),
    st.sets(st.sampled_from("ABCDEFG"), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_every_group_gets_from_every_membership_to_every_other_one(
    start: set[str], target: set[str], chance: random.Random
) -> None:
    group = WalkingGroup(sorted(start), sorted(target), chance)
    for _ in range(chance.randrange(20)):
        group.walk(is_calm=False)
    for _ in range(4 * 7):
        if group.walk(is_calm=True):
            break
    assert group.membership == Membership(tuple(sorted(target)))
    assert group.leader in target


def test_a_late_confirmation_says_nothing_about_a_stream_that_came_back() -> None:
    group = MetaGroup(4)
    group.create("S")
    leave = group.stream("S").group.peers[0]
    group.apply(commands.RemoveFromStream("$G", "S", leave))
    group.settle("S")
    late = commands.ConfirmRemoved(leave, (group.stream("S").incarnation,), len(group.log))
    other = group.stream("S").target[0]
    group.apply(commands.RemoveFromStream("$G", "S", other))
    group.settle("S")
    assert leave in group.stream("S").group.peers
    group.apply(commands.DeleteStream("$G", "S"))
    group.apply(late)
    (tombstone,) = group.machine.tables.tombstones.values()
    assert leave in tombstone.peers
