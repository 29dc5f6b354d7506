"""The thread with the event loop on which the clients of `penstock.sync` run: one for the process.

Theory of operation: a call creates a coroutine, has the loop run it as a task, and blocks its thread until
the task has ended. The task runs with a copy of the caller's context, so that tracing sees the caller's span.
An interrupted call (Ctrl-C) cancels its task and waits a moment for its end.

Invariants: only the loop's thread changes the state of a client, except for publishes (`thread_session.py`);
a call from the loop's own thread raises instead of waiting for itself; a child process made by fork() has
copies of the sockets and of the loop, but no thread, so that it refuses every call and touches neither.

Rejected: a thread for each client (idle threads, and no more speed: the interpreter runs one thread at a
time), and `asyncio.run_coroutine_threadsafe`, whose future costs two more iterations of the loop for each
call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from penstock.errors import MisuseError

T = TypeVar("T")

# How long an interrupted call waits for the end of its task.
CANCEL_WAIT_S = 2.0
# How long the end of the process waits for the clients that were not closed, together.
EXIT_WAIT_S = 5.0


class LeftBehind(Protocol):
    """Something of a parent process that its child may not use."""

    def leave_to_parent(self) -> None:
        """Called in the child, after fork()."""


class _Call(Generic[T]):
    """A coroutine that runs on the loop while a thread waits for it."""

    __slots__ = ("_done", "_error", "_has_ended", "_result", "_task", "_work")

    def __init__(self, work: Awaitable[T]) -> None:
        self._work = work
        self._done = threading.Lock()  # held until the work is done; cheaper than an Event
        self._done.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    def start(self) -> None:
        """Start the task; on the loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._result = await self._work
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            self._error = error
        finally:
            self._has_ended = True
            self._done.release()

    def cancel(self) -> None:
        """Cancel the task; on the loop."""
        if self._task is not None:
            self._task.cancel()

    def wait(self, loop: asyncio.AbstractEventLoop) -> T:
        """Wait for the result in the calling thread."""
        try:
            self._done.acquire()
        except BaseException:  # KeyboardInterrupt, in the main thread
            if not self._has_ended:  # else this thread may have the lock itself
                loop.call_soon_threadsafe(self.cancel)
                self._done.acquire(timeout=CANCEL_WAIT_S)
            raise
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # its traceback refers to this frame
        return self._result  # type: ignore[return-value]  # T, as there is no error


class LoopThread:
    """An event loop in a thread of its own, started when constructed."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.sessions: WeakSet[LeftBehind] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_forked = False
        self._at_exit: dict[object, Callable[[], Awaitable[None]]] = {}
        self._thread = threading.Thread(target=self._run, name="penstock sync", daemon=True)
        self._thread.start()
        assert self._thread.ident is not None
        self.ident = self._thread.ident

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_usable(self) -> bool:
        """Whether this process has the thread; a child made by fork() has not."""
        return not self._is_forked

    def check(self) -> None:
        """Raise MisuseError where a call could never end."""
        if self._is_forked:
            raise MisuseError(
                "this client was connected before fork(), and belongs to the parent process: "
                "connect in the child"
            )
        if threading.get_ident() == self.ident:
            raise MisuseError(
                "a call of penstock.sync from its event loop's thread would wait for itself; functions that "
                "the loop calls (choose_server, reconnect_delay, sentinel, stats_handler, progress) can not "
                "use the client"
            )

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the loop and return its result, or raise what it raises."""
        try:
            self.check()
        except MisuseError:
            if asyncio.iscoroutine(work):
                work.close()
            raise
        call = _Call(work)
        self.loop.call_soon_threadsafe(call.start, context=copy_context())
        return call.wait(self.loop)

    def run_here(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the calling thread and return its result, or raise what it raises.

        It may await nothing but `request` and `pause` of ThreadSession, which block in any thread but the
        loop's.
        """
        try:
            self.check()
            work.send(None)
        except StopIteration as ended:
            result: T = ended.value
            return result
        finally:
            work.close()
        raise AssertionError(f"{work!r} waits for the event loop, and runs in another thread")

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop, in a task, and return its result."""

        async def run() -> T:
            return function()

        return self.run(run())

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop without waiting for it; no effect in a child process."""
        if not self._is_forked and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that nothing waits for; on the loop."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the end of the process ----------------------------------------------------------------

    def close_at_exit(self, key: object, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` at the end of the process, unless `forget` is called with the key before."""
        self._at_exit[key] = close

    def forget(self, key: object) -> None:
        """The opposite of `close_at_exit`."""
        self._at_exit.pop(key, None)

    def end(self) -> None:
        """Close what is open, so that what was published is sent, and end the thread."""
        if self._is_forked or not self._thread.is_alive():
            return
        closing = list(self._at_exit.values())
        self._at_exit.clear()

        async def close_all() -> None:
            async with asyncio.timeout(EXIT_WAIT_S):
                await asyncio.gather(*(close() for close in closing), return_exceptions=True)

        if closing:
            with contextlib.suppress(TimeoutError):  # the process ends anyway
                self.run(close_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(EXIT_WAIT_S)

    def mark_forked(self) -> None:
        """Refuse every call from now on: this is a child process."""
        self._is_forked = True
        for session in list(self.sessions):
            session.leave_to_parent()


_lock = threading.Lock()
_current: LoopThread | None = None
_of_parents: list[LoopThread] = []  # kept: closing their loops would change what the parent waits for


def loop_thread() -> LoopThread:
    """The process's loop thread, started by the first call."""
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
            atexit.register(_current.end)
        return _current


def _after_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()  # another thread may have held it
    if _current is not None:
        _current.mark_forked()
        _of_parents.append(_current)
        _current = None


os.register_at_fork(after_in_child=_after_fork)
