"""Work that waits for the disk, away from the thread that serves.

The store hands over what may take long (syncs, rewritten blocks, snapshots) as `work`, which touches files
only, and `done`, which changes the store's state and is called by the thread that owns the store.

Invariant: a `done` is called once for each `work`, after it; errors of the disk come as its argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from penstock.errors import StoreError

T = TypeVar("T")
Work = Callable[[], T]
Done = Callable[[T | None, StoreError | OSError | None], None]


class DiskExecutor(Protocol):
    """Who does it."""

    def run(self, work: Work[T], done: Done[T]) -> None:
        """Does `work` now or later, then calls done(result, None) or done(None, error)."""

    def drain(self) -> None:
        """Returns when all that was handed over is done."""


class InlineExecutor:
    """Everything now: for tests, tools, and whoever has one thread."""

    def run(self, work: Work[T], done: Done[T]) -> None:
        try:
            result = work()
        except (StoreError, OSError) as error:
            done(None, error)
        else:
            done(result, None)

    def drain(self) -> None:
        """Nothing waits."""
