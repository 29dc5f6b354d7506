"""What a server tells leaf nodes and hubs, and where a message goes on, as tables."""

from __future__ import annotations

VISIBLE = {
    "leaf": {"client", "route", "other", "hub"},
    "sibling": {"client", "route", "other", "hub"},
    "other": {"client", "route", "leaf", "sibling", "hub"},
    "isolated": {"client", "route"},
    "hub": {"client", "leaf", "sibling", "other"},
}
"""Whose interest each link learns of. `leaf` and `sibling` are leaf nodes of one cluster."""

GOES_ON = {
    "client": {"route", "other route", "leaf", "sibling", "other leaf", "hub", "other hub"},
    "route": {"leaf", "sibling", "other leaf"},  # each server has its own link to a hub
    "leaf": {"route", "other route", "other leaf", "hub", "other hub"},  # not back to its cluster
    "hub": {"leaf", "sibling", "other leaf", "other hub"},  # the cluster gets it over its own links
}
"""Where a message goes that comes from there."""


class Known:
    """The interest of all others: {(where, subject, queue): number of subscriptions}."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, bytes, bytes], int] = {}

    def set(self, where: str, subject: bytes, queue: bytes, count: int) -> None:
        self._counts[where, subject, queue] = count

    def reported(self, link: str) -> dict[tuple[bytes, bytes], int]:
        """What the link knows: weights of queue groups, 1 for other interest."""
        found: dict[tuple[bytes, bytes], int] = {}
        for (where, subject, queue), count in self._counts.items():
            if count and where in VISIBLE[link] and where != link:
                found[subject, queue] = found.get((subject, queue), 0) + count if queue else 1
        return found
