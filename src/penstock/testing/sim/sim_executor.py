"""The store's work in the background, done by two threads that aren't there: what is worked on next, and when
its result comes back, is drawn from the seed.

A piece of work is done in one go, but may die in the middle like everything else. Rejected: threads that hand
over at each operation on the disk (slow, and what they share are files nobody else touches meanwhile).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.errors import StoreError
from penstock.store.executor import Done, T, Work

THREADS = 2


class SimExecutor:
    """See store.executor.DiskExecutor. told: called when a result came back."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.random = Random(1)
        self._told = told
        self._waiting: list[tuple[Work[Any], Done[Any]]] = []
        self._back: list[Callable[[], None]] = []  # the work is done, and nobody was told

    @property
    def is_idle(self) -> bool:
        """Is there nothing under way?"""
        return not self._waiting and not self._back

    def run(self, work: Work[T], done: Done[T]) -> None:
        self._waiting.append((work, done))

    def work(self) -> None:
        """One piece of work is done; its result comes back later."""
        if not self._waiting:
            return
        work, done = self._waiting.pop(self.random.randrange(min(THREADS, len(self._waiting))))
        try:
            result = work()
        except (StoreError, OSError) as error:
            failure = error
            self._back.append(lambda: done(None, failure))
        else:
            self._back.append(lambda: done(result, None))

    def finish(self) -> None:
        """A result comes back, between two ticks."""
        if not self._back:
            self.work()
        if self._back:
            self._back.pop(self.random.randrange(len(self._back)))()
            self._told()

    def drain(self) -> None:
        while not self.is_idle:
            self.finish()
