"""A dumb model of what passes between clusters."""

from __future__ import annotations

from tests.reference.route_links import matches

RECENT_NS = 2_000_000_000

# Where a message goes on to, by where it comes from.
GOES_ON = {
    "client": {"client", "route", "leaf", "hub", "gateway"},
    "gateway": {"client", "route", "leaf"},
    "leaf": {"client", "route", "leaf", "hub", "gateway"},
    "hub": {"client", "leaf", "hub"},
    "route": {"client", "leaf"},
}


class Recent:
    """The subscriptions of the last two seconds."""

    def __init__(self) -> None:
        self.made: list[tuple[int, bytes]] = []

    def add(self, now: int, subject: bytes) -> None:
        self.made.append((now, subject))

    def has(self, now: int, subject: bytes) -> bool:
        return any(now < at + RECENT_NS and matches(filter_, subject) for at, filter_ in self.made)


class Cluster:
    """What another cluster wants of one account."""

    def __init__(self) -> None:
        self.is_optimistic = True
        self.wants_account = True
        self.refused: set[bytes] = set()
        self.announced: set[bytes] = set()

    def wants(self, subject: bytes) -> bool:
        if any(matches(filter_, subject) for filter_ in self.announced):
            return True
        return self.is_optimistic and self.wants_account and subject not in self.refused
