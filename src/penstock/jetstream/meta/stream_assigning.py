"""Commands about streams: create, update, scale, move, cancel, delete, and what their groups report.

Each function checks first and returns what changes; a JetStreamApiError is the answer to the request. Order
and texts of the checks are those of the official server (2.15).
"""

from __future__ import annotations

from msgspec import structs

from penstock.jetstream import stream_config
from penstock.jetstream.meta import regrouping
from penstock.jetstream.meta.assignments import (
    ConsumerAssignment,
    DesiredGroup,
    GroupAssignment,
    StreamAssignment,
    Tombstone,
    group_name,
    merged,
)
from penstock.jetstream.meta.meta_commands import (
    AccountRules,
    AdoptStream,
    CancelMove,
    ChoosePeers,
    CreateStream,
    DeleteStream,
    MoveStream,
    PlacementRules,
    RemoveFromStream,
    SettleMembers,
    UpdateStream,
)
from penstock.jetstream.meta.meta_effects import Answered, AssetAction, MetaEffect, Refused, StreamEffect
from penstock.jetstream.meta.meta_tables import MetaChanges, MetaTables
from penstock.jetstream.meta.placement import place, preferred_leader
from penstock.jetstream.stream.source_config import check_among
from penstock.jetstream.subject_claims import bounded
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AccountLimits, ApiStreamConfig, StorageType
from penstock.protocol.ids import short_hash

Outcome = tuple[MetaChanges, list[MetaEffect]]


def tail_of(tables: MetaTables) -> str:
    """A text of eight characters that no other command of the cluster has: for names of groups."""
    return short_hash(f"{tables.cluster_id}:{tables.applied}")


def stream_outcome(
    stream: StreamAssignment, action: AssetAction, ticket: bytes = b"", changes: MetaChanges | None = None
) -> Outcome:
    """The outcome of a command that sets a stream, or with `changes` does something else to it."""
    effect = StreamEffect(action, stream.account, stream.name, stream.incarnation, ticket)
    return changes if changes is not None else MetaChanges(streams=[stream]), [effect]


# --- create --------------------------------------------------------------------------------------


def create_stream(tables: MetaTables, command: CreateStream) -> Outcome:
    """Raises JetStreamApiError: those of `check_among`, 10058 for the name, 10130 at a restore, 10065 for
    subjects of another stream, 10120, 10113, 10122, 10027, 10028, 10047 for limits, 10005 without servers."""
    config = _among_others(tables, command.account, command.config, pedantic=command.pedantic)
    present = tables.find_stream(command.account, config.name)
    if present is not None:
        if command.is_restore:
            raise codes.STREAM_NAME_EXIST_RESTORE_FAILED.exception(stream=config.name)
        if not stream_config.same(present.config, config):
            raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
        return stream_outcome(present, AssetAction.PRESENT, command.ticket, MetaChanges())
    _check_overlap(tables, command.account, config)
    check_limits(tables, command.account, config, command.rules, None)
    salt = tail_of(tables)
    keep = (command.on,) if command.on else ()
    if command.on and command.on not in tables.peers:
        raise codes.CLUSTER_SERVER_NOT_MEMBER.exception()
    wish = regrouping.wish_for(tables, config, command.placement, salt, keep=keep)
    offers = tables.offers(config.storage)
    placed = place(wish, offers)
    preferred = preferred_leader(placed.peers, offers, tables.leads())
    name = group_name("S", len(placed.peers), config.storage, salt)
    stream = StreamAssignment(
        account=command.account,
        name=config.name,
        config=config,
        created=tables.now,
        incarnation=tables.applied,
        group=GroupAssignment(
            name,
            placed.cluster,
            placed.peers,
            command.on or preferred,
            founders=_founders(tables, placed.peers),
        ),
        version=tables.applied,
    )
    return stream_outcome(stream, AssetAction.CREATED, command.ticket)


def _founders(tables: MetaTables, peers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(tables.peers[peer].member for peer in peers)


def adopt_stream(tables: MetaTables, command: AdoptStream) -> Outcome:
    """A stream with one server, whatever its configuration says; it may be scaled then. The account's limits
    do not apply: it exists.

    Raises JetStreamApiError 10044 for an unknown server, 10058 when the cluster has a stream of that name,
    10065 for subjects of another stream.
    """
    record = tables.peers.get(command.peer)
    if record is None:
        raise codes.CLUSTER_SERVER_NOT_MEMBER.exception()
    config = structs.replace(command.config, num_replicas=1)
    stored = (command.cluster_id, command.incarnation)
    present = tables.find_stream(command.account, config.name)
    if present is not None:
        if present.adopted == stored and command.peer in present.hosts:
            return stream_outcome(present, AssetAction.PRESENT, command.ticket, MetaChanges())
        raise codes.STREAM_NAME_EXIST.exception(stream=config.name)
    _check_overlap(tables, command.account, config)
    name = group_name("S", 1, config.storage, tail_of(tables))
    peers = (record.peer,)
    stream = StreamAssignment(
        account=command.account,
        name=config.name,
        config=config,
        created=command.created,
        incarnation=tables.applied,
        group=GroupAssignment(name, record.cluster, peers, record.peer, founders=_founders(tables, peers)),
        version=tables.applied,
        adopted=stored,
    )
    changes = MetaChanges(streams=[stream], consumers=_adopted_consumers(tables, stream, command))
    return stream_outcome(stream, AssetAction.CREATED, command.ticket, changes)


def _adopted_consumers(
    tables: MetaTables, stream: StreamAssignment, command: AdoptStream
) -> list[ConsumerAssignment]:
    """They exist, so that no limits apply."""
    return [
        ConsumerAssignment(
            account=stream.account,
            stream=stream.name,
            name=name,
            config=config,
            created=created,
            incarnation=tables.applied,
            raft_group=group_name("C", 1, stream.config.storage, tail_of(tables)),
            version=tables.applied,
        )
        for name, config, created in command.consumers
    ]


def _among_others(
    tables: MetaTables, account: str, config: ApiStreamConfig, *, pedantic: bool
) -> ApiStreamConfig:
    def find(name: str) -> ApiStreamConfig | None:
        stream = tables.find_stream(account, name)
        return stream.config if stream is not None else None

    return check_among(config, find, pedantic=pedantic)


def _check_overlap(tables: MetaTables, account: str, config: ApiStreamConfig) -> None:
    with bounded(stream_config.refuse):
        if tables.assets(account).claims.collide(config.name, config.subjects):
            raise codes.STREAM_SUBJECT_OVERLAP.exception(stream=config.name)


def limits_for(rules: AccountRules, replicas: int) -> tuple[AccountLimits, int | None]:
    """The limits of streams with so many replicas, and their tier, None for an account without tiers. Raises
    JetStreamApiError 10120."""
    if "" in rules.limits:
        return rules.limits[""], None
    limits = rules.limits.get(f"R{max(1, replicas)}")
    if limits is None:
        raise codes.NO_LIMITS.exception()
    return limits, max(1, replicas)


def check_limits(
    tables: MetaTables,
    account: str,
    config: ApiStreamConfig,
    rules: AccountRules,
    present: StreamAssignment | None,
) -> None:
    """Checks what the account may have, with a new stream or another configuration of `present`.

    Without tiers a stream reserves its max_bytes once for each replica, in a tier once.

    Raises JetStreamApiError 10120, 10113, 10122, 10027, 10028, 10047.
    """
    limits, tier = limits_for(rules, config.num_replicas)
    is_memory = config.storage is StorageType.MEMORY
    largest = limits.memory_max_stream_bytes if is_memory else limits.storage_max_stream_bytes
    if limits.max_bytes_required and config.max_bytes <= 0:
        raise codes.STREAM_MAX_BYTES_REQUIRED.exception()
    if 0 < largest < config.max_bytes:
        raise codes.STREAM_MAX_STREAM_BYTES_EXCEEDED.exception()
    assets = tables.assets(account)
    counted = present is not None and (tier is None or present.config.num_replicas == tier)
    streams = assets.streams_of_tier(tier) - counted
    if not counted and 0 <= limits.max_streams <= streams:
        raise codes.MAXIMUM_STREAMS_LIMIT.exception()
    limit = limits.max_memory if is_memory else limits.max_storage
    if limit < 0 or config.max_bytes <= 0:
        return
    reserved = assets.reserved(config.storage, tier)
    if counted and present is not None and present.config.storage is config.storage:
        reserved -= _reservation(present.config, tier)
    if reserved + _reservation(config, tier) > limit:
        if is_memory:
            raise codes.MEMORY_RESOURCES_EXCEEDED.exception()
        raise codes.STORAGE_RESOURCES_EXCEEDED.exception()


def _reservation(config: ApiStreamConfig, tier: int | None) -> int:
    return max(0, config.max_bytes) * (1 if tier is not None else max(1, config.num_replicas))


# --- update --------------------------------------------------------------------------------------


def update_stream(tables: MetaTables, command: UpdateStream) -> Outcome:
    """Raises JetStreamApiError like create_stream, 10059, 10118 while all its servers are offline, 10052 for
    changes of immutable fields, 10069 for limits that its consumers exceed, 10123, 10124 and 10226 while
    another change of its servers is in progress."""
    present = tables.stream(command.account, command.config.name)
    if tables.is_offline(present):
        raise codes.STREAM_OFFLINE.exception(stream=present.name)
    stream_config.check_unchanged(present.config, command.config, sealed=command.sealed)
    config = _among_others(tables, command.account, command.config, pedantic=command.pedantic)
    _check_overlap(tables, command.account, config)
    _check_consumer_limits(tables, present, config)
    is_move = config.placement is not None and config.placement != present.config.placement
    is_scale = config.num_replicas != present.config.num_replicas
    is_retention = config.retention is not present.config.retention
    _check_in_progress(present, is_move=is_move, is_other=is_scale or is_retention)
    check_limits(tables, command.account, config, command.rules, present)
    updated = structs.replace(present, config=config, version=tables.applied)
    if is_move:
        updated = _moved(tables, updated, present, command.placement)
    elif is_scale:
        updated = _scaled(tables, updated, present, command.placement)
    else:
        return stream_outcome(updated, AssetAction.UPDATED, command.ticket)
    changes, effects = stream_outcome(updated, AssetAction.UPDATED, command.ticket)
    moved = StreamEffect(AssetAction.MOVED, updated.account, updated.name, updated.incarnation)
    return changes, [*effects, moved]


def _check_in_progress(present: StreamAssignment, *, is_move: bool, is_other: bool) -> None:
    if is_move and is_other:
        raise codes.STREAM_MOVE_AND_SCALE.exception()
    desired = present.desired
    if desired is None or not (is_move or is_other):
        return
    if desired.is_move:
        raise codes.STREAM_MOVE_IN_PROGRESS.exception()
    if is_move:
        raise codes.STREAM_RECONFIGURE_IN_PROGRESS.exception()


def _check_consumer_limits(tables: MetaTables, present: StreamAssignment, config: ApiStreamConfig) -> None:
    before, limits = present.config.consumer_limits, config.consumer_limits
    if limits == before:
        return
    violated = [
        name
        for name, consumer in sorted(tables.consumers(present.account, present.name).items())
        if 0 < limits.inactive_threshold < consumer.config.inactive_threshold
        or 0 < limits.max_ack_pending < consumer.config.max_ack_pending
    ]
    if violated:
        err = f"change to limits violates consumers: {', '.join(violated)}"
        raise codes.STREAM_UPDATE.exception(err=err)


def _moved(
    tables: MetaTables, updated: StreamAssignment, present: StreamAssignment, rules: PlacementRules
) -> StreamAssignment:
    """Servers that suit the new placement stay. The official server chooses all of them again."""
    peers, cluster = regrouping.placed_again(tables, updated, rules)
    desired = regrouping.desire(tables, present, peers, cluster, cancellable=True)
    return regrouping.regrouped(updated, desired and structs.replace(desired, is_move=True))


def _scaled(
    tables: MetaTables, updated: StreamAssignment, present: StreamAssignment, rules: PlacementRules
) -> StreamAssignment:
    """Up: the servers that it has stay, others join. Down: its leader chooses who stays (ChoosePeers)."""
    replicas, target = updated.config.num_replicas, present.target
    cluster = present.desired.cluster if present.desired is not None else present.group.cluster
    if replicas <= len(target):
        # Of all that have it or are to get it: while another change is in progress, those of its target may
        # not have the data yet.
        retired = tables.retired_peers()
        candidates = tuple(peer for peer in present.hosts if peer not in retired)
        if len(candidates) < replicas:
            candidates = present.hosts
        desired = regrouping.desire(tables, present, candidates, cluster, cancellable=True, always=True)
        assert desired is not None
        shrink_to = replicas if replicas < len(candidates) else 0
        return regrouping.regrouped(updated, structs.replace(desired, shrink_to=shrink_to))
    if present.config.num_replicas <= 1 and rules.ha_streams_max > 0:
        crowded = any(tables.load(peer).replicated >= rules.ha_streams_max for peer in target)
        if crowded:  # the servers that have it get one replicated stream more, too
            raise codes.INSUFFICIENT_RESOURCES.exception()
    within = structs.replace(rules, clusters=(cluster,))
    wish = regrouping.wish_for(tables, updated.config, within, tail_of(tables), keep=target)
    placed = place(wish, tables.offers(updated.config.storage))
    desired = regrouping.desire(tables, present, placed.peers, cluster, cancellable=True)
    if len(present.hosts) == 1:
        name = group_name("S", replicas, updated.config.storage, tail_of(tables))
        group = structs.replace(updated.group, name=name, preferred=target[0])
        updated = structs.replace(updated, group=group)
    return regrouping.regrouped(updated, desired)


# --- move and cancel -----------------------------------------------------------------------------


def move_stream(tables: MetaTables, command: MoveStream) -> Outcome:
    """Replaces one server, or all by those of another cluster.

    Raises JetStreamApiError 10059, 10118, 10044 for an unknown server, 10040 for one that does not have the
    stream, 10124, 10226, 10005.
    """
    present = tables.stream(command.account, command.stream)
    if tables.is_offline(present):
        raise codes.STREAM_OFFLINE.exception(stream=present.name)
    target = present.target
    leave = target[0]
    if command.server:
        record = tables.peer_named(command.server)
        if record is None:
            raise codes.CLUSTER_SERVER_NOT_MEMBER.exception()
        if record.peer not in target:
            raise codes.CLUSTER_PEER_NOT_MEMBER.exception()
        leave = record.peer
    _check_in_progress(present, is_move=True, is_other=False)
    peers, cluster = regrouping.placed_without(tables, present, leave, command.placement, command.tags)
    desired = regrouping.desire(tables, present, peers, cluster, cancellable=True)
    moved = regrouping.regrouped(present, desired and structs.replace(desired, is_move=True))
    moved = structs.replace(moved, version=tables.applied)
    return stream_outcome(moved, AssetAction.MOVED, command.ticket)


def cancel_move(tables: MetaTables, command: CancelMove) -> Outcome:
    """Raises JetStreamApiError 10059, 10129 when nothing is in progress that can be cancelled."""
    present = tables.stream(command.account, command.stream)
    if present.desired is None or present.desired.origin is None:
        raise codes.STREAM_RECONFIGURE_NOT_IN_PROGRESS.exception()
    origin = present.desired.origin
    config = structs.replace(present.config, num_replicas=origin.replicas, placement=origin.placement)
    desired = DesiredGroup(
        created=present.desired.created,
        cluster=origin.cluster,
        peers=origin.peers,
        origin=origin,
        is_move=present.desired.is_move,  # what has begun is still in progress, and blocks other moves
        is_cancelled=True,
    )
    cancelled = regrouping.regrouped(structs.replace(present, config=config, version=tables.applied), desired)
    away = tables.retired_peers().intersection(cancelled.target)
    if away:  # a server that it came from has been removed meanwhile
        cancelled = regrouping.without_peers(tables, cancelled, away, "") or cancelled
    return stream_outcome(cancelled, AssetAction.MOVED, command.ticket)


def remove_from_stream(tables: MetaTables, command: RemoveFromStream) -> Outcome:
    """Raises JetStreamApiError 10059, 10040 when the server does not have the stream, 10075 when there is no
    other for it."""
    present = tables.stream(command.account, command.stream)
    record = tables.peer_named(command.peer)
    peer = record.peer if record is not None else command.peer
    if peer not in present.hosts:
        raise codes.CLUSTER_PEER_NOT_MEMBER.exception()
    moved = regrouping.without_peers(tables, present, {peer}, command.unique_tag)
    if moved is None or moved.is_short:
        raise codes.PEER_REMAP.exception()
    moved = structs.replace(moved, version=tables.applied)
    changes, effects = stream_outcome(moved, AssetAction.MOVED)
    return changes, [*effects, Answered(command.ticket)]


# --- delete --------------------------------------------------------------------------------------


def delete_stream(tables: MetaTables, command: DeleteStream) -> Outcome:
    """Raises JetStreamApiError 10059. A command about another incarnation does nothing."""
    present = tables.find_stream(command.account, command.stream)
    if present is None or command.incarnation not in (0, present.incarnation):
        if command.incarnation:
            return MetaChanges(), []
        raise codes.STREAM_NOT_FOUND.exception(stream=command.stream)
    changes = removal_of(tables, present)
    changes, effects = stream_outcome(present, AssetAction.REMOVED, changes=changes)
    if command.failed is not None:
        return changes, [*effects, Refused(command.ticket, command.failed)]
    return changes, [*effects, Answered(command.ticket)]


def removal_of(tables: MetaTables, stream: StreamAssignment) -> MetaChanges:
    """Drops a stream; a tombstone stays until its servers have confirmed that its files are gone."""
    peers = merged(stream.hosts, stream.leaving)
    tombstone = Tombstone(stream.account, stream.name, stream.incarnation, peers, tables.applied)
    return MetaChanges(dropped_streams=[(stream.account, stream.name)], tombstones=[tombstone])


# --- what groups report --------------------------------------------------------------------------


def _reported(tables: MetaTables, command: ChoosePeers | SettleMembers) -> StreamAssignment | None:
    """The stream that a group's leader reports about; None for an incarnation that is gone."""
    present = tables.find_stream(command.account, command.stream)
    return present if present is not None and present.incarnation == command.incarnation else None


def choose_peers(tables: MetaTables, command: ChoosePeers) -> Outcome:
    """A choice that does not fit (any more) does nothing: its leader chooses again."""
    present = _reported(tables, command)
    if present is None or present.desired is None or present.desired.shrink_to == 0:
        return MetaChanges(), []
    chosen = tuple(dict.fromkeys(command.peers))
    if len(chosen) != present.desired.shrink_to or not set(chosen) <= set(present.desired.peers):
        return MetaChanges(), []
    desired = structs.replace(present.desired, peers=chosen, shrink_to=0)
    shrunk = structs.replace(regrouping.regrouped(present, desired), version=tables.applied)
    return stream_outcome(shrunk, AssetAction.MOVED)


def settle_members(tables: MetaTables, command: SettleMembers) -> Outcome:
    """A leader that did not know the present target reports again."""
    present = _reported(tables, command)
    if present is None or present.desired is None or present.desired.shrink_to:
        return MetaChanges(), []
    if command.as_of < present.version or set(command.peers) != set(present.desired.peers):
        return MetaChanges(), []
    settled = structs.replace(regrouping.settled(present), version=tables.applied)
    return stream_outcome(settled, AssetAction.MOVED)
