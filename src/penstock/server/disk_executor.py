"""Background disk work: two threads, with results delivered in the event loop.

Invariant: the loop's thread calls every `done` once, from the loop or within complete_one(). If `done` or
what leads to it raises, `done` is called (once more) with an error, so that its owner does not wait for ever:
no later work may come that would deliver the lost result.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

from penstock import faults
from penstock.errors import StoreError
from penstock.store.executor import Done, T, Work

THREADS = 2
"""One thread may sync while the other compresses. More would contend for the disk and the interpreter
lock."""


class _Pending(NamedTuple):
    work: Work[Any]
    done: Done[Any]
    owner: object


class LoopExecutor:
    """Implements store.executor.DiskExecutor. The threads start with the first work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")
        self._waiting: dict[Future[Any], _Pending] = {}

    def run(self, work: Work[T], done: Done[T], owner: object) -> None:
        future = self._threads.submit(work)
        self._waiting[future] = _Pending(work, done, owner)
        future.add_done_callback(partial(faults.contain, self._on_done, self._result_lost))

    def _on_done(self, future: Future[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(faults.contain, self._finish, self._result_lost, future)

    def _finish(self, future: Future[Any]) -> None:
        pending = self._waiting.pop(future, None)
        if pending is not None:  # complete_one() has not delivered it yet
            faults.contain(_deliver, _delivery_failed, future, pending.done)

    def _result_lost(self, error: Exception, future: Future[Any]) -> None:
        """Delivery raised, in any thread. The loop delivers the error instead of the result."""
        self._loop.call_soon_threadsafe(faults.contain, self._fail, _lost, future, error)

    def _fail(self, future: Future[Any], error: Exception) -> None:
        pending = self._waiting.pop(future, None)
        if pending is not None:
            _delivery_failed(error, future, pending.done)

    def complete_one(self, owner: object) -> bool:
        future = next((one for one, pending in self._waiting.items() if pending.owner is owner), None)
        if future is None:
            return False
        self._complete(future)
        return True

    def _complete(self, future: Future[Any]) -> None:
        pending = self._waiting.pop(future)
        if future.cancel():
            # It waits for a thread, behind the work of others, which may sync for seconds.
            future = _run_here(pending.work)
        wait([future])
        faults.contain(_deliver, _delivery_failed, future, pending.done)

    def close(self) -> None:
        """Completes pending work and ends the threads."""
        while self._waiting:
            self._complete(next(iter(self._waiting)))
        self._threads.shutdown()


def _run_here(work: Work[Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 (_deliver() raises it again)
        future.set_exception(error)
    return future


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
