"""Pings one client: measures its round trip time, and closes it when it neither answers nor sends anything.

An idle client is pinged after every interval. An active one is pinged once early, and then hourly, for its
round trip time only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import faults

if TYPE_CHECKING:
    from penstock.net.server_connection import ServerConnection
    from penstock.server.server_context import ServerContext

FIRST_PING_S = 2.0
FIRST_PING_ROUTE_S = 1.0
FIRST_PING_JITTER = 0.2
RTT_INTERVAL_NS = 3_600_000_000_000
"""Interval of pings to an active client, which measure its round trip time."""


class KeepAlive:
    """The pings of one connection.

    Args:
        context: options with the intervals; clock.
        connection: whether the client was active.
        ping: sends a PING.
        stale: closes the client, which has not answered `ping_max` pings.
        failed: called with an exception of the other two.
    """

    __slots__ = (
        "_activity_ns",
        "_connection",
        "_context",
        "_failed",
        "_last_ping_ns",
        "_ping",
        "_ping_sent_ns",
        "_pings_out",
        "_seen_ns",
        "_stale",
        "_started_ns",
        "_timer",
        "rtt_ns",
    )

    def __init__(
        self,
        context: ServerContext,
        connection: ServerConnection,
        *,
        ping: Callable[[], None],
        stale: Callable[[], None],
        failed: Callable[..., None],
    ) -> None:
        self._context = context
        self._connection = connection
        self._ping = ping
        self._stale = stale
        self._failed = failed
        self._started_ns = self._activity_ns = context.clock()
        self._seen_ns = 0  # `active_ns` of the connection for which `_activity_ns` is the time
        self.rtt_ns = 0
        self._ping_sent_ns = 0  # time of the unanswered PING
        self._last_ping_ns = 0
        self._pings_out = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _interval_s(self) -> float:
        return self._context.options.ping_interval_ns_of(self._connection.kind) / 1e9

    @property
    def last_activity_ns(self) -> int:
        """Time of the last CONNECT, message in or out, or change of a subscription, ns since 1970. PING and
        PONG do not count, as on the official server: an idle client sends them too."""
        seen = self._connection.active_ns
        if seen != self._seen_ns:  # converted once, so that the answer stays the same until the next activity
            self._seen_ns = seen
            self._activity_ns = self._context.clock() - max(0, time.monotonic_ns() - seen)
        return self._activity_ns

    def start(self) -> None:
        """Begins to wait for the first ping."""
        self._wake_in(self._interval_s)

    def connect_arrived(self) -> None:
        """CONNECT has arrived: estimates the round trip time, and pings soon for a measured one."""
        self.rtt_ns = max(1, self._context.clock() - self._started_ns)
        self._connection.note_active()
        first_s = min(
            FIRST_PING_ROUTE_S if self._connection.kind in ("route", "leaf", "gateway") else FIRST_PING_S,
            self._interval_s,
        )
        self._wake_in(first_s * (1 + FIRST_PING_JITTER * self._context.random()))

    def pong_arrived(self) -> bool:
        """A PONG has arrived. Returns whether it gave a round trip time."""
        self._pings_out = 0
        if not self._ping_sent_ns:
            return False
        self.rtt_ns = max(1, self._context.clock() - self._ping_sent_ns)
        self._ping_sent_ns = 0
        return True

    def stop(self) -> None:
        """Sends no more pings."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_in(self, delay_s: float) -> None:
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay_s, faults.contain, self._on_time, self._failed)

    def _on_time(self) -> None:
        now = self._context.clock()
        active = self._connection.take_activity()
        if active:
            self._pings_out = 0
        if self._pings_out >= self._context.options.ping_max_of(self._connection.kind):
            self._stale()
            return
        if not active or not self._last_ping_ns or now - self._last_ping_ns > RTT_INTERVAL_NS:
            self._pings_out += 1
            self._ping_sent_ns = self._last_ping_ns = now
            self._ping()
        self._wake_in(self._interval_s)
