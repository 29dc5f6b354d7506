"""The store's work in the background: two threads, whose results come back to the event loop.

Invariant: every `done` is called once, by the loop's thread: from the loop, or while it waits in drain().
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from penstock import faults
from penstock.errors import StoreError
from penstock.store.background import Done, T, Work

THREADS = 2
"""One may sync while the other compresses. More would only contend for the disk and the interpreter."""


class LoopBackground:
    """See store.background.Background. The threads start with the first work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._waiting: dict[Future[Any], Callable[[], None]] = {}

    def run(self, work: Work[T], done: Done[T]) -> None:
        future = self._threads.submit(work)

        def finish() -> None:
            error = future.exception()
            if error is None:
                done(future.result(), None)
            elif isinstance(error, (OSError, StoreError)):
                done(None, error)
            elif isinstance(error, Exception):
                # Who waits for it must not wait for ever: as if the disk had refused.
                done(None, StoreError(faults.told(faults.note("work in the background", error))))
            else:
                raise error

        self._waiting[future] = finish
        future.add_done_callback(self._come_back)

    def _come_back(self, future: Future[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, future)

    def _finish(self, future: Future[Any]) -> None:
        finish = self._waiting.pop(future, None)
        if finish is not None:  # drain() was not first
            faults.contain(finish, _finish_failed)

    def drain(self) -> None:
        while self._waiting:
            future = next(iter(self._waiting))
            wait([future])
            self._finish(future)

    def close(self) -> None:
        """Does what is left, and ends the threads."""
        self.drain()
        self._threads.shutdown()


def _finish_failed(error: Exception) -> None:
    faults.note("what follows from work in the background", error)
