"""Runs blocking disk work away from the thread that serves clients.

The store submits slow operations (syncs, rewritten blocks, snapshots) as a pair: `work` touches only files
and may run in any thread; `done` changes the store's state and runs in the thread that owns the store. Each
pair has an owner (any object), so that its owner can wait for it without waiting for the work of others.

Invariant: each `work` is followed by exactly one call of its `done`, which receives the result or the disk
error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.errors import StoreError

T = TypeVar("T")
Work = Callable[[], T]
Done = Callable[[T | None, StoreError | OSError | None], None]


class DiskExecutor(Protocol):
    """Runs submitted work, now or in another thread."""

    def run(self, work: Work[T], done: Done[T], owner: object) -> None:
        """Runs `work` now or later, then calls done(result, None) or done(None, error)."""

    def complete_one(self, owner: object) -> bool:
        """Waits until one work of this owner is done, and calls its `done`. Returns False when it has none.

        Never waits for the work of another owner: work that has not started runs in the calling thread.
        """


def drain(executor: DiskExecutor, owner: object) -> None:
    """Waits until all work of this owner is done and every `done` of it was called."""
    while executor.complete_one(owner):
        pass


class InlineExecutor:
    """Runs work at once in the calling thread: for tests, tools and single-threaded callers."""

    def run(self, work: Work[T], done: Done[T], owner: object = None) -> None:
        try:
            result = work()
        except (StoreError, OSError) as error:
            done(None, error)
        else:
            done(result, None)

    def complete_one(self, owner: object) -> bool:
        """Returns False: nothing is ever pending."""
        return False
