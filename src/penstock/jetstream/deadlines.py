"""When which stream or consumer wants to be woken: a heap whose stale entries are skipped.

Invariant: every thing has at most one valid entry, the one its key in `_due` says. Rejected: asking every
stream and consumer each tick (a thousand idle consumers would cost more than the traffic).
"""

from __future__ import annotations

import heapq
import itertools
import sys
from typing import Generic, TypeVar

T = TypeVar("T")


def earliest(*deadlines: int | None) -> int | None:
    """The first of them; None when there is none. (Asked for several times each tick.)"""
    first = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first


class Deadlines(Generic[T]):
    """Deadlines in ns, one a thing; things are told apart by identity."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[int, T]] = {}
        self._heap: list[tuple[int, int, int]] = []  # (deadline, order, id of the thing)
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    def set(self, thing: T, deadline: int | None) -> None:
        """The thing's only deadline from now on; None: it has none."""
        key = id(thing)
        present = self._due.get(key)
        if deadline is None:
            if present is not None:
                del self._due[key]
            return
        if present is not None and present[0] == deadline:
            return
        self._due[key] = (deadline, thing)
        heapq.heappush(self._heap, (deadline, next(self._order), key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._due):
            self._heap = [(due, next(self._order), key) for key, (due, _) in self._due.items()]
            heapq.heapify(self._heap)

    def deadline_of(self, thing: T) -> int | None:
        """The thing's deadline, or None."""
        present = self._due.get(id(thing))
        return present[0] if present is not None else None

    def earliest(self) -> int | None:
        """The next deadline of all, or None."""
        heap = self._heap
        while heap:
            deadline, _, key = heap[0]
            present = self._due.get(key)
            if present is not None and present[0] == deadline:
                return deadline
            heapq.heappop(heap)
        return None

    def take_due(self, now: int, most: int = sys.maxsize) -> list[T]:
        """Things whose deadline has come, in the order of their deadlines, at most so many; each loses its
        deadline."""
        things: list[T] = []
        while len(things) < most and (deadline := self.earliest()) is not None and deadline <= now:
            _, _, key = heapq.heappop(self._heap)
            things.append(self._due.pop(key)[1])
        return things
