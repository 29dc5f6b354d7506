"""Advisories about a cluster: subject suffix, type and fields, as `Advisories.publish` takes them.

Those about streams and consumers go to the account that has them, and once more, with the account's name in
`account`, to the system account; the others to the system account alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.protocol.api import PeerInfo


class ClusterAdvisory(NamedTuple):
    """suffix: of the subject. kind: of the type. in_account: whether the asset's account gets it too."""

    suffix: str
    kind: str
    fields: dict[str, Any]
    in_account: bool

    def for_account(self) -> dict[str, Any]:
        """The fields as the asset's own account gets them."""
        return {name: value for name, value in self.fields.items() if name != "account"}


def stream_leader_elected(
    account: str, stream: str, leader: str, replicas: Sequence[PeerInfo]
) -> ClusterAdvisory:
    """leader: a server name."""
    fields = {"account": account, "stream": stream, "leader": leader, "replicas": replicas}
    return ClusterAdvisory(f"STREAM.LEADER_ELECTED.{stream}", "stream_leader_elected", fields, True)


def stream_quorum_lost(account: str, stream: str, replicas: Sequence[PeerInfo]) -> ClusterAdvisory:
    """The leader of a stream has no majority any more."""
    fields = {"account": account, "stream": stream, "replicas": replicas}
    return ClusterAdvisory(f"STREAM.QUORUM_LOST.{stream}", "stream_quorum_lost", fields, True)


def consumer_leader_elected(
    account: str, stream: str, consumer: str, leader: str, replicas: Sequence[PeerInfo]
) -> ClusterAdvisory:
    """leader: a server name."""
    fields = {
        "account": account, "stream": stream, "consumer": consumer, "leader": leader, "replicas": replicas,
    }  # fmt: skip
    suffix = f"CONSUMER.LEADER_ELECTED.{stream}.{consumer}"
    return ClusterAdvisory(suffix, "consumer_leader_elected", fields, True)


def consumer_quorum_lost(
    account: str, stream: str, consumer: str, replicas: Sequence[PeerInfo]
) -> ClusterAdvisory:
    """The leader of a consumer has no majority any more."""
    fields = {"account": account, "stream": stream, "consumer": consumer, "replicas": replicas}
    return ClusterAdvisory(f"CONSUMER.QUORUM_LOST.{stream}.{consumer}", "consumer_quorum_lost", fields, True)


def domain_leader_elected(leader: str, replicas: Sequence[PeerInfo], cluster: str) -> ClusterAdvisory:
    """A meta leader was elected. leader: its peer id, as the official server has it."""
    fields = {"leader": leader, "replicas": replicas, "cluster": cluster}
    return ClusterAdvisory("DOMAIN.LEADER_ELECTED", "domain_leader_elected", fields, False)


def meta_rescue(
    server: str, server_id: str, quorums: tuple[int, int], cluster: str, domain: str
) -> ClusterAdvisory:
    """This server lets fewer members of the meta group decide. quorums: before and now."""
    fields = {"server": server, "server_id": server_id, "prev_quorum": quorums[0], "new_quorum": quorums[1]}
    fields |= {"cluster": cluster} | ({"domain": domain} if domain else {})
    return ClusterAdvisory("SERVER.META_RESCUE", "meta_rescue", fields, False)


def server_removed(server: str, server_id: str, cluster: str) -> ClusterAdvisory:
    """This server was removed from the cluster."""
    fields = {"server": server, "server_id": server_id, "cluster": cluster}
    return ClusterAdvisory("SERVER.REMOVED", "server_removed", fields, False)
