"""Consumers in the meta state."""

from __future__ import annotations

import pytest
from msgspec import structs

from penstock.jetstream.meta import meta_commands as commands
from penstock.jetstream.meta.assignments import consumer_replicas
from penstock.jetstream.meta.meta_commands import AccountRules
from penstock.jetstream.meta.meta_effects import AssetAction, ConsumerEffect
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    AccountLimits,
    AckPolicy,
    ApiConsumerConfig,
    ConsumerAction,
    RetentionPolicy,
)
from tests.support.meta_groups import (
    TICKET,
    MetaGroup,
    consumer_config_of,
    error_of,
    is_answered,
    no_limits,
    text_of,
)

pytestmark = pytest.mark.feature("cluster.administration")
EXPLICIT = AckPolicy.EXPLICIT


def group_with(replicas: int = 3, **fields: object) -> MetaGroup:
    group = MetaGroup(5)
    group.create("S", replicas, **fields)
    return group


def test_a_consumer_gets_a_group_name_and_an_incarnation() -> None:
    group = group_with()
    effects = group.consume("S", "c", durable_name="c")
    consumer = group.consumer("S", "c")
    assert consumer.raft_group.startswith("C-R3F-")
    assert consumer.incarnation == len(group.log)
    assert effects == [ConsumerEffect(AssetAction.CREATED, "$G", "S", "c", consumer.incarnation, TICKET)]


def test_an_ephemeral_without_a_name_gets_one_that_is_free() -> None:
    group = group_with()
    for _ in range(3):
        group.consume("S")
    names = group.machine.tables.consumers("$G", "S")
    assert len(names) == 3
    assert {len(name) for name in names} == {8}
    assert all(one.raft_group.startswith("C-R1F-") for one in names.values())


def test_a_consumer_of_an_unknown_stream_is_refused() -> None:
    group = group_with()
    config = consumer_config_of(group.stream("S").config)
    effects = group.apply(commands.CreateConsumer("$G", "T", "", config, no_limits(), ticket=TICKET))
    assert error_of(effects) == 10059


def test_the_same_consumer_again_is_present_and_a_changed_one_is_updated() -> None:
    group = group_with()
    group.consume("S", "c", durable_name="c")
    again = group.consume("S", "c", durable_name="c")
    assert [one.action for one in again if isinstance(one, ConsumerEffect)] == [AssetAction.PRESENT]
    changed = group.consume("S", "c", durable_name="c", max_ack_pending=7, ack_policy=AckPolicy.NONE)
    assert [one.action for one in changed if isinstance(one, ConsumerEffect)] == [AssetAction.UPDATED]
    assert group.consumer("S", "c").config.max_ack_pending == 7
    assert error_of(group.consume("S", "c", durable_name="c", ack_policy=EXPLICIT)) == 10012


def test_the_action_of_a_request_is_kept_to() -> None:
    group = group_with()
    create, update = ConsumerAction.CREATE, ConsumerAction.UPDATE
    assert error_of(group.consume("S", "c", durable_name="c", action=update)) == 10149
    assert error_of(group.consume("S", "c", durable_name="c", action=create)) == 0
    assert error_of(group.consume("S", "c", durable_name="c", action=create)) == 0
    assert error_of(group.consume("S", "c", durable_name="c", max_batch=7, action=create)) == 10148
    assert error_of(group.consume("S", "c", durable_name="c", max_batch=7, action=update)) == 0


def test_of_two_creations_at_once_the_second_finds_the_first() -> None:
    group = group_with()
    config = consumer_config_of(group.stream("S").config, name="c")
    options = {"action": ConsumerAction.CREATE, "from_default": True}
    assert error_of(group.consume("S", "c", config=config, **options)) == 0
    assert error_of(group.consume("S", "c", config=config, **options)) == 10148


@pytest.mark.parametrize(
    ("retention", "replicas", "code"),
    [
        (RetentionPolicy.LIMITS, 5, 10126),
        (RetentionPolicy.LIMITS, 1, 0),
        (RetentionPolicy.INTEREST, 1, 10134),
        (RetentionPolicy.INTEREST, 3, 0),
        (RetentionPolicy.INTEREST, 0, 0),
    ],
)
def test_the_replicas_of_a_consumer_suit_its_stream(
    retention: RetentionPolicy, replicas: int, code: int
) -> None:
    group = group_with(retention=retention)
    config = structs.replace(
        consumer_config_of(group.stream("S").config, durable_name="c"), num_replicas=replicas
    )
    assert error_of(group.consume("S", "c", config=config)) == code


def test_replicas_are_counted_as_infos_show_them() -> None:
    limits = group_with().stream("S").config
    interest = structs.replace(limits, retention=RetentionPolicy.INTEREST)
    durable, ephemeral = ApiConsumerConfig(durable_name="c"), ApiConsumerConfig()
    two = ApiConsumerConfig(durable_name="c", num_replicas=2)
    found = [consumer_replicas(config, limits) for config in (durable, ephemeral, two)]
    assert found == [3, 1, 2]
    assert consumer_replicas(ephemeral, interest) == 3


def test_consumers_of_a_work_queue_share_no_subject() -> None:
    group = group_with(retention=RetentionPolicy.WORKQUEUE, subjects=["a", "b"])
    options = {"ack_policy": EXPLICIT}
    assert error_of(group.consume("S", "x", durable_name="x", filter_subject="a", **options)) == 0
    assert error_of(group.consume("S", "y", durable_name="y", filter_subject="a", **options)) == 10100
    assert error_of(group.consume("S", "y", durable_name="y", **options)) == 10099
    assert error_of(group.consume("S", "y", durable_name="y", filter_subject="b", **options)) == 0
    group.apply(commands.DeleteConsumer("$G", "S", "x"))
    assert error_of(group.consume("S", "z", durable_name="z", filter_subject="a", **options)) == 0


@pytest.mark.parametrize(
    ("rules", "stream", "code"),
    [
        (no_limits(max_consumers=1), {}, 10026),
        (no_limits(), {"max_consumers": 1}, 10026),
        (AccountRules({"": AccountLimits()}, 1), {}, 10026),
        (AccountRules({"": AccountLimits()}, 1), {"max_consumers": 5}, 0),
        (AccountRules({"R3": AccountLimits(max_consumers=2)}), {}, 0),
        (AccountRules({"R3": AccountLimits(max_consumers=1)}), {}, 10026),
        (AccountRules({"R1": AccountLimits()}), {}, 10120),
    ],
)
def test_consumers_are_counted_by_stream_and_tier(
    rules: AccountRules, stream: dict[str, int], code: int
) -> None:
    group = group_with(**stream)
    group.consume("S", "a", durable_name="a")
    assert error_of(group.consume("S", "b", durable_name="b", rules=rules)) == code


def test_consumers_of_mirrors_do_not_count() -> None:
    group = group_with(max_consumers=1)
    group.consume("S", "a", direct=True, deliver_subject="d", ack_policy=AckPolicy.NONE)
    assert error_of(group.consume("S", "b", durable_name="b")) == 0


def test_a_stream_without_a_majority_gets_no_consumer() -> None:
    group = group_with()
    members = group.stream("S").group.peers
    group.consume("S", "a", durable_name="a")
    group.see(*members[:2], online=False)
    effects = group.consume("S", "b", durable_name="b")
    assert text_of(effects) == codes.INSUFFICIENT_RESOURCES.description
    group.see(members[2], online=False)
    assert error_of(group.consume("S", "a", durable_name="a", max_ack_pending=5)) == 10119


def test_a_pause_survives_an_update() -> None:
    group = group_with()
    group.consume("S", "c", durable_name="c")
    until = "2030-01-01T00:00:00Z"
    group.apply(commands.PauseConsumer("$G", "S", "c", until))
    group.consume("S", "c", durable_name="c", max_ack_pending=5)
    assert group.consumer("S", "c").config.pause_until == until
    group.apply(commands.PauseConsumer("$G", "S", "c", None))
    assert group.consumer("S", "c").config.pause_until is None
    missing = commands.PauseConsumer("$G", "S", "d", None, TICKET)
    assert error_of(group.apply(missing)) == 10014


def test_a_consumer_that_expired_long_ago_does_not_take_its_successor_along() -> None:
    group = group_with()
    group.consume("S", "c", durable_name="c")
    old = group.consumer("S", "c").incarnation
    group.apply(commands.DeleteConsumer("$G", "S", "c"))
    group.consume("S", "c", durable_name="c")
    assert group.apply(commands.DeleteConsumer("$G", "S", "c", old)) == []
    assert group.consumer("S", "c").incarnation > old
    assert group.apply(commands.DeleteConsumer("$G", "T", "c", old)) == []
    assert error_of(group.apply(commands.DeleteConsumer("$G", "S", "d", ticket=TICKET))) == 10014


def test_the_leader_of_the_stream_answers_for_a_deleted_consumer_unless_there_can_be_none() -> None:
    group = group_with()
    for name in ("c", "d"):
        group.consume("S", name, durable_name=name)
    [removed] = group.apply(commands.DeleteConsumer("$G", "S", "c", ticket=TICKET))
    assert isinstance(removed, ConsumerEffect)
    assert (removed.action, removed.ticket) == (AssetAction.REMOVED, TICKET)
    group.see(*group.stream("S").group.peers[:2], online=False)
    effects = group.apply(commands.DeleteConsumer("$G", "S", "d", ticket=TICKET))
    assert is_answered(effects)
    assert [one.ticket for one in effects if isinstance(one, ConsumerEffect)] == [b""]


def test_the_consumers_of_a_deleted_stream_are_gone() -> None:
    group = group_with()
    group.consume("S", "c", durable_name="c")
    group.apply(commands.DeleteStream("$G", "S"))
    group.create("S")
    assert error_of(group.apply(commands.DeleteConsumer("$G", "S", "c", ticket=TICKET))) == 10014
