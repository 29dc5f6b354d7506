"""How many clients of each account other servers have.

The limit of an account's connections holds in the whole cluster. Each server publishes its counts when they
change, and every 30 seconds; a server that has shut down, or whose routes are lost, counts no more.

Invariant: the counts lag behind by the time that a message takes, so the limit may be exceeded for that long.
Then each server closes the youngest of its own clients that are too many, as the official server does.
"""

from __future__ import annotations

import msgspec


class _Server(msgspec.Struct):
    id: str = ""
    cluster: str = ""


class _Counts(msgspec.Struct):
    server: _Server = msgspec.field(default_factory=_Server)
    acc: str = ""
    conns: int = 0


class RemoteConnections:
    """Connections of accounts on other servers.

    Args:
        own_id: id of this server, whose own events are ignored.
    """

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._counts: dict[str, dict[str, int]] = {}
        self._clusters: dict[str, str] = {}  # of servers

    def note(self, payload: bytes) -> list[str]:
        """Notes an event of a server; returns the accounts that have more connections than before."""
        try:
            stat = msgspec.json.decode(payload, type=_Counts)
        except msgspec.DecodeError:
            return []
        if stat.server.id == self._own_id or not stat.server.id:
            return []
        self._clusters[stat.server.id] = stat.server.cluster
        before = self._counts.get(stat.acc, {}).get(stat.server.id, 0)
        if stat.conns > 0:
            self._counts.setdefault(stat.acc, {})[stat.server.id] = stat.conns
        else:
            self._counts.get(stat.acc, {}).pop(stat.server.id, None)
        return [stat.acc] if stat.conns > before else []

    def forget(self, server_id: str) -> None:
        """The server is gone."""
        self._clusters.pop(server_id, None)
        for counts in self._counts.values():
            counts.pop(server_id, None)

    def keep_clusters(self, names: set[str]) -> None:
        """The servers of all other clusters are out of reach."""
        for server_id, cluster in tuple(self._clusters.items()):
            if cluster not in names:
                self.forget(server_id)

    def count(self, account: str) -> int:
        """Connections of the account on all other servers."""
        return sum(self._counts.get(account, {}).values())
