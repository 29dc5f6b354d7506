"""Advisories about leaders and quorums of a cluster's groups, to the account of the asset and to the system
account."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.advisories import Advisories
from penstock.jetstream.meta import cluster_advisories as made
from penstock.jetstream.meta import cluster_infos
from penstock.jetstream.meta.assignments import consumer_replicas
from penstock.jetstream.meta.cluster_advisories import ClusterAdvisory

if TYPE_CHECKING:
    from penstock.jetstream.meta.cluster_infos import GroupSight
    from penstock.jetstream.meta.meta_tables import MetaTables
    from penstock.protocol.api import PeerInfo


class ClusterEvents:
    """See the module.

    Args:
        system: advisories of the system account.
        of_account: callable(account) -> its advisories, None without JetStream here.
        cluster: name of the cluster.
        clock: ns since 1970.
    """

    def __init__(
        self,
        system: Advisories,
        of_account: Callable[[str], Advisories | None],
        cluster: str,
        clock: Callable[[], int],
    ) -> None:
        self._system = system
        self._of_account = of_account
        self._cluster = cluster
        self._clock = clock

    def stream_led(self, tables: MetaTables, account: str, stream: str, sight: GroupSight) -> None:
        """This server leads a stream now, and its consumers. Streams with one replica have no elections."""
        assignment = tables.find_stream(account, stream)
        if assignment is None or len(sight.members) < 2:
            return
        leader, replicas = cluster_infos.leader_name(tables, sight.leader), self._replicas(tables, sight)
        self._publish(account, made.stream_leader_elected(account, stream, leader, replicas))
        for name, consumer in tables.consumers(account, stream).items():
            if consumer_replicas(consumer.config, assignment.config) > 1:
                self._publish(account, made.consumer_leader_elected(account, stream, name, leader, replicas))

    def quorum_lost(self, tables: MetaTables, account: str, stream: str, sight: GroupSight) -> None:
        """This server led a stream, and a majority does not answer any more."""
        replicas = self._replicas(tables, sight)
        self._publish(account, made.stream_quorum_lost(account, stream, replicas))
        for name in tables.consumers(account, stream):
            self._publish(account, made.consumer_quorum_lost(account, stream, name, replicas))

    def meta_led(self, tables: MetaTables, sight: GroupSight) -> None:
        """This server leads the meta group now."""
        replicas = self._replicas(tables, sight)
        self._publish("", made.domain_leader_elected(sight.own, replicas, self._cluster))

    def meta_rescued(self, server: str, server_id: str, quorums: tuple[int, int], domain: str) -> None:
        """This server lets fewer members of the meta group decide. quorums: before and now."""
        self._publish("", made.meta_rescue(server, server_id, quorums, self._cluster, domain))

    def _replicas(self, tables: MetaTables, sight: GroupSight) -> list[PeerInfo]:
        now = self._clock()
        return [cluster_infos.peer_info(tables, peer, seen, now) for peer, seen in sight.members.items()]

    def _publish(self, account: str, advisory: ClusterAdvisory) -> None:
        own = self._of_account(account) if advisory.in_account else None
        if own is not None:
            own.publish(advisory.suffix, advisory.kind, advisory.for_account())
        self._system.publish(advisory.suffix, advisory.kind, advisory.fields)
