"""Deadlines of streams and consumers: a heap whose stale entries are skipped.

Invariant: every item has at most one valid entry, the one in `_due`. Rejected: polling every stream and
consumer each tick (a thousand idle consumers would cost more than the traffic).
"""

from __future__ import annotations

import heapq
import itertools
import sys
from typing import Generic, TypeVar

T = TypeVar("T")


def earliest(*deadlines: int | None) -> int | None:
    """The earliest deadline, or None without any. (Called several times per tick.)"""
    first = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first


class Deadlines(Generic[T]):
    """Deadlines in ns, one per item; items are compared by identity."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[int, T]] = {}
        self._heap: list[tuple[int, int, int]] = []  # (deadline, order, id of the thing)
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    def set(self, thing: T, deadline: int | None) -> None:
        """Sets the item's only deadline; None removes it."""
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
        """The item's deadline, or None."""
        present = self._due.get(id(thing))
        return present[0] if present is not None else None

    def earliest(self) -> int | None:
        """The earliest deadline of all items, or None."""
        heap = self._heap
        while heap:
            deadline, _, key = heap[0]
            present = self._due.get(key)
            if present is not None and present[0] == deadline:
                return deadline
            heapq.heappop(heap)
        return None

    def take_due(self, now: int, most: int = sys.maxsize) -> list[T]:
        """Removes and returns up to `most` items whose deadline has passed, in the order of their
        deadlines."""
        things: list[T] = []
        while len(things) < most and (deadline := self.earliest()) is not None and deadline <= now:
            _, _, key = heapq.heappop(self._heap)
            things.append(self._due.pop(key)[1])
        return things
