"""Which connections should close so that the servers of a cluster have about as many as each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil


@dataclass(slots=True)
class ServerConnections:
    """The connections of a server that may be closed, by their ids, oldest first."""

    server: str
    server_id: str
    cluster: str
    cids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SurplusConnection:
    """A connection that its server has above the average of the cluster."""

    server: str
    server_id: str
    cid: int


def surplus_connections(servers: Iterable[ServerConnections]) -> list[SurplusConnection]:
    """The newest connections of each server above its cluster's average.

    The average is rounded up: two servers with two connections and one are balanced.
    """
    clusters: dict[str, list[ServerConnections]] = {}
    for server in servers:
        clusters.setdefault(server.cluster, []).append(server)
    return [
        SurplusConnection(server.server, server.server_id, cid)
        for members in clusters.values()
        for server in members
        for cid in sorted(server.cids)[ceil(sum(len(one.cids) for one in members) / len(members)) :]
    ]
