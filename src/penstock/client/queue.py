"""The queue between the connection, which receives, and the user, who awaits.

Invariants: messages come out in the order they went in; ending the queue leaves what is in it to be read;
every waiter wakes when a message comes or the queue ends. Rejected: asyncio.Queue, whose put and get cost
more than parsing a message and which can not be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.message import RawMessage

Message = TypeVar("Message")


async def call_back_each(
    take: Callable[[], Awaitable[Message]],
    callback: Callable[[Message], object],
    report: Callable[[Exception, Message], None],
) -> None:
    """Takes message by message and calls back, awaiting what the callback returns if that can be awaited.

    take: an iterator's `__anext__`; its StopAsyncIteration ends this, what else it raises comes out. A
    callback that raises is reported with its message, and the next message goes on.
    """
    while True:
        try:
            msg = await take()
        except StopAsyncIteration:
            return
        try:
            result = callback(msg)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - whatever it raises, on_error is who must hear it
            report(error, msg)


class MessageQueue:
    """Base of everything that hands received messages out one by one. Owned by one event loop."""

    __slots__ = ("_ended", "_error", "_exhausted", "_getters", "_items", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._items: deque[RawMessage] = deque()
        self._getters: deque[asyncio.Future[None]] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._exhausted: asyncio.Future[None] | None = None

    def _wake(self) -> None:
        """Wakes one waiter; call it after a message was appended."""
        getters = self._getters
        while getters:
            getter = getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def end(self, error: Exception | None = None) -> None:
        """No message comes any more. With an error, the reader gets it when the queue is empty.

        For the client's own use: it does not tell the server.
        """
        if not self._ended:
            self._ended = True
            self._error = error
            for getter in self._getters:
                if not getter.done():
                    getter.set_result(None)
            self._getters.clear()

    def exhausted(self) -> asyncio.Future[None]:
        """Done once the queue has ended and was read to its end: iterators came back for more after the last
        message, so that they are done with it."""
        if self._exhausted is None:
            self._exhausted = self._loop.create_future()
            self._note_exhausted()
        return self._exhausted

    def _note_exhausted(self) -> None:
        """Call it when a reader finds an ended queue empty."""
        future = self._exhausted
        if future is not None and self._ended and not self._items and not future.done():
            future.set_result(None)

    async def _wait(self) -> None:
        """Returns when there may be a message or the queue ended; look again. Any number may wait."""
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
