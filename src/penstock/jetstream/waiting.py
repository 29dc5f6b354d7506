"""Queues of API requests of all accounts of a server, and their limits: `request_queue_limit`,
`info_queue_limit`.

A request is processed as it is read, unless a sync is in flight (`sync: always`): then it waits for that. As
on the official server, where requests wait in a queue for workers, a request that reaches the limit drops the
whole queue, itself included; dropped requests get no response, and an advisory has their number. Read-only
requests (infos, lists, names) have their own queue, so that a flood of them does not block others.

Invariant: requests of one engine leave the queue in their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum

LIMIT = 10_000

Request = Callable[[], object]


class Queue(Enum):
    """Request queues; the values are the official server's names."""

    API = "JetStream API queue"
    INFO = "JetStream API info queue"
    NONE = ""  # not counted


def _ignore(queue: Queue, dropped: int) -> None:
    return


class WaitingRequests:
    """dropped: called with a queue and the number of dropped requests."""

    def __init__(self, dropped: Callable[[Queue, int], None] = _ignore) -> None:
        self._dropped = dropped
        self._limits = {Queue.API: LIMIT, Queue.INFO: LIMIT}
        self._waiting: dict[Hashable, list[tuple[Queue, Request]]] = {}
        self._counts = dict.fromkeys(Queue, 0)

    def set_limits(self, limit: int, info_limit: int) -> None:
        """Sets the limits for further requests; 0 or less: the default, which for infos is the limit of the
        others."""
        self._limits[Queue.API] = limit if limit > 0 else LIMIT
        self._limits[Queue.INFO] = info_limit if info_limit > 0 else self._limits[Queue.API]

    def add(self, owner: Hashable, request: Request, queue: Queue) -> None:
        """Queues a request until its owner takes it, or drops the queue at its limit."""
        self._waiting.setdefault(owner, []).append((queue, request))
        self._counts[queue] += 1
        if queue is not Queue.NONE and self._counts[queue] >= self._limits[queue]:
            self._drop(queue)

    def take(self, owner: Hashable) -> list[Request]:
        """Removes and returns the waiting requests in order of arrival."""
        taken = self._waiting.get(owner, [])
        requests = [request for _, request in taken]
        for queue, _ in taken:
            self._counts[queue] -= 1
        self._waiting.pop(owner, None)  # last: an exception before leaves them waiting
        return requests

    def _drop(self, queue: Queue) -> None:
        for owner, waiting in self._waiting.items():
            self._waiting[owner] = [entry for entry in waiting if entry[0] is not queue]
        dropped, self._counts[queue] = self._counts[queue], 0
        self._dropped(queue, dropped)
