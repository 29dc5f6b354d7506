"""Receivers that read more slowly than the server writes: watching them, and slowing down who feeds them.

Within a tick, an out buffer that has grown above EAGER_BYTES is written at once: the receiver can work on
it while the rest of the tick's input is read (a loop that reads 4 MiB before it writes ran one to one at
half the rate).

A connection whose transport holds more than HIGH_WATER bytes is "backlogged" until it is down to LOW_WATER.
While it is, three things can happen:
- within `write_deadline` it doesn't take all that waited at the beginning of that time: closed as Slow
  Consumer (Write Deadline), or, with `retry` and if it took some of it, only counted, and given time again;
- it has more than `max_pending` waiting: closed as Slow Consumer (Pending Bytes), by the connection itself;
- it has more than `stall_bytes` waiting: it is "congested", and reading pauses on connections that publish to
  it, until it has drained, but for no longer than STALL_S per 64 KiB read. The bound keeps one dead
  receiver from stopping a publisher for good; what the receiver can't take then ends at max_pending.

Rejected: a deadline timer for each write, as the official server does with its blocking sockets. Most
writes are taken by the kernel at once, and one look a second at those that weren't costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.kernels.wire.budget import LoopBudget
from penstock.kernels.wire.ticks import TickTrigger

HIGH_WATER = 64 * 1024
LOW_WATER = 16 * 1024
STALL_S = 0.010
STALL_READ_BYTES = 64 * 1024
STALL_BYTES_MAX = 4 * 1024 * 1024
EAGER_BYTES = 512 * 1024
LOOKS_PER_DEADLINE = 10


class Backlogged(Protocol):
    """What the watch needs of a connection."""

    def bytes_taken(self) -> int:
        """Bytes the socket has taken since the connection began."""

    def pending_bytes(self) -> int:
        """Bytes that wait for the receiver."""

    def close_slow(self) -> None:
        """Closes it: its write deadline has passed."""

    def count_slow(self) -> None:
        """Its write deadline has passed, but it took something and stays."""


class Attempt(NamedTuple):
    """To write what waited at a time: the official server's flush, which has one deadline."""

    taken: int  # bytes taken when it began
    goal: int  # and when it is done
    since_s: float


class Bounds(NamedTuple):
    """How much may wait for a receiver, and for how long."""

    max_pending: int
    """Bytes that may wait for one connection."""
    write_deadline_s: float
    """Seconds a backlogged connection has for what waits."""
    retry: bool = False
    """One that took some of it has as long again."""
    stall: bool = True
    """Whether publishers are slowed down at all."""


class BacklogWatch:
    """Watches the backlogged connections of one listener.

    Args:
        loop: the event loop.
        bounds: until set_bounds() says others.
        flush_all: writes all out buffers that hold something; True when one of their receivers is congested.
        trigger: of the tick that reads of these connections may end; None = they end none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bounds: Bounds,
        *,
        flush_all: Callable[[], bool],
        trigger: TickTrigger | None = None,
    ) -> None:
        self._loop = loop
        self._attempts: dict[Backlogged, Attempt] = {}
        self._stalled: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._look_handle: asyncio.TimerHandle | None = None
        self.flush_all = flush_all
        self.trigger = trigger
        self.budget = trigger.budget if trigger is not None else LoopBudget(loop.call_soon)
        self.stalls = 0
        self.set_bounds(bounds)

    def begin(self, connection: Backlogged) -> None:
        """The connection has become backlogged."""
        self._begin_attempt(connection)
        if self._look_handle is None:
            self._schedule_look()

    def end(self, connection: Backlogged) -> None:
        """The connection has drained, or is gone: publishers go on."""
        self._attempts.pop(connection, None)
        for resume, handle in tuple(self._stalled.items()):
            handle.cancel()
            del self._stalled[resume]
            resume()

    def stall(self, resume: Callable[[], None], read_bytes: int) -> None:
        """A publisher has stopped reading; `resume` is called once receivers drained, or its time is over."""
        self.stalls += 1
        limit_s = STALL_S * max(1.0, read_bytes / STALL_READ_BYTES)
        self._stalled[resume] = self._loop.call_later(limit_s, self._stall_over, resume)

    def forget(self, resume: Callable[[], None]) -> None:
        """The stalled publisher is gone."""
        handle = self._stalled.pop(resume, None)
        if handle is not None:
            handle.cancel()

    def set_bounds(self, bounds: Bounds) -> None:
        """For connections that come from now on, and for those that are behind."""
        self.max_pending, self._deadline_s, self._retry, stall = bounds
        self.eager_bytes = min(self.max_pending // 4, EAGER_BYTES)
        self.stall_bytes = min(self.max_pending // 2, STALL_BYTES_MAX) if stall else self.max_pending
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._schedule_look()

    def close(self) -> None:
        """Stops all timers."""
        self._attempts.clear()
        for handle in self._stalled.values():
            handle.cancel()
        self._stalled.clear()
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None

    def look(self) -> None:
        """Closes, or counts, the backlogged connections whose write deadline has passed."""
        now = self._loop.time()
        for connection, attempt in tuple(self._attempts.items()):
            taken = connection.bytes_taken()
            if taken >= attempt.goal:
                self._begin_attempt(connection)
            elif now - attempt.since_s >= self._deadline_s:
                if self._retry and taken > attempt.taken:
                    connection.count_slow()
                    self._begin_attempt(connection)
                else:
                    del self._attempts[connection]
                    connection.close_slow()

    def _begin_attempt(self, connection: Backlogged) -> None:
        taken = connection.bytes_taken()
        goal = taken + connection.pending_bytes()
        self._attempts[connection] = Attempt(taken, goal, self._loop.time())

    def _schedule_look(self) -> None:
        self._look_handle = self._loop.call_later(self._deadline_s / LOOKS_PER_DEADLINE, self._on_look)

    def _on_look(self) -> None:
        self._look_handle = None
        self.look()
        if self._attempts:
            self._schedule_look()

    def _stall_over(self, resume: Callable[[], None]) -> None:
        del self._stalled[resume]
        resume()
