"""Runs blocking disk work away from the thread that serves clients.

The store submits slow operations (syncs, rewritten blocks, snapshots) as a pair: `work` touches only files
and may run in any thread; `done` changes the store's state and runs in the thread that owns the store.

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

    def run(self, work: Work[T], done: Done[T]) -> None:
        """Runs `work` now or later, then calls done(result, None) or done(None, error)."""

    def drain(self) -> None:
        """Waits until all submitted work is done and every `done` was called."""


class InlineExecutor:
    """Runs work at once in the calling thread: for tests, tools and single-threaded callers."""

    def run(self, work: Work[T], done: Done[T]) -> None:
        try:
            result = work()
        except (StoreError, OSError) as error:
            done(None, error)
        else:
            done(result, None)

    def drain(self) -> None:
        """No-op: nothing is ever pending."""
