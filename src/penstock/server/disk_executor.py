"""Background disk work: two threads, with results delivered in the event loop.

Invariant: the loop's thread calls every `done` once, from the loop or within drain(). If `done` raises, it is
called once more with an error, so that its owner does not wait for ever.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from penstock import faults
from penstock.errors import StoreError
from penstock.store.executor import Done, T, Work

THREADS = 2
"""One thread may sync while the other compresses. More would contend for the disk and the interpreter
lock."""


class LoopExecutor:
    """Implements store.executor.DiskExecutor. The threads start with the first work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._waiting: dict[Future[Any], Done[Any]] = {}

    def run(self, work: Work[T], done: Done[T]) -> None:
        future = self._threads.submit(work)
        self._waiting[future] = done
        future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        # Take everything that is done: if a result was not delivered, the next one delivers it.
        for one in [one for one in self._waiting if one.done()]:
            done = self._waiting.pop(one, None)
            if done is not None:  # drain() has not delivered it yet
                faults.contain(_deliver, _delivery_failed, one, done)

    def drain(self) -> None:
        while self._waiting:
            future = next(iter(self._waiting))
            wait([future])
            self._finish()

    def close(self) -> None:
        """Completes pending work and ends the threads."""
        self.drain()
        self._threads.shutdown()


def _deliver(future: Future[Any], done: Done[Any]) -> None:
    error = future.exception()
    if error is None:
        done(future.result(), None)
    elif isinstance(error, (OSError, StoreError)):
        done(None, error)
    else:
        raise error


def _delivery_failed(error: Exception, future: Future[Any], done: Done[Any]) -> None:
    """The work or its `done` raised: reports it as a store error."""
    why = StoreError(faults.describe(faults.note("work in the background", error)))
    faults.contain(done, _lost, None, why)


def _lost(error: Exception, *_: object) -> None:
    faults.note("end of work in the background", error)
