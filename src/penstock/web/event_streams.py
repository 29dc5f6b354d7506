"""Live views: server-sent events with a slice every few seconds.

A stream of events ends after STREAM_S, below the time limit of an answer on the monitoring port, and the
browser opens the next one. So the session is checked again, and a reader that takes nothing holds a
connection for half a minute at most. A slow reader gets fewer slices, never a queue of them: the next one is
made when the last one was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from penstock.web.web_ports import Slice

STREAM_S = 25.0
EVERY_S = 2.0
EVERY_MIN_S = 1.0
STREAMS_MAX = 48
USER_STREAMS_MAX = 12
RECONNECT_MS = 300
RETRY_MS = 10_000
"""Pause before the next attempt where there are STREAMS_MAX, or USER_STREAMS_MAX of this user."""


class EventStreams:
    """The open live views of all users. closing: ends all of them."""

    def __init__(self, closing: asyncio.Event) -> None:
        self._closing = closing
        self._open: dict[object, int] = {}  # by owner

    def __len__(self) -> int:
        return sum(self._open.values())

    def _has_room(self, owner: object) -> bool:
        return len(self) < STREAMS_MAX and self._open.get(owner, 0) < USER_STREAMS_MAX

    def _leave(self, owner: object) -> None:
        left = self._open.pop(owner) - 1
        if left:
            self._open[owner] = left

    async def events(
        self, owner: object, make: Callable[[], Awaitable[tuple[str, Slice]]], every_s: float
    ) -> AsyncIterator[bytes]:
        """The bytes of one stream. make: the name of the next event, and its data."""
        if not self._has_room(owner):
            yield b"retry: %d\n\n" % RETRY_MS
            yield event("problem", {"error": "too many live views are open; close some tabs of this page"})
            return
        self._open[owner] = self._open.get(owner, 0) + 1
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + STREAM_S
        try:
            yield b"retry: %d\n\n" % RECONNECT_MS
            while loop.time() < ends_at and not self._closing.is_set():
                name, data = await make()
                yield event(name, data)
                if name == "gone":
                    return
                try:
                    async with asyncio.timeout(every_s):
                        await self._closing.wait()
                except TimeoutError:
                    pass
        finally:
            self._leave(owner)


def event(name: str, data: Slice) -> bytes:
    """One event. JSON has no newlines, so that the data is one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
