"""The state of the groups as `/raftz` of the official server shows it, as a pure function of a node."""

from __future__ import annotations

from typing import Any

from penstock.protocol.durations import format_time
from penstock.raft.raft_messages import NO_VOTE, UNKNOWN_VOTE
from penstock.raft.raft_replica import Role
from penstock.replication.replica_group import ReplicaGroup
from penstock.replication.replication_node import ReplicationNode

_STATES = {
    Role.FOLLOWER: "FOLLOWER",
    Role.PRE_CANDIDATE: "CANDIDATE",
    Role.CANDIDATE: "CANDIDATE",
    Role.LEADER: "LEADER",
}


def raft_status(node: ReplicationNode, now: int, wall_now: int, group: str = "") -> dict[str, dict[str, Any]]:
    """The groups by name, each with the official server's fields; `group`: only this one.

    Args:
        now, wall_now: the node's clock, and ns since 1970, at the same moment.

    Fields beyond the official ones: `recovering`, `installing`, `unsynced` (writes that wait for the disk),
    `failed` (why the group has stopped here), and, with `state` "CLOSED", groups of the log without an owner.
    """
    names = [group] if group else group_names(node)
    found = {name: group_status(node, name, now, wall_now) for name in names}
    return {name: status for name, status in found.items() if status is not None}


def group_names(node: ReplicationNode) -> list[str]:
    """All groups that raft_status() shows, in its order."""
    return sorted({*node.groups, *node.failed_groups, *node.unopened_groups})


def group_status(node: ReplicationNode, name: str, now: int, wall_now: int) -> dict[str, Any] | None:
    """One group of raft_status(), None when there is none of this name."""
    if name in node.unopened_groups:
        return {"id": name, "state": "CLOSED"}
    if name in node.failed_groups:
        return {"id": name, "state": "CLOSED", "failed": str(node.failed_groups[name])}
    group = node.groups.get(name)
    return None if group is None else _group(node, group, now, wall_now)


def _group(node: ReplicationNode, group: ReplicaGroup, now: int, wall_now: int) -> dict[str, Any]:
    replica, log = group.replica, group.replica.log
    voters = log.membership.voters
    vote = replica.hard_state.vote
    status: dict[str, Any] = {
        "id": group.name,
        "state": _STATES[replica.role],
        "size": len(voters),
        "quorum_needed": len(voters) // 2 + 1,
        "observer": node.name not in voters,
        "committed": log.commit_index,
        "applied": group.applied_index,
        "catching_up": group.is_installing or replica.is_recovering,
        "leader": replica.leader or "",
        "ever_had_leader": log.last_index > 0,
        "term": replica.term,
        "voted_for": "" if vote in (NO_VOTE, UNKNOWN_VOTE) else vote,
        "pterm": log.last_term,
        "pindex": log.last_index,
        "wal": {
            "messages": log.last_index - log.base_index,
            "first_seq": log.base_index + 1,
            "last_seq": log.last_index,
        },
        "peers": {one: _peer(node, group, one, now) for one in log.membership.members if one != node.name},
        "recovering": replica.is_recovering,
        "installing": group.is_installing,
        "unsynced": group.unsynced,
    }
    if group.leader_since is not None:
        status["leader_since"] = format_time(wall_now - (now - group.leader_since))
    return status


def _peer(node: ReplicationNode, group: ReplicaGroup, peer: str, now: int) -> dict[str, Any]:
    heard = node.heard(peer)
    lead = group.replica.leadership
    shown: dict[str, Any] = {"name": peer.rpartition(".")[0], "known": heard is not None}
    if lead is not None and peer in lead.peers:
        shown["last_replicated_index"] = lead.peers[peer].match
    if heard is not None:
        shown["last_seen"] = f"{(now - heard) / 1e6:.3f}ms"
    return shown
