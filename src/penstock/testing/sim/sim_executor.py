"""The store's background work on two simulated threads: the seed decides what runs next, and when its result
is delivered.

A job runs without interruption, but may be killed in the middle. Rejected: threads that switch at each disk
operation (slow, and no other thread uses the same files meanwhile).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.errors import StoreError
from penstock.store.executor import Done, T, Work

THREADS = 2


class SimExecutor:
    """See store.executor.DiskExecutor. on_result: called when a result was delivered."""

    def __init__(self, on_result: Callable[[], None] = lambda: None) -> None:
        self.random = Random(1)
        self._on_result = on_result
        self._waiting: list[tuple[Work[Any], Done[Any], object]] = []
        # Completed work whose result is not delivered yet, with its owner.
        self._back: list[tuple[Callable[[], None], object]] = []

    @property
    def is_idle(self) -> bool:
        """Whether no work is queued or in flight."""
        return not self._waiting and not self._back

    def run(self, work: Work[T], done: Done[T], owner: object) -> None:
        self._waiting.append((work, done, owner))

    def work(self) -> None:
        """Runs one job; its result is delivered later."""
        if not self._waiting:
            return
        self._run(self.random.randrange(min(THREADS, len(self._waiting))))

    def _run(self, at: int) -> None:
        work, done, owner = self._waiting.pop(at)
        try:
            result = work()
        except (StoreError, OSError) as error:
            failure = error
            self._back.append((lambda: done(None, failure), owner))
        else:
            self._back.append((lambda: done(result, None), owner))

    def finish(self) -> None:
        """Delivers a result, between two ticks."""
        if not self._back:
            self.work()
        if self._back:
            self._deliver(self.random.randrange(len(self._back)))

    def _deliver(self, at: int) -> None:
        deliver, _ = self._back.pop(at)
        deliver()
        self._on_result()

    def complete_one(self, owner: object) -> bool:
        if not any(one[-1] is owner for one in self._back):
            queued = next((at for at, one in enumerate(self._waiting) if one[-1] is owner), None)
            if queued is None:
                return False
            self._run(queued)
        self._deliver(next(at for at, one in enumerate(self._back) if one[-1] is owner))
        return True

    def drain(self) -> None:
        """Completes everything, of all owners."""
        while not self.is_idle:
            self.finish()
