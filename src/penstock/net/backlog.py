"""Back pressure for slow receivers: write deadlines, and pausing the connections that publish to them.

Within a tick, an out buffer that exceeds EAGER_BYTES is written at once, so that the receiver can process it
while the server reads on. (Reading 4 MiB before the first write halved the throughput of one publisher with
one subscriber.)

A connection is "backlogged" from the time its transport holds more than HIGH_WATER bytes until that is down
to LOW_WATER. Meanwhile:
- If it does not take within `write_deadline` everything that was pending when that time began, it is closed
  as Slow Consumer (Write Deadline). With `retry`, a connection that took some of it is only counted, and a
  new deadline begins.
- If more than `max_pending` bytes are pending, the connection closes itself as Slow Consumer (Pending Bytes).
- If more than `stall_bytes` are pending, it is "congested": connections that publish to it stop reading
  until it has drained, but for at most STALL_S per 64 KiB read. The limit keeps one dead receiver from
  stopping a publisher for good; its backlog then grows up to max_pending.

Invariants: while a connection is backlogged, a check is scheduled; while a publisher is paused, its end is.
The timers therefore call through `faults.contain`, and what failed is tried again.

Rejected: a deadline timer per write, as in the official server with its blocking sockets. Most sockets take
a write at once; checking the remaining connections a few times per deadline costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock import faults
from penstock.kernels.wire.ticks import LoopBudget, TickTrigger

HIGH_WATER = 64 * 1024
LOW_WATER = 16 * 1024
STALL_S = 0.010
STALL_READ_BYTES = 64 * 1024
STALL_BYTES_MAX = 4 * 1024 * 1024
EAGER_BYTES = 512 * 1024
CHECKS_PER_DEADLINE = 10
RESUME_AGAIN_S = 1.0  # after a fault


class Backlogged(Protocol):
    """What the watch needs from a connection."""

    def bytes_taken(self) -> int:
        """Bytes that the socket has taken since the connection began."""

    def pending_bytes(self) -> int:
        """Bytes that are not yet written to the socket."""

    def close_slow(self) -> None:
        """Closes the connection because its write deadline has passed."""

    def count_slow(self) -> None:
        """Counts a missed write deadline of a connection that made progress and stays open."""


class Attempt(NamedTuple):
    """A flush with one deadline, as in the official server: all bytes pending at its start."""

    taken: int  # bytes taken at its start
    goal: int  # bytes taken at which it is complete
    since_s: float


class Bounds(NamedTuple):
    """Limits on what may be pending for a receiver, and for how long."""

    max_pending: int
    """Maximum pending bytes of one connection."""
    write_deadline_s: float
    """Seconds in which a backlogged connection must take what is pending."""
    retry: bool = False
    """Whether a connection that made progress gets a new deadline instead of being closed."""
    stall: bool = True
    """Whether publishers to a congested connection are paused."""


class BacklogWatch:
    """Watches the backlogged connections of one listener.

    Args:
        loop: the event loop.
        bounds: initial limits; see set_bounds().
        flush_all: writes all out buffers with pending data; returns True when a receiver is congested.
        trigger: ends the tick from within reads of these connections; None = they never end it.
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
        self._check_handle: asyncio.TimerHandle | None = None
        self.flush_all = flush_all
        self.trigger = trigger
        self.budget = trigger.budget if trigger is not None else LoopBudget(loop.call_soon)
        self.stalls = 0
        self.set_bounds(bounds)

    def begin(self, connection: Backlogged) -> None:
        """The connection became backlogged."""
        self._begin_attempt(connection)
        if self._check_handle is None:
            self._schedule_check()

    def end(self, connection: Backlogged) -> None:
        """The connection has drained or closed. All paused publishers resume; those to another congested
        receiver pause again at their next publish to it."""
        self._attempts.pop(connection, None)
        for resume, handle in tuple(self._stalled.items()):
            handle.cancel()
            faults.contain(self._stall_over, self._stall_failed, resume)

    def stall(self, resume: Callable[[], None], read_bytes: int) -> None:
        """A publisher paused reading. Calls `resume` when receivers have drained, or after its time limit."""
        self.stalls += 1
        limit_s = STALL_S * max(1.0, read_bytes / STALL_READ_BYTES)
        self._limit_stall(resume, limit_s)

    def _limit_stall(self, resume: Callable[[], None], limit_s: float) -> None:
        self._stalled[resume] = self._loop.call_later(
            limit_s, faults.contain, self._stall_over, self._stall_failed, resume
        )

    def forget(self, resume: Callable[[], None]) -> None:
        """A paused publisher has closed."""
        handle = self._stalled.pop(resume, None)
        if handle is not None:
            handle.cancel()

    def set_bounds(self, bounds: Bounds) -> None:
        """Changes the limits, for backlogged connections as well."""
        self.max_pending, self._deadline_s, self._retry, stall = bounds
        self.eager_bytes = min(self.max_pending // 4, EAGER_BYTES)
        self.stall_bytes = min(self.max_pending // 2, STALL_BYTES_MAX) if stall else self.max_pending
        if self._check_handle is not None:
            self._check_handle.cancel()
            self._schedule_check()

    def close(self) -> None:
        """Stops all timers."""
        self._attempts.clear()
        for handle in self._stalled.values():
            handle.cancel()
        self._stalled.clear()
        if self._check_handle is not None:
            self._check_handle.cancel()
            self._check_handle = None

    def check_deadlines(self) -> None:
        """Closes or counts the backlogged connections whose write deadline has passed."""
        for connection in tuple(self._attempts):
            faults.contain(self._check_deadline, self._check_failed, connection)

    def _check_deadline(self, connection: Backlogged) -> None:
        attempt = self._attempts.get(connection)
        if attempt is None:
            return  # closing another one ended this one too
        taken = connection.bytes_taken()
        if taken >= attempt.goal:
            self._begin_attempt(connection)
        elif self._loop.time() - attempt.since_s >= self._deadline_s:
            if self._retry and taken > attempt.taken:
                connection.count_slow()
                self._begin_attempt(connection)
            else:
                connection.close_slow()
                self._attempts.pop(connection, None)  # last: if closing raised, the next check repeats it

    def _check_failed(self, error: Exception, connection: Backlogged) -> None:
        faults.note("check of a write deadline", error)

    def _begin_attempt(self, connection: Backlogged) -> None:
        taken = connection.bytes_taken()
        goal = taken + connection.pending_bytes()
        self._attempts[connection] = Attempt(taken, goal, self._loop.time())

    def _schedule_check(self) -> None:
        delay_s = self._deadline_s / CHECKS_PER_DEADLINE
        self._check_handle = self._loop.call_later(
            delay_s, faults.contain, self._on_check, self._checks_failed
        )

    def _on_check(self) -> None:
        self._check_handle = None
        self.check_deadlines()
        if self._attempts:
            self._schedule_check()

    def _checks_failed(self, error: Exception) -> None:
        faults.note("check of write deadlines", error)
        self._schedule_check()

    def _stall_over(self, resume: Callable[[], None]) -> None:
        self._stalled.pop(resume, None)  # first: it may pause again
        resume()

    def _stall_failed(self, error: Exception, resume: Callable[[], None]) -> None:
        faults.note("end of a publisher's pause", error)
        self.forget(resume)
        self._limit_stall(resume, RESUME_AGAIN_S)
