"""The `cluster` objects of infos and the `meta_cluster` section of `/jsz`, from plain values.

Fields and their absence are those of the official server (2.15): an asset with one replica shows the name
of the cluster and its leader only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from penstock.jetstream.meta.assignments import (
    ConsumerAssignment,
    GroupOrigin,
    StreamAssignment,
    consumer_replicas,
)
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.protocol.api import (
    ClusterInfo,
    DesiredClusterInfo,
    DesiredClusterOrigin,
    DesiredClusterStatus,
    DesiredPeerInfo,
    MetaClusterInfo,
    MetaSnapshotInfo,
    PeerInfo,
    StreamAlternate,
)
from penstock.protocol.durations import format_time

CURRENT_NS = 10_000_000_000  # a member that was not heard for longer is not current


class MemberSight(Struct, frozen=True, kw_only=True):
    """A member of a group as the answering server sees it. heard: ns since 1970, 0 for never. is_voter: not
    a learner."""

    is_current: bool = False
    heard: int = 0
    lag: int = 0
    is_voter: bool = True


class GroupSight(Struct, frozen=True, kw_only=True):
    """A group as the answering server sees it. own: its peer id. leader: a peer id, "" for none.
    leader_since: ns. members: by peer id, the server itself among them. traffic_account: whose account
    carries the group's messages, "" for the system account."""

    own: str
    leader: str = ""
    leader_since: int = 0
    members: Mapping[str, MemberSight] = {}
    traffic_account: str = ""
    status: DesiredClusterStatus | None = None


def name_of(tables: MetaTables, peer: str) -> str:
    """The name of a server; a text for one that is not known."""
    record = tables.peers.get(peer)
    return record.name if record is not None else f"Server name unknown at this time (peerID: {peer})"


def leader_name(tables: MetaTables, leader: str) -> str:
    """The name of a leader; "" when there is none. leader: a peer id, "" for none.

    A leader is heard before its name is: until then it is "" too, as for the official server. Clients wait
    for a name, and the text for an unknown server would look like one."""
    record = tables.peers.get(leader)
    return record.name if record is not None else ""


def peer_info(
    tables: MetaTables, peer: str, sight: MemberSight | None, now: int, *, is_pending: bool = False
) -> PeerInfo:
    """A member of a group. sight: None when it is not a member yet."""
    seen = sight or MemberSight()
    active = max(0, now - seen.heard) if seen.heard else 0
    is_known = peer in tables.peers
    return PeerInfo(
        name=name_of(tables, peer),
        current=seen.is_current and active <= CURRENT_NS,
        offline=not tables.is_online(peer),
        active=active,
        lag=seen.lag if is_known else 0,
        peer=peer,
        pending=is_pending or sight is None or not seen.is_voter,
    )


def stream_cluster(tables: MetaTables, stream: StreamAssignment, sight: GroupSight, now: int) -> ClusterInfo:
    """The `cluster` of a stream. now: ns."""
    if len(stream.hosts) == 1 and stream.desired is None:
        return _lone(tables, stream, sight)
    desired = desired_info(tables, stream, sight.status)
    return _group_info(tables, stream, stream.group.name, sight, now, desired)


def stream_alternates(tables: MetaTables, account: str, stream: str, domain: str) -> list[StreamAlternate]:
    """The `alternates` of a stream: itself, and the mirrors that have its messages too; none without a
    mirror. A client may read from any of them. domain: JetStream's, of the server."""
    assets = tables.assets(account)
    mirrors = assets.mirrors.get(stream)
    if not mirrors or stream not in assets.streams:
        return []
    return [
        StreamAlternate(name=name, domain=domain, cluster=assets.streams[name].group.cluster)
        for name in (stream, *sorted(mirrors))
    ]


def consumer_cluster(
    tables: MetaTables, stream: StreamAssignment, consumer: ConsumerAssignment, sight: GroupSight, now: int
) -> ClusterInfo:
    """The `cluster` of a consumer: its group is the stream's, under the consumer's name."""
    if consumer_replicas(consumer.config, stream.config) == 1:
        return _lone(tables, stream, sight)
    return _group_info(tables, stream, consumer.raft_group, sight, now)


def _lone(tables: MetaTables, stream: StreamAssignment, sight: GroupSight) -> ClusterInfo:
    return ClusterInfo(name=stream.group.cluster, leader=leader_name(tables, sight.leader))


def _group_info(
    tables: MetaTables,
    stream: StreamAssignment,
    raft_group: str,
    sight: GroupSight,
    now: int,
    desired: DesiredClusterInfo | None = None,
) -> ClusterInfo:
    is_choosing = stream.desired is not None and stream.desired.shrink_to > 0
    replicas = [
        peer_info(
            tables,
            peer,
            sight.members.get(peer),
            now,
            is_pending=not is_choosing and peer not in stream.target,
        )
        for peer in stream.hosts
        if not sight.leader or peer != sight.leader
    ]
    return ClusterInfo(
        name=stream.group.cluster,
        raft_group=raft_group,
        leader=leader_name(tables, sight.leader),
        leader_since=format_time(sight.leader_since) if sight.leader and sight.leader_since else None,
        system_account=not sight.traffic_account,
        traffic_account=sight.traffic_account or "$SYS",
        replicas=sorted(replicas, key=lambda one: one.name),
        desired=desired,
    )


def desired_info(
    tables: MetaTables, stream: StreamAssignment, status: DesiredClusterStatus | None
) -> DesiredClusterInfo | None:
    """What the stream's group is to become; None when it is as wanted."""
    desired = stream.desired
    if desired is None:
        return None if status is None else DesiredClusterInfo(status=status)
    peers = () if desired.shrink_to else desired.peers
    replicas = [
        DesiredPeerInfo(name=name_of(tables, peer), offline=not tables.is_online(peer), peer=peer)
        for peer in peers
    ]
    return DesiredClusterInfo(
        created=format_time(desired.created),
        name=desired.cluster,
        replicas=sorted(replicas, key=lambda one: one.name),
        origin=_origin_info(stream, desired.origin),
        status=status,
    )


def _origin_info(stream: StreamAssignment, origin: GroupOrigin | None) -> DesiredClusterOrigin | None:
    if origin is None:
        return None
    return DesiredClusterOrigin(replicas=origin.replicas, placement=origin.placement)


def meta_cluster(
    tables: MetaTables,
    cluster: str,
    sight: GroupSight,
    now: int,
    *,
    voters: Iterable[str],
    pending: int = 0,
    pending_requests: int = 0,
    pending_infos: int = 0,
    snapshot: MetaSnapshotInfo | None = None,
) -> MetaClusterInfo:
    """`meta_cluster` of `/jsz`. voters: the peer ids of the meta group. pending: committed commands that are
    not applied yet."""
    voting = sorted(voters)
    replicas = [
        peer_info(tables, peer, sight.members.get(peer, MemberSight()), now)
        for peer in voting
        if peer != sight.own
    ]
    return MetaClusterInfo(
        name=cluster,
        leader=leader_name(tables, sight.leader),
        peer=sight.leader,
        replicas=sorted(replicas, key=lambda one: one.name),
        cluster_size=len(voting),
        quorum_needed=len(voting) // 2 + 1,
        pending=pending,
        pending_requests=pending_requests,
        pending_infos=pending_infos,
        snapshot=snapshot or MetaSnapshotInfo(),
    )
