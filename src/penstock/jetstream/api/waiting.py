"""API requests that wait, of all accounts of a server, and how many may: `request_queue_limit`,
`info_queue_limit`.

A request is answered as it is read, unless a sync of the disk is under way (`sync: always`): then it waits
for that. As in the official server, where requests wait in a queue for workers, the one that makes them as
many as the limit is dropped together with all that wait; nobody gets an answer, an advisory says how many.
Requests that only ask (infos, lists, names) are counted apart, so that a flood of them stops no others.

Invariant: those of one engine come back in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.api.api_table import Endpoint

LIMIT = 10_000
INFO_VERBS = frozenset(
    ("INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO", "CONSUMER.NAMES", "CONSUMER.LIST", "CONSUMER.INFO")
)

Request = Callable[[], object]


class Queue(Enum):
    """Requests that are counted together; the values are the official server's names."""

    API = "JetStream API queue"
    INFO = "JetStream API info queue"
    NONE = ""  # not counted


def queue_of(endpoint: Endpoint | None) -> Queue:
    """Where requests to an endpoint wait, or to none. Pull requests and direct gets have limits of their
    own."""
    if endpoint is None or not endpoint.json_errors:
        return Queue.NONE
    return Queue.INFO if endpoint.verbs in INFO_VERBS else Queue.API


def _ignore(queue: Queue, dropped: int) -> None:
    return


class WaitingRequests:
    """dropped: told of which queue how many were dropped."""

    def __init__(self, dropped: Callable[[Queue, int], None] = _ignore) -> None:
        self._dropped = dropped
        self._limits = {Queue.API: LIMIT, Queue.INFO: LIMIT}
        self._waiting: dict[Hashable, list[tuple[Queue, Request]]] = {}
        self._counts = dict.fromkeys(Queue, 0)

    def set_limits(self, limit: int, info_limit: int) -> None:
        """From the next request on; 0 or less = the default, which for infos is what the others have."""
        self._limits[Queue.API] = limit if limit > 0 else LIMIT
        self._limits[Queue.INFO] = info_limit if info_limit > 0 else self._limits[Queue.API]

    def add(self, owner: Hashable, request: Request, queue: Queue) -> None:
        """The request waits until its owner takes it, unless there are too many."""
        self._waiting.setdefault(owner, []).append((queue, request))
        self._counts[queue] += 1
        if queue is not Queue.NONE and self._counts[queue] >= self._limits[queue]:
            self._drop(queue)

    def take(self, owner: Hashable) -> list[Request]:
        """What waits, in the order in which it came."""
        taken = self._waiting.get(owner, [])
        requests = [request for _, request in taken]
        for queue, _ in taken:
            self._counts[queue] -= 1
        self._waiting.pop(owner, None)  # last: what raises before leaves them waiting
        return requests

    def _drop(self, queue: Queue) -> None:
        for owner, waiting in self._waiting.items():
            self._waiting[owner] = [entry for entry in waiting if entry[0] is not queue]
        dropped, self._counts[queue] = self._counts[queue], 0
        self._dropped(queue, dropped)
