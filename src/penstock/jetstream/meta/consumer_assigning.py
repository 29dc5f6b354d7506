"""Commands about consumers: create, update, pause, delete.

A consumer lives in the group of its stream. Here is decided that it exists, under which name and with which
configuration; the leader of the stream's group makes it. What depends on messages, or on who subscribes, is
its to check.
"""

from __future__ import annotations

from msgspec import structs

from penstock.errors import JetStreamApiError
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.work_queue import check_queue
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.meta.assignments import (
    ConsumerAssignment,
    StreamAssignment,
    consumer_replicas,
    group_name,
)
from penstock.jetstream.meta.meta_commands import AccountRules, CreateConsumer, DeleteConsumer, PauseConsumer
from penstock.jetstream.meta.meta_effects import Answered, AssetAction, ConsumerEffect, Refused
from penstock.jetstream.meta.meta_tables import MetaChanges, MetaTables, is_counted
from penstock.jetstream.meta.stream_assigning import Outcome, limits_for, tail_of
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AckPolicy, ApiConsumerConfig, ConsumerAction, StorageType
from penstock.protocol.ids import short_hash

# The limits of the account were applied before the command was proposed; here are those of the stream.
_NO_LIMITS = EngineConfig(is_clustered=True)


def create_consumer(tables: MetaTables, command: CreateConsumer) -> Outcome:
    """Creates a consumer, updates it, or finds it as requested.

    Raises JetStreamApiError: those of `consumer_config`, 10059, 10126, 10134, 10120, 10026, 10023 without a
    majority of the stream's servers, 10148 and 10149 for the action, 10119 while they are all offline, and
    those of work queues.
    """
    stream = tables.stream(command.account, command.stream)
    limits_for(command.rules, consumer_replicas(command.config, stream.config))
    name = command.name or _unused_name(tables, stream)
    present = tables.consumers(command.account, command.stream).get(name)
    config = _merged(command.config, present)
    # The stream may have changed since the request was checked.
    rules.checked(config, stream.config, _NO_LIMITS)
    if present is not None:
        return _updated(tables, stream, present, config, command)
    if command.action is ConsumerAction.UPDATE:
        raise codes.CONSUMER_DOES_NOT_EXIST.exception()
    _check_count(tables, stream, config, command.rules)
    _check_queue(tables, stream, config, name, is_new=True)
    _check_quorum(tables, stream)
    storage = StorageType.MEMORY if config.mem_storage else stream.config.storage
    replicas = consumer_replicas(config, stream.config)
    consumer = ConsumerAssignment(
        account=command.account,
        stream=command.stream,
        name=name,
        config=config,
        created=tables.now,
        incarnation=tables.applied,
        raft_group=group_name("C", replicas, storage, tail_of(tables)),
        version=tables.applied,
    )
    return _outcome(consumer, AssetAction.CREATED, command.ticket, MetaChanges(consumers=[consumer]))


def _outcome(
    consumer: ConsumerAssignment, action: AssetAction, ticket: bytes, changes: MetaChanges
) -> Outcome:
    place = (consumer.account, consumer.stream, consumer.name)
    return changes, [ConsumerEffect(action, *place, consumer.incarnation, ticket)]


def _unused_name(tables: MetaTables, stream: StreamAssignment) -> str:
    """A name that no consumer of the stream has, from the index of the command."""
    taken = tables.consumers(stream.account, stream.name)
    name = tail_of(tables)
    while name in taken:
        name = short_hash(name)
    return name


def _merged(config: ApiConsumerConfig, present: ConsumerAssignment | None) -> ApiConsumerConfig:
    """Pausing has its own request, so an update keeps it. A durable consumer of a mirror or source keeps
    where it began."""
    if present is None:
        return config
    before = present.config
    config = structs.replace(config, pause_until=before.pause_until)
    if not (config.sourcing and config.durable_name and config.ack_policy is AckPolicy.FLOW_CONTROL):
        return config
    return structs.replace(
        config,
        deliver_policy=before.deliver_policy,
        opt_start_seq=before.opt_start_seq,
        opt_start_time=before.opt_start_time,
    )


def _updated(
    tables: MetaTables,
    stream: StreamAssignment,
    present: ConsumerAssignment,
    config: ApiConsumerConfig,
    command: CreateConsumer,
) -> Outcome:
    is_create = command.action is ConsumerAction.CREATE
    if is_create and command.from_default:
        raise codes.CONSUMER_ALREADY_EXISTS.exception()
    is_same = rules.same(present.config, config)
    if is_create and not is_same:
        raise codes.CONSUMER_ALREADY_EXISTS.exception()
    if tables.is_offline(stream):
        raise codes.CONSUMER_OFFLINE.exception()
    if is_same:
        return _outcome(present, AssetAction.PRESENT, command.ticket, MetaChanges())
    rules.check_update(present.config, config)
    _check_queue(tables, stream, config, present.name, is_new=False)
    consumer = structs.replace(present, config=config, version=tables.applied)
    return _outcome(consumer, AssetAction.UPDATED, command.ticket, MetaChanges(consumers=[consumer]))


def _check_count(
    tables: MetaTables, stream: StreamAssignment, config: ApiConsumerConfig, account: AccountRules
) -> None:
    """Consumers of mirrors and sources do not count. The stream's limit is for all its consumers, the
    account's for those of its tier."""
    if config.direct or config.sourcing:
        return
    replicas = consumer_replicas(config, stream.config)
    limits, tier = limits_for(account, replicas)
    of_stream = stream.config.max_consumers
    if of_stream <= 0 and limits.max_consumers <= 0:
        of_stream = account.consumers_max
    present = tables.assets(stream.account).consumers_of(stream.name)
    if 0 < of_stream <= present:
        raise codes.MAXIMUM_CONSUMERS_LIMIT.exception()
    if 0 < limits.max_consumers <= present and (
        tier is None or limits.max_consumers <= _count_of_tier(tables, stream, tier)
    ):
        raise codes.MAXIMUM_CONSUMERS_LIMIT.exception()


def _count_of_tier(tables: MetaTables, stream: StreamAssignment, tier: int) -> int:
    consumers = tables.consumers(stream.account, stream.name).values()
    return sum(is_counted(one) and consumer_replicas(one.config, stream.config) == tier for one in consumers)


def _check_queue(
    tables: MetaTables, stream: StreamAssignment, config: ApiConsumerConfig, name: str, *, is_new: bool
) -> None:
    claims = tables.assets(stream.account).queue_claims.get(stream.name)
    check_queue(stream.config, config, name, claims, is_new=is_new)


def _check_quorum(tables: MetaTables, stream: StreamAssignment) -> None:
    """The group must be able to commit the consumer. (The official server asks for a majority of the
    consumer's own group.)"""
    if not _has_quorum(tables, stream):
        raise codes.INSUFFICIENT_RESOURCES.exception()


def _has_quorum(tables: MetaTables, stream: StreamAssignment) -> bool:
    members = stream.group.peers
    return 2 * sum(tables.is_online(peer) for peer in members) > len(members)


def pause_consumer(tables: MetaTables, command: PauseConsumer) -> Outcome:
    """Raises JetStreamApiError 10059, 10014, 10119."""
    present = tables.consumer(command.account, command.stream, command.name)
    if tables.is_offline(tables.stream(command.account, command.stream)):
        raise codes.CONSUMER_OFFLINE.exception()
    config = structs.replace(present.config, pause_until=command.pause_until)
    consumer = structs.replace(present, config=config, version=tables.applied)
    return _outcome(consumer, AssetAction.UPDATED, command.ticket, MetaChanges(consumers=[consumer]))


def delete_consumer(tables: MetaTables, command: DeleteConsumer) -> Outcome:
    """Raises JetStreamApiError 10059, 10014. A command about another incarnation does nothing."""
    try:
        present = tables.consumer(command.account, command.stream, command.name)
    except JetStreamApiError:
        if command.incarnation:
            return MetaChanges(), []
        raise
    if command.incarnation not in (0, present.incarnation):
        return MetaChanges(), []
    changes = MetaChanges(dropped_consumers=[(present.account, present.stream, present.name)])
    # The leader of the stream answers when it has dropped the consumer: a stream info after that does not
    # count it. Without one there is nothing to wait for.
    is_dropped_first = command.failed is None and _has_quorum(
        tables, tables.stream(command.account, command.stream)
    )
    ticket = command.ticket if is_dropped_first else b""
    changes, effects = _outcome(present, AssetAction.REMOVED, ticket, changes)
    if command.failed is not None:
        return changes, [*effects, Refused(command.ticket, command.failed)]
    return changes, effects if is_dropped_first else [*effects, Answered(command.ticket)]
