"""A group as this server sees it: who leads, and how far each member is, for infos and monitoring."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from penstock.jetstream.meta.cluster_infos import GroupSight, MemberSight
from penstock.protocol.ids import short_hash

if TYPE_CHECKING:
    from penstock.protocol.api import DesiredClusterStatus
    from penstock.replication.replication_node import ReplicationNode

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
