"""Threads in which the callbacks of `penstock.sync` run, so that they may block and use the client.

Message callbacks and service handlers each run in a thread of their own for the duration of a call; threads
are reused and end when they are idle. Event callbacks of a client run one after the other in one thread, in
the order of the events.

Invariant: a thread takes a call only when it is idle, so a callback that blocks delays no other one.
Rejected: `ThreadPoolExecutor`: its threads are bounded in number, so that callbacks which wait for each other
could block for ever, and the end of the process would wait for a callback that does not return.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

log = logging.getLogger("penstock.client")

IDLE_S = 10.0

Work = tuple[Callable[..., Any], tuple[Any, ...], Context, "asyncio.Future[Any]"]


class CallbackThreads:
    """Runs each call in an idle thread, or in a new one. `run` belongs to one event loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)  # one for each thread that waits for a call

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread, in the current context, and return its result."""
        future = asyncio.get_running_loop().create_future()
        self._queue.put((function, arguments, copy_context(), future))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="penstock callback", daemon=True).start()
        return await future

    def _serve(self) -> None:
        while True:
            try:
                function, arguments, context, future = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                continue  # a call was given to this thread meanwhile
            result: Any = None
            raised: BaseException | None = None
            try:
                result = context.run(function, *arguments)
            except BaseException as error:  # noqa: BLE001 - the loop reports it
                raised = error
            self._idle.release()
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_complete, future, result, raised)
            del function, arguments, context, future, result, raised, loop  # the next call may be far away


def _complete(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled: the subscription or the client ended
    if error is None:
        future.set_result(result)
    else:
        # A future can not hold StopIteration.
        is_stop = isinstance(error, StopIteration)
        future.set_exception(RuntimeError(f"a callback raised {error!r}") if is_stop else error)


class EventThread:
    """Calls event callbacks one after the other, in a thread that starts with the first one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after the earlier ones; on the loop."""
        self._queue.put((function, arguments))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="penstock events", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            function, arguments = work
            try:
                function(*arguments)
            except Exception:
                log.exception("an event callback failed")
            del function, arguments, work

    def end(self, timeout_s: float) -> None:
        """End after the callbacks so far, and wait for them, except in a callback."""
        thread = self._thread
        self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
