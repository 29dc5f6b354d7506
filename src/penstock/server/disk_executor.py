"""The store's work in the background: two threads, whose results come back to the event loop.

Invariant: every `done` is called once, by the loop's thread: from the loop, or while it waits in drain().
When it raises it is called once more, with an error: who waits for it must not wait for ever.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from penstock import faults
from penstock.errors import StoreError
from penstock.store.executor import Done, T, Work

THREADS = 2
"""One may sync while the other compresses. More would only contend for the disk and the interpreter."""


class LoopExecutor:
    """See store.background.Background. The threads start with the first work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._waiting: dict[Future[Any], Done[Any]] = {}

    def run(self, work: Work[T], done: Done[T]) -> None:
        future = self._threads.submit(work)
        self._waiting[future] = done
        future.add_done_callback(self._come_back)

    def _come_back(self, future: Future[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        # All that is done: when one failed to come back, it comes with the next.
        for one in [one for one in self._waiting if one.done()]:
            done = self._waiting.pop(one, None)
            if done is not None:  # drain() was not first
                faults.contain(_tell, _telling_failed, one, done)

    def drain(self) -> None:
        while self._waiting:
            future = next(iter(self._waiting))
            wait([future])
            self._finish()

    def close(self) -> None:
        """Does what is left, and ends the threads."""
        self.drain()
        self._threads.shutdown()


def _tell(future: Future[Any], done: Done[Any]) -> None:
    error = future.exception()
    if error is None:
        done(future.result(), None)
    elif isinstance(error, (OSError, StoreError)):
        done(None, error)
    else:
        raise error


def _telling_failed(error: Exception, future: Future[Any], done: Done[Any]) -> None:
    """The work, or what follows from it, raised: it counts as refused by the disk."""
    why = StoreError(faults.describe(faults.note("work in the background", error)))
    faults.contain(done, _lost, None, why)


def _lost(error: Exception, *_: object) -> None:
    faults.note("end of work in the background", error)
