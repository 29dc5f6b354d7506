"""Requests to the meta leader that wait until its state is confirmed to be current.

One question to the group is for all requests that came before it: a request waits for the one in progress,
and for its own. What is confirmed is served in turns, so that a flood of requests does not keep the loop of
the server. Those that read have a queue of their own, and each turn serves both.

Invariants: at most one question is in progress. Each request is served or lost, once, unless its queue
reaches its limit (jetstream/waiting.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock import faults
from penstock.jetstream.waiting import Queue, Request, WaitingRequests

TURN = 16  # requests of each queue: at most 3 ms together


class Confirmer(Protocol):
    """What asks the group."""

    def confirm(self, done: Callable[[], object], lost: Callable[[], object]) -> bool:
        """Calls `done` when the meta state is current, `lost` when this server cannot say so any more."""

    def later(self, delay_ns: int, call: Callable[[], object]) -> None:
        """Calls after a time."""


@dataclass(frozen=True, slots=True)
class _Unconfirmed:
    """A request that waits: what serves it, and what is called when the state is not confirmed."""

    serve: Request
    lost: Request

    def __call__(self) -> object:
        return self.serve()


class ConfirmedRequests:
    """Those of one account. waiting: the queues of the server. failed: called with what a request raised."""

    def __init__(
        self, confirmer: Confirmer, waiting: WaitingRequests, failed: Callable[[Exception], object]
    ) -> None:
        self._confirmer = confirmer
        self._waiting = waiting
        self._failed = failed
        self._is_asking = False
        self._ready: list[deque[_Unconfirmed]] = [deque() for _ in Queue]

    def add(self, serve: Request, lost: Request, queue: Queue) -> None:
        """Calls `serve` once the state is confirmed, or `lost` when this server cannot say so."""
        self._waiting.add((self, queue), _Unconfirmed(serve, lost), queue)
        self._ask()

    def _ask(self) -> None:
        if self._is_asking or any(self._ready):
            return
        asking = [self._taken(queue) for queue in Queue]
        if any(asking):
            self._is_asking = True
            self._confirmer.confirm(lambda: self._confirmed(asking), lambda: self._not_confirmed(asking))

    def _taken(self, queue: Queue) -> list[_Unconfirmed]:
        return [one for one in self._waiting.take((self, queue)) if isinstance(one, _Unconfirmed)]

    def _confirmed(self, asking: list[list[_Unconfirmed]]) -> None:
        self._is_asking = False
        for ready, requests in zip(self._ready, asking, strict=True):
            ready.extend(requests)
        self._serve()

    def _serve(self) -> None:
        for ready in self._ready:
            for _ in range(min(TURN, len(ready))):
                faults.contain(ready.popleft().serve, self._failed)
        if any(self._ready):
            self._confirmer.later(0, self._serve)
        else:
            self._ask()

    def _not_confirmed(self, asking: list[list[_Unconfirmed]]) -> None:
        self._is_asking = False
        for requests in asking:
            for request in requests:
                request.lost()
        self._ask()
