"""Push consumers and backups that stand still because nobody listens: a new subscription wakes them.

Invariant: the index calls only while somebody waits, so that subscriptions cost nothing where all consumers
are bound. What is called only marks work for the end of the tick.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.subjects import SubscriptionIndex


class InterestWatch:
    """Of one account."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self._index = index
        self._waiting: dict[object, Callable[[], object]] = {}

    def wait(self, waiter: object, mark: Callable[[], object]) -> None:
        """It waits for somebody to listen: `mark` is called after each new subscription."""
        self._waiting[waiter] = mark
        self._index.on_insert = self._look

    def stop(self, waiter: object) -> None:
        """It waits no more."""
        self._waiting.pop(waiter, None)
        if not self._waiting:
            self._index.on_insert = None

    def _look(self) -> None:
        for mark in self._waiting.values():
            mark()
