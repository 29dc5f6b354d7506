"""The sites of a run: clusters that gateways join, and sites below them, joined by leaf node links.

A site is one or more servers with routes. Sites without a hub are joined by gateways, each to each other, and
share all accounts. A site with a hub shares those accounts that its leaf node links bind. The sites are a
forest below the gateways, so there is one way between any two servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SHARED = ("A", "B")
"""The accounts that leaf node links may bind."""
SERVERS_MAX = 7


@dataclass(frozen=True)
class Site:
    """One site.

    name: of its cluster. servers: their numbers. hub: index of the site that it is below, None = gateways
    join it to the others without a hub. accounts: what it shares with its hub. named: indices of the other
    clusters in its configuration.
    """

    name: str
    servers: tuple[int, ...]
    hub: int | None
    accounts: tuple[str, ...]
    named: tuple[int, ...]


class SiteMap:
    """The sites of a run, drawn from a seed."""

    def __init__(self, random: Random) -> None:
        clusters = random.choice((1, 2, 2, 3))
        below = random.randrange(1 if clusters == 1 else 0, 4)
        self.sites: list[Site] = []
        self.size = 0
        for index in range(clusters + below):
            most = min(3 if index < clusters else 2, SERVERS_MAX - self.size)
            if most < 1:
                break
            servers = tuple(range(self.size, self.size + random.randrange(1, most + 1)))
            self.size += len(servers)
            is_cluster = index < clusters
            self.sites.append(
                Site(
                    f"site-{index}",
                    servers,
                    None if is_cluster else random.randrange(index),
                    SHARED if is_cluster else random.choice((SHARED, SHARED, ("A",))),
                    self._named(random, index, clusters) if is_cluster else (),
                )
            )
        self.clusters = [index for index, site in enumerate(self.sites) if site.hub is None]

    @staticmethod
    def _named(random: Random, index: int, clusters: int) -> tuple[int, ...]:
        """Each cluster but the first knows an earlier one, the first knows the second, for when it begins
        again."""
        known = [random.randrange(index)] if index else [1] if clusters > 1 else []
        known += [one for one in range(clusters) if one != index and random.random() < 0.2]
        return tuple(dict.fromkeys(known))

    @property
    def has_gateways(self) -> bool:
        return len(self.clusters) > 1

    def index_of(self, server: int) -> int:
        """The site of a server."""
        return next(index for index, site in enumerate(self.sites) if server in site.servers)

    def below(self, index: int, account: str) -> set[int]:
        """A site and those below it which share the account with it, by their links."""
        found = {index}
        for other, site in enumerate(self.sites):  # a hub is before its leaf nodes
            if site.hub in found and other not in found and account in site.accounts:
                found.add(other)
        return found

    def top(self, index: int) -> int:
        """The site above this one that has no hub."""
        while (hub := self.sites[index].hub) is not None:
            index = hub
        return index

    def reached(self, index: int, account: str) -> set[int]:
        """The sites that messages of the account from this one reach."""
        top = index
        while (hub := self.sites[top].hub) is not None and account in self.sites[top].accounts:
            top = hub
        if self.sites[top].hub is not None:
            return self.below(top, account)
        return {one for cluster in self.clusters for one in self.below(cluster, account)}
