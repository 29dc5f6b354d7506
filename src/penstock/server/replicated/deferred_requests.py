"""Requests for the leader of a stream's group that come while none can answer: it hands over, or it was
elected and has yet to apply what earlier leaders committed.

They wait here, at most HOLD_NS, and are served by this server when it can, or passed on to the next leader.
Every server gets each request, so each change waits on one server: the one that leads, or led last. A member
that voted, and has not heard the new leader yet, keeps reads and passes them on: they may be answered twice.
It leaves changes alone for ELECTION_NS before it says that there is no leader.

A read that was begun and cannot be confirmed any more goes the same way (`Confirmation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.server.replicated.request_tickets import PassedRequest

HOLD_NS = 1_500_000_000
"""So long publishes and requests wait for the next leader."""
ELECTION_NS = 200_000_000
"""So long a group without a leader is taken to be about to have one: a hand-over takes less."""
DEFERRED_MAX = 10_000
"""Requests and acks of a stream that wait; more are dropped, and their clients ask again."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What waits until a read is confirmed. done: called then. lost: called when the leadership ended before,
    and what was read may be out of date."""

    done: Callable[[], object]
    lost: Callable[[], object]

    def __call__(self) -> object:
        return self.done()


class DeferredRequests:
    """See the module. clock: monotonic ns."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._waiting: list[tuple[PassedRequest, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: PassedRequest, left_ns: int = HOLD_NS) -> None:
        """Keeps a request for so long."""
        if len(self._waiting) < DEFERRED_MAX:
            self._waiting.append((request, self._clock() + min(left_ns, HOLD_NS)))

    def take(self) -> list[tuple[PassedRequest, int]]:
        """Removes and returns the requests that may still be answered, in their order, each with the time
        that it has left in ns."""
        now = self._clock()
        waiting, self._waiting = self._waiting, []
        return [(request, until - now) for request, until in waiting if until > now]

    def drop_expired(self) -> None:
        """Forgets what has waited too long."""
        now = self._clock()
        self._waiting = [one for one in self._waiting if one[1] > now]

    def clear(self) -> None:
        """Forgets all of them."""
        self._waiting.clear()
