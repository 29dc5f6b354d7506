"""Groups as this server sees them: who leads, and how far each member is, for infos, monitoring, and the
routing of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from penstock.jetstream.meta import cluster_infos
from penstock.jetstream.meta.cluster_infos import GroupSight, MemberSight
from penstock.jetstream.meta.request_routing import AssetView
from penstock.protocol.ids import short_hash
from penstock.server.replicated.meta_replica import META_GROUP

if TYPE_CHECKING:
    from penstock.jetstream.meta.assignments import StreamAssignment
    from penstock.jetstream.meta.meta_tables import MetaTables
    from penstock.protocol.api import ClusterInfo, DesiredClusterStatus
    from penstock.replication.replication_node import ReplicationNode
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.server.replicated.stream_group_owner import StreamGroup
    from penstock.server.replicated.stream_groups import StreamGroups
    from penstock.server.replicated.stream_supervisor import StreamSupervisor

CURRENT_LAG = 1000  # entries: a member that lacks fewer follows


def peer_of(member: str) -> str:
    """The peer id of a member's server."""
    return short_hash(member.rpartition(".")[0])


def group_sight(
    node: ReplicationNode,
    linked: Collection[str],
    now: int,
    name: str,
    leader: str | None,
    members: Sequence[str],
    learners: Collection[str],
    lags: dict[str, int],
    *,
    is_current: bool,
    status: DesiredClusterStatus | None = None,
) -> GroupSight:
    """A group on this server.

    Args:
        linked: members that there is a link to.
        now: ns since 1970.
        name: of the group at the node.
        leader: the member that leads.
        lags: entries that members lack, as the leader knows.
        is_current: whether this server has applied what is committed.
    """
    wall_offset = now - node.clock()
    leads = leader == node.name
    seen: dict[str, MemberSight] = {}
    for member in members:
        heard, lag, is_own = node.heard(member), lags.get(member, 0), member == node.name
        up = is_own or (member in linked and not node.is_down(member))
        seen[peer_of(member)] = MemberSight(
            is_current=is_current if is_own else up and (not leads or lag <= CURRENT_LAG),
            heard=heard + wall_offset if heard is not None else 0,
            lag=lag,
            is_voter=member not in learners,
        )
    found = node.groups.get(name)
    since = found.leader_since if found is not None else None
    return GroupSight(
        own=peer_of(node.name),
        leader=peer_of(leader) if leader is not None else "",
        leader_since=since + wall_offset if since is not None else 0,
        members=seen,
        status=status,
    )


class ClusterSights:
    """See the module. linked: returns the members that there is a link to. clock: ns since 1970."""

    def __init__(
        self,
        meta: MetaReplica,
        groups: StreamGroups,
        supervisor: StreamSupervisor,
        node: ReplicationNode,
        linked: Callable[[], Collection[str]],
        clock: Callable[[], int],
    ) -> None:
        self._meta = meta
        self._groups = groups
        self._supervisor = supervisor
        self._node = node
        self._linked = linked
        self._clock = clock

    def of(self, group: StreamGroup) -> GroupSight:
        """A stream's group."""
        membership = group.port.membership
        return group_sight(
            self._node, set(self._linked()), self._clock(), group.name, group.leader, membership.members,
            membership.learners, group.lags, is_current=group.is_current,
            status=self._supervisor.status.get(group.key),
        )  # fmt: skip

    def of_meta(self) -> GroupSight:
        """The meta group."""
        group = self._meta.group
        if group is None:
            return GroupSight(own=peer_of(self._node.name))
        membership = group.membership
        return group_sight(
            self._node, set(self._linked()), self._clock(), META_GROUP, self._meta.leader,
            membership.members, membership.learners, group.lags(), is_current=True,
        )  # fmt: skip

    def cluster_of(self, account: str, stream: str, consumer: str) -> ClusterInfo | None:
        """The `cluster` object of a stream, or of a consumer of it."""
        tables = self._meta.tables
        assignment = tables.find_stream(account, stream)
        group = self._groups.find(account, stream)
        if assignment is None or group is None:
            return None
        now = self._clock()
        sight = self.of(group)
        if not consumer:
            return cluster_infos.stream_cluster(tables, assignment, sight, now)
        one = tables.consumers(account, stream).get(consumer)
        if one is None:
            return None
        return cluster_infos.consumer_cluster(tables, assignment, one, sight, now)


def asset_view(
    stream: StreamAssignment,
    group: StreamGroup | None,
    node: ReplicationNode | None,
    own_peer: str,
    tables: MetaTables,
) -> AssetView:
    """What this server knows of a stream, for the routing of requests. group: that of the stream's name here.
    node: None before the log is open."""
    if group is not None and group.assignment.incarnation != stream.incarnation:
        group = None
    is_known = group is None or group.leader is not None
    # A server that is to join the group knows nothing of its leader.
    votes = group is not None and node is not None and node.name in group.port.membership.voters
    return AssetView(
        is_member=own_peer in stream.hosts,
        is_leader=group is not None and group.is_serving,
        has_leader=is_known or not votes,
        has_state=group is not None and group.has_state,
        is_current=group is not None and group.is_current,
        is_offline=tables.is_offline(stream),
        unsupported=group.failure if group is not None else "",
    )
