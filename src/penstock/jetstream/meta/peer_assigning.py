"""Commands about servers: they join, are observed, evacuated and removed; and changes of many streams, in
slices.

A server that is removed stays in the state until the meta group has a membership without it. Meanwhile no
other server can be removed: a membership changes by one server at a time.
"""

from __future__ import annotations

from msgspec import structs

from penstock.jetstream.meta import regrouping
from penstock.jetstream.meta.assignments import PeerRecord, PeerStatus
from penstock.jetstream.meta.meta_commands import (
    ConfirmRemoved,
    EvacuateServer,
    FoundCluster,
    Heal,
    ObservePeers,
    PeerGone,
    PurgeAccount,
    Reassign,
    RemoveServer,
    SetPeer,
)
from penstock.jetstream.meta.meta_effects import (
    Answered,
    AssetAction,
    MetaEffect,
    PeerAction,
    PeerEffect,
    StreamEffect,
    WorkLeft,
)
from penstock.jetstream.meta.meta_tables import MetaChanges, MetaTables, StreamKey
from penstock.jetstream.meta.stream_assigning import Outcome, removal_of, stream_outcome
from penstock.protocol import error_codes as codes

WORK = 64  # streams that a command of a long change handles


def found_cluster(tables: MetaTables, command: FoundCluster) -> Outcome:
    """The first one counts: two servers may found a cluster at once, and one of them leads first."""
    if tables.cluster_id:
        return MetaChanges(), []
    return MetaChanges(cluster_id=command.cluster_id), []


def set_peer(tables: MetaTables, command: SetPeer) -> Outcome:
    """A new start ends an evacuation; a start does not undo a removal."""
    before = tables.peers.get(command.peer)
    fields = {name: getattr(command, name) for name in SetPeer.__struct_fields__}
    if before is None:
        record = PeerRecord(**fields)
    else:
        status = before.status
        if status is PeerStatus.EVACUATED and command.boot > before.boot:
            status = PeerStatus.MEMBER
        record = structs.replace(before, **fields, status=status)
    if record == before:
        return MetaChanges(), []
    action = PeerAction.JOINED if before is None else PeerAction.CHANGED
    effects: list[MetaEffect] = [PeerEffect(action, command.peer)]
    if record.status is PeerStatus.MEMBER:
        effects += _work_for_more_servers(tables)
    return MetaChanges(peers=[record]), effects


def _work_for_more_servers(tables: MetaTables) -> list[MetaEffect]:
    """What may have waited for servers that can be chosen."""
    work: list[MetaEffect] = [WorkLeft(Heal(WORK))] if tables.short else []
    if any(tables.streams_on(peer) for peer in tables.retired_peers()):
        work.append(WorkLeft(Reassign(WORK)))
    return work


def observe_peers(tables: MetaTables, command: ObservePeers) -> Outcome:
    """Sights of unknown servers are left out."""
    changed: dict[str, PeerRecord] = {}
    for sight in command.sights:
        record = tables.peers.get(sight.peer)
        if record is not None:
            seen = {name: getattr(sight, name) for name in sight.__struct_fields__}
            changed[sight.peer] = structs.replace(record, **seen)
    records = [one for one in changed.values() if one != tables.peers[one.peer]]
    effects: list[MetaEffect] = [PeerEffect(PeerAction.CHANGED, one.peer) for one in records]
    if any(one.online and not tables.is_online(one.peer) for one in records):
        effects += _work_for_more_servers(tables)
    return MetaChanges(peers=records), effects


def remove_server(tables: MetaTables, command: RemoveServer) -> Outcome:
    """Raises JetStreamApiError 10044 for an unknown server, 10202 while another one is being removed."""
    if any(one.status is PeerStatus.REMOVING for one in tables.peers.values()):
        raise codes.CLUSTER_SERVER_MEMBER_CHANGE_INFLIGHT.exception()
    record = _member(tables, command.peer)
    record = structs.replace(record, status=PeerStatus.REMOVING)
    leaves = PeerEffect(PeerAction.LEAVES, record.peer, command.ticket)
    return MetaChanges(peers=[record]), [leaves, WorkLeft(Reassign(WORK))]


def evacuate_server(tables: MetaTables, command: EvacuateServer) -> Outcome:
    """Raises JetStreamApiError 10044 for an unknown server. Until its next start it gets no new streams; the
    official server moves the present ones only."""
    record = _member(tables, command.peer)
    if record.status is PeerStatus.REMOVING:
        return MetaChanges(), [Answered(command.ticket)]
    record = structs.replace(record, status=PeerStatus.EVACUATED)
    evacuated = PeerEffect(PeerAction.EVACUATED, record.peer)
    return MetaChanges(peers=[record]), [evacuated, Answered(command.ticket), WorkLeft(Reassign(WORK))]


def _member(tables: MetaTables, peer: str) -> PeerRecord:
    record = tables.peers.get(peer)
    if record is None:
        raise codes.CLUSTER_SERVER_NOT_MEMBER.exception()
    return record


def peer_gone(tables: MetaTables, command: PeerGone) -> Outcome:
    """Forgets a removed server: no confirmation is awaited from it any more."""
    record = tables.peers.get(command.peer)
    if record is None or record.status is not PeerStatus.REMOVING:
        return MetaChanges(), []
    changes = MetaChanges(dropped_peers=[command.peer])
    for tombstone in list(tables.tombstones.values()):
        _confirm(changes, tables, tombstone.incarnation, command.peer)
    gone = PeerEffect(PeerAction.GONE, command.peer)
    if tables.streams_on(command.peer):  # it has left the meta group before its streams left it
        return changes, [gone, WorkLeft(Reassign(WORK))]
    return changes, [gone]


def confirm_removed(tables: MetaTables, command: ConfirmRemoved) -> Outcome:
    """The server is not asked for these files any more. What has changed since `as_of` it confirms again."""
    changes = MetaChanges()
    wanted = set(command.incarnations)
    for incarnation in sorted(wanted):
        tombstone = tables.tombstones.get(incarnation)
        if tombstone is not None and tombstone.version <= command.as_of:
            _confirm(changes, tables, incarnation, command.peer)
    for key in sorted(tables.streams_leaving(command.peer)):
        stream = tables.stream(*key)
        if stream.incarnation in wanted and stream.version <= command.as_of:
            leaving = tuple(one for one in stream.leaving if one != command.peer)
            changes.streams.append(structs.replace(stream, leaving=leaving))
    return changes, []


def _confirm(changes: MetaChanges, tables: MetaTables, incarnation: int, peer: str) -> None:
    tombstone = tables.tombstones.get(incarnation)
    if tombstone is None or peer not in tombstone.peers:
        return
    left = tuple(one for one in tombstone.peers if one != peer)
    if left:
        changes.tombstones.append(structs.replace(tombstone, peers=left))
    else:
        changes.dropped_tombstones.append(incarnation)


# --- changes of many streams, one at a time ------------------------------------------------------


def keys_to_reassign(tables: MetaTables) -> set[StreamKey]:
    """The streams of servers that are evacuated or removed."""
    return {key for peer in tables.retired_peers() for key in tables.streams_on(peer)}


def reassign_one(tables: MetaTables, key: StreamKey, command: Reassign) -> Outcome | None:
    """Moves a stream away from such servers; None where it does not want them or has no other."""
    stream = tables.stream(*key)
    away = tables.retired_peers().intersection(stream.target)
    moved = regrouping.without_peers(tables, stream, away, command.unique_tag) if away else None
    if moved is None:
        return None
    return stream_outcome(structs.replace(moved, version=tables.applied), AssetAction.MOVED)


def heal_one(tables: MetaTables, key: StreamKey, command: Heal) -> Outcome | None:
    """Gives a stream the servers that it lacks; None where there are none, or another change is in
    progress."""
    stream = tables.stream(*key)
    if stream.desired is not None:
        return None
    healed = regrouping.without_peers(tables, stream, tables.retired_peers(), command.unique_tag)
    if healed is None:
        return None
    return stream_outcome(structs.replace(healed, version=tables.applied), AssetAction.MOVED)


def purge_one(tables: MetaTables, key: StreamKey, command: PurgeAccount) -> Outcome:
    """Removes a stream of the account."""
    stream = tables.stream(*key)
    removed = StreamEffect(AssetAction.REMOVED, stream.account, stream.name, stream.incarnation)
    return removal_of(tables, stream), [removed]
