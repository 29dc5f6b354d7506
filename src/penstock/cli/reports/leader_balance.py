"""Which leaders should step down so that servers lead about as many streams, or consumers, as each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.protocol.api import ClusterInfo


@dataclass(frozen=True, slots=True)
class LedAsset:
    """A replicated stream or consumer. followers: names of servers that may lead it instead of `leader`."""

    name: str
    cluster: str
    leader: str
    followers: tuple[str, ...]

    @classmethod
    def of(cls, name: str, cluster: ClusterInfo) -> LedAsset:
        """From its info: replicas that are current and online may lead."""
        followers = tuple(peer.name for peer in cluster.replicas if peer.current and not peer.offline)
        return cls(name, cluster.name, cluster.leader, followers)


@dataclass(frozen=True, slots=True)
class LeaderMove:
    """`asset` should be led by `server`."""

    asset: LedAsset
    server: str


def leader_moves(assets: Iterable[LedAsset]) -> list[LeaderMove]:
    """The changes of leaders that even out how many assets each server of a cluster leads.

    Each asset moves once at most. A move is made only to a server that leads at least two fewer, so that each
    one makes the difference smaller and none is undone.
    """
    by_cluster: dict[str, list[LedAsset]] = {}
    for asset in assets:
        if asset.leader and asset.followers:
            by_cluster.setdefault(asset.cluster, []).append(asset)
    return [move for found in by_cluster.values() for move in _moves_of(found)]


def _moves_of(assets: Sequence[LedAsset]) -> list[LeaderMove]:
    leading: dict[str, int] = {}
    for asset in assets:
        leading[asset.leader] = leading.get(asset.leader, 0) + 1
        for server in asset.followers:
            leading.setdefault(server, 0)
    moves: list[LeaderMove] = []
    left = list(assets)
    while left:
        # The largest difference first; names decide between equal ones, so that a run can be repeated.
        asset, server = max(
            ((asset, server) for asset in left for server in asset.followers),
            key=lambda pair: (leading[pair[0].leader] - leading[pair[1]], pair[0].name, pair[1]),
        )
        if leading[asset.leader] - leading[server] < 2:
            break
        leading[asset.leader] -= 1
        leading[server] += 1
        left.remove(asset)
        moves.append(LeaderMove(asset, server))
    return moves
