"""A server whose event loop tells how long it worked without serving others.

The server runs in a thread of its own, on asyncio's loop: between two calls of `select` no socket is read and
no timer fires, so the CPU time of the thread in between is what other clients wait for. CPU time, not time on
the clock: a busy machine must not look like a slow server.

Time can be moved on, for the loop's timers and the server's clock alike, so that what a request causes later
is seen at once.

Rejected: uvloop, which servers run on where it is installed. It has no place between two iterations to
measure at, and what is measured is our code, which is the same.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock import faults
from penstock.server.config.server_options import ServerOptions
from penstock.server.logging import logs
from penstock.server.server import Server

T = TypeVar("T")
START_S = 30.0
ANSWER_S = 60.0


class MeasuringSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]  # one of several classes
    """Notes the CPU time between two calls of `select`."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ns = 0
        self._since_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._since_ns:
            self.longest_ns = max(self.longest_ns, time.thread_time_ns() - self._since_ns)
        found = super().select(timeout)
        self._since_ns = time.thread_time_ns()
        return found


class ShiftedLoop(asyncio.SelectorEventLoop):
    """Its time can be moved on."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.shift_s = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return super().time() + self.shift_s


class ScannedServer:
    """A running server with these options, whose time is so many seconds ahead. What escaped to the loop, and
    faults that were contained, are kept.

    Raises what the start raises.
    """

    def __init__(self, options: ServerOptions, shift_s: float = 0.0) -> None:
        self.errors: list[str] = []
        self._selector = MeasuringSelector()
        self._loop = ShiftedLoop(self._selector)
        self._loop.shift_s = shift_s
        self._loop.set_exception_handler(self._on_escaped)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._options = options
        self._thread = threading.Thread(target=self._main, name="scanned-server", daemon=True)
        self._thread.start()
        if not self._started.wait(START_S):
            raise TimeoutError(f"the server did not start within {START_S} s")
        if self._failure is not None:
            raise self._failure

    # -- what was seen

    def take_longest_ms(self) -> float:
        """The longest time without a new iteration since this was asked last."""
        longest, self._selector.longest_ns = self._selector.longest_ns, 0
        return longest / 1e6

    def take_errors(self) -> list[str]:
        """What escaped since this was asked last."""
        errors, self.errors = self.errors, []
        return errors

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self.server.failed

    # -- time

    @property
    def shift_s(self) -> float:
        """How far its time was moved on."""
        return self._loop.shift_s

    def settle(self, seconds: float = 0.0) -> None:
        """Moves time on, and returns when all is done that was to do by then."""
        self.run(self._settle(seconds))

    async def _settle(self, seconds: float) -> None:
        self._loop.shift_s += seconds
        for _ in range(6):
            await asyncio.sleep(0)
        deadline = time.monotonic() + ANSWER_S
        while len(asyncio.all_tasks()) > 2 and time.monotonic() < deadline:  # the server's main task and this
            await asyncio.sleep(0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S)

    def call(self, work: Callable[[Server], T]) -> T:
        """The result of a function in the server's loop."""

        async def called() -> T:
            return work(self.server)

        return self.run(called())

    def stop(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop)
            self._thread.join(START_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the server did not stop within {START_S} s")

    # -- in the thread

    def _main(self) -> None:
        with faults.watch(self._on_fault), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001  # it is raised where the server was asked for
                self._failure = error
                self.errors.append(f"the server ended: {error!r}")
            finally:
                self._started.set()

    async def _serve(self) -> None:
        log = logs.Log(self._on_log, debug=True, trace=False)
        self.server = Server(
            options=self._options, log=log, clock=lambda: time.time_ns() + int(self._loop.shift_s * 1e9)
        )
        await self.server.start()
        self._started.set()
        await self.server.wait_stopped()

    def _on_escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(
            f"escaped to the loop: {context['message'][:200]}: {type(error).__name__}: {error}"[:600]
        )

    def _on_fault(self, where: str, error: BaseException) -> None:
        """It was contained, but our code should not have raised it."""
        self.errors.append(f"fault of {where}: {type(error).__name__}: {error}"[:600])

    def _on_log(self, label: str, text: str) -> None:
        if label == "FTL":
            self.errors.append(f"{label} {text}"[:600])
