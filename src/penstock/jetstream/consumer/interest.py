"""Push consumers that stand still because nobody listens: a new subscription sets them going again.

Invariant: the index calls only while somebody waits, and a waiting consumer is marked at most once a
tick, so that subscriptions cost nothing where all consumers are bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.kernels.subjects import SubscriptionIndex

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer import Consumer


class InterestWatch:
    """Of one account."""

    def __init__(self, index: SubscriptionIndex) -> None:
        self._index = index
        self._waiting: dict[Consumer, None] = {}

    def wait(self, consumer: Consumer, waits: bool) -> None:
        """Does it wait for somebody to listen?"""
        if waits:
            self._waiting[consumer] = None
        else:
            self._waiting.pop(consumer, None)
        self._index.on_insert = self._look if self._waiting else None

    def _look(self) -> None:
        for consumer in self._waiting:
            consumer.acks.mark()
