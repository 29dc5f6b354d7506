"""Wakes push consumers and snapshots when a subject gains or loses subscribers.

A push consumer without subscribers stops until one appears. One in use must notice when the last subscriber
leaves, because its inactive threshold counts from then. A snapshot waits for its receiver.

Invariants: each waiter waits for one kind of change at a time; the index calls only while a waiter exists for
that kind; the callbacks only mark work for the end of the tick, so a subscription that comes and goes within
one tick is no change.

Rejected: polling (a threshold of 100 ms took up to a second longer, and every consumer in use had a timer);
calling all waiters at each subscription (with ten thousand idle consumers each SUB called all of them).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.routing.filter_trie import FilterSet
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.sinks import SinkSubscription

WORK_MAX = 2**63  # no limit: a wildcard filter may match all waiters


class InterestWatch:
    """The waiters of one account."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self._index = index
        self._coming: FilterSet[object] = FilterSet()
        self._going: FilterSet[object] = FilterSet()
        self._waiting: dict[object, tuple[FilterSet[object], bytes, Callable[[], object]]] = {}

    def await_listener(self, waiter: object, subject: bytes, mark: Callable[[], object]) -> None:
        """Calls `mark` after each new subscription that matches the (literal) subject."""
        self._wait(waiter, self._coming, subject, mark)

    def await_silence(self, waiter: object, subject: bytes, mark: Callable[[], object]) -> None:
        """Calls `mark` after each removal of a subscription that matches the subject."""
        self._wait(waiter, self._going, subject, mark)

    def stop(self, waiter: object) -> None:
        """Removes the waiter."""
        before = self._waiting.pop(waiter, None)
        if before is not None:
            before[0].discard(before[1], waiter)
            self._attach()

    def _wait(
        self, waiter: object, filters: FilterSet[object], subject: bytes, mark: Callable[[], object]
    ) -> None:
        before = self._waiting.get(waiter)
        if before is not None:
            if before[0] is filters and before[1] == subject:
                return
            before[0].discard(before[1], waiter)
        filters.add(subject, waiter)
        self._waiting[waiter] = (filters, subject, mark)
        self._attach()

    def _attach(self) -> None:
        self._index.call_after(self._came if self._coming else None, self._went if self._going else None)

    def _came(self, subscription: SinkSubscription) -> None:
        self._mark(self._coming, subscription)

    def _went(self, subscription: SinkSubscription) -> None:
        self._mark(self._going, subscription)

    def _mark(self, filters: FilterSet[object], subscription: SinkSubscription) -> None:
        for waiter in filters.owners_overlapping(subscription.subject, work_max=WORK_MAX):
            self._waiting[waiter][2]()
