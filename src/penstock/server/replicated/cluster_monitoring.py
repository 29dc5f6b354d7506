"""What monitoring shows of replicated JetStream: `meta_cluster` of `/jsz`, `/raftz`, `/healthz`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from penstock.jetstream.meta import cluster_infos
from penstock.protocol.api import MetaClusterInfo
from penstock.replication.raftz import group_names, group_status
from penstock.server.monitoring.pages.page_options import Steps, pieces
from penstock.server.replicated.cluster_sights import peer_of
from penstock.server.replicated.meta_replica import META_GROUP
from penstock.server.replicated.stream_groups import stored_of

if TYPE_CHECKING:
    from penstock.server.replicated.cluster_jetstream import ClusterJetStream

SYSTEM_ACCOUNT = "$SYS"


class ClusterProblem(NamedTuple):
    """Something that is not healthy. stream: "" for the cluster as a whole."""

    why: str
    account: str = ""
    stream: str = ""


def meta_cluster(cluster: ClusterJetStream) -> MetaClusterInfo:
    """The meta group as this server sees it."""
    group = cluster.meta.group
    voters = group.membership.voters if group is not None else ()
    # Members have the name of their server in theirs: the state knows them a moment later.
    names = {peer_of(one): one.rpartition(".")[0] for one in voters}
    info = cluster_infos.meta_cluster(
        cluster.tables,
        cluster.name,
        cluster.meta_sight(),
        time.time_ns(),
        voters=[peer_of(one) for one in voters],
        pending=max(0, group.commit_index - group.applied_index) if group is not None else 0,
    )
    return structs.replace(
        info,
        rescue=group is not None and group.replica.lowered_quorum > 0,
        quorum_needed=group.replica.quorum_needed if group is not None else info.quorum_needed,
        leader=names.get(info.peer, info.leader),
        replicas=[structs.replace(one, name=names.get(one.peer, one.name)) for one in info.replicas],
    )


def raftz(cluster: ClusterJetStream) -> Steps:
    """The groups of this server by account: the meta group is the system account's. Stream groups have the
    names that infos show."""
    node = cluster.node
    if node is None:
        return {}
    names = {META_GROUP: META_GROUP}
    if cluster.groups is not None:
        for one in cluster.groups.groups.values():
            names[one.name] = one.assignment.group.name
    shown: dict[str, dict[str, Any]] = {}
    for some in pieces(group_names(node)):
        yield
        for name in some:
            status = group_status(node, name, node.clock(), time.time_ns())
            if status is not None:
                title, stream = names.get(name, name), stored_of(name)
                account = SYSTEM_ACCOUNT if stream is None else stream.account
                shown.setdefault(account, {})[title] = status | {"id": title}
    return shown


def ha_assets(cluster: ClusterJetStream) -> int:
    """Groups of more than one server that this one is in: the meta group and streams. The official server
    counts those of consumers, too."""
    return int(cluster.meta.group is not None) + cluster.tables.load(cluster.own_peer).replicated


def meta_problems(cluster: ClusterJetStream) -> list[ClusterProblem]:
    """What is wrong with the meta group here."""
    meta = cluster.meta
    if meta.failure:
        return [ClusterProblem(f"JetStream meta layer is not running: {meta.failure}")]
    if meta.group is None or meta.leader is None:
        return [ClusterProblem("JetStream has not established contact with a meta leader")]
    if not meta.group.is_current or cluster.own_peer not in meta.tables.peers:
        return [ClusterProblem("JetStream is not current with the meta leader")]
    return []


def stream_problems(cluster: ClusterJetStream) -> list[ClusterProblem]:
    """What is wrong with the streams that this server has, or should have."""
    found: list[ClusterProblem] = []
    supervisor, groups = cluster.supervisor, cluster.groups
    if supervisor is None or groups is None:
        return found
    for stored, why in supervisor.quarantined.items():
        text = f"JetStream stream '{stored.account} > {stored.name}' is set aside: {why}"
        found.append(ClusterProblem(text, stored.account, stored.name))
    for account, name in sorted(cluster.tables.streams_on(cluster.own_peer)):
        why = supervisor.failures.get((account, name), "")
        group = groups.find(account, name)
        if group is None:
            why = why or "stream not found"
        elif group.failure:
            why = group.failure
        elif not group.is_current:
            why = "stream catching up"
        if why:
            text = f"JetStream stream '{account} > {name}' is not current: {why}"
            found.append(ClusterProblem(text, account, name))
    return found
