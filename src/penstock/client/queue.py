"""Queue of received messages between the connection and the user.

Invariants: FIFO; messages in an ended queue can still be read; every waiter wakes when a message arrives or
the queue ends. Rejected: asyncio.Queue, whose put and get cost more than parsing a message and which cannot
be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Generic, TypeVar

Message = TypeVar("Message")
Item = TypeVar("Item")


async def call_back_each(
    take: Callable[[], Awaitable[Message]],
    callback: Callable[[Message], object],
    report: Callable[[Exception, Message], None],
) -> None:
    """Call `callback` for each message, and await its result if it is awaitable.

    take: an iterator's `__anext__`; StopAsyncIteration ends the loop, other exceptions propagate. report:
    called with what a callback raises and its message; the loop continues.
    """
    while True:
        try:
            msg = await take()
        except StopAsyncIteration:
            return
        try:
            result = callback(msg)
            # isawaitable costs 0.3 us; most callbacks are coroutine functions.
            if type(result) is CoroutineType or inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - user code; on_error reports it
            report(error, msg)


class MessageQueue(Generic[Item]):
    """Base class for receivers of messages. It belongs to one event loop. Item: how it keeps a message."""

    __slots__ = ("_ended", "_error", "_exhausted", "_getters", "_items", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[Item] = deque()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._exhausted: asyncio.Future[None] | None = None

    def _wake(self) -> None:
        """Wake one waiter, after a message was appended."""
        getters = self._getters
        while getters:
            getter = getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def end(self, error: Exception | None = None) -> None:
        """End the queue. With an error, the reader gets it once the queue is empty.

        Internal: it does not unsubscribe on the server.
        """
        if not self._ended:
            self._ended = True
            self._error = error
            for getter in self._getters:
                if not getter.done():
                    getter.set_result(None)
            self._getters.clear()

    def exhausted(self) -> asyncio.Future[None]:
        """A future that is done when the queue has ended and the reader has asked for more after the last
        message, that is, has processed it."""
        if self._exhausted is None:
            self._exhausted = self._loop.create_future()
            self._note_exhausted()
        return self._exhausted

    def _note_exhausted(self) -> None:
        """Complete `exhausted()`, when a reader finds an ended queue empty."""
        future = self._exhausted
        if future is not None and self._ended and not self._items and not future.done():
            future.set_result(None)

    async def _wait(self) -> None:
        """Wait until there may be a message or the queue ended. Callers must check again."""
        getter = self._loop.create_future()
        self._getters.append(getter)
        try:
            await getter
        except asyncio.CancelledError:
            if getter.cancelled():
                with contextlib.suppress(ValueError):
                    self._getters.remove(getter)
            elif self._items:
                self._wake()  # woken and cancelled in the same tick: the wake-up goes to the next waiter
            raise
