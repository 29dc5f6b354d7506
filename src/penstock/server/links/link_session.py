"""One connection to another server: what routes and leaf nodes have in common.

The link (`penstock.cluster`) decides; this object is its wire, and the handler of its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from penstock import faults
from penstock.kernels.wire.route_links import RouteIngress, RouteSink
from penstock.net.reasons import CloseReason
from penstock.net.route_connection import RouteConnection
from penstock.server.keep_alive import KeepAlive

if TYPE_CHECKING:
    from penstock.net.backlog import BacklogWatch
    from penstock.server.server_context import ServerContext

DROP_REPORT_S = 1.0


class Link(Protocol):
    """The link of a session."""

    @property
    def name(self) -> str:
        """Of the other server, "" = unknown."""

    def ping(self) -> None: ...
    def control(self, op: int) -> None: ...
    def closed(self, reason: CloseReason) -> None: ...
    def refuse(self, text: str, reason: CloseReason) -> None: ...


class LinkSession:
    """A connection to another server.

    Args:
        context: options, log and clock.
        cid: connection number.
        sink: the output half.
        ingress: the input half.
        watch: observes connections whose receivers are slow.
        kind: transport and protocol as named by options, "route" or "leaf".
        ended: called with the session when its connection is closed.
    """

    tag = ""
    """Before the connection number in log lines."""
    what = ""
    """The kind of link in log lines."""
    trace_kind = 0
    """The kind of link in message traces (ADR-41)."""
    link: Any

    def __init__(
        self,
        context: ServerContext,
        cid: int,
        sink: RouteSink,
        ingress: RouteIngress,
        watch: BacklogWatch,
        kind: str,
        ended: Callable[[Any, CloseReason], object],
    ) -> None:
        self.cid = cid
        self.context = context
        self._ended = ended
        self.started_ns = context.clock()
        self.sink = sink
        self.sink.report_drops(self._on_dropped)
        self.ingress = ingress
        self.connection = RouteConnection(self.ingress, watch, self, kind=kind)
        self.keep_alive = KeepAlive(
            context, self.connection, ping=self._ping, stale=self._on_stale, failed=self.fail
        )
        self.flush = self.connection.flush  # called at the end of a tick with output
        self._timer: asyncio.TimerHandle | None = None
        self._drop_timer: asyncio.TimerHandle | None = None
        self._dropped = 0  # messages that the log knows of

    @property
    def account(self) -> str | None:
        """The account of a link that carries one only, once it is known."""
        return None

    def may_take(self, subject: str) -> bool:
        """Whether the other server may send messages with this subject."""
        return True

    # -- from the connection

    def connected(self) -> None:
        faults.contain(self._connected, self.fail)

    def _connected(self) -> None:
        """The socket is open."""
        raise NotImplementedError

    def control(self, op: int) -> None:
        faults.contain(self.link.control, self.fail, op)

    def fell_behind(self) -> None:
        waiting = self.connection.pending_bytes()
        self.context.log.info(f"{self.name} - Slow Consumer: write deadline exceeded, {waiting} bytes wait")

    def closed(self, reason: CloseReason) -> None:
        self.keep_alive.stop()
        for timer in (self._timer, self._drop_timer):
            if timer is not None:
                timer.cancel()
        if self.sink.dropped_msgs > self._dropped:
            self._report_dropped()
        name = f' for "{self.link.name}"' if self.link.name else ""
        self.context.log.info(f"{self.name} - {self.what} connection closed{name}: {reason}")
        faults.contain(self.link.closed, self._end_failed, reason)
        faults.contain(self._ended, self._end_failed, self, reason)

    def fail(self, error: Exception, *_: object) -> None:
        """Contains an exception caused by this peer's input: closes this connection only."""
        faults.note(f"{self.what} {self.name}", error)
        self.connection.abort(CloseReason.INTERNAL_ERROR)

    def _end_failed(self, error: Exception, *_: object) -> None:
        faults.note(f"end of {self.what} {self.name}", error)

    # -- for the link

    @property
    def name(self) -> str:
        """Prefix of log lines."""
        host, port = self.peer
        return f"{host}:{port} - {self.tag}:{self.cid}"

    @property
    def peer(self) -> tuple[str, int]:
        return self.connection.peer

    def close(self, reason: CloseReason) -> None:
        self.keep_alive.stop()
        self.connection.close(reason)

    def compress(self, mode: str) -> None:
        self.connection.compress(mode)

    def change_level(self, mode: str) -> None:
        self.connection.change_level(mode)

    def hand_over(self) -> bool:
        """See `penstock.cluster.peer_link.Wire`: only routes do."""
        return False

    def registered(self) -> None:
        self._stop_timer()
        self.keep_alive.connect_arrived()

    def ponged(self) -> None:
        self.keep_alive.pong_arrived()

    # -- timers

    def _limit(self, seconds: float) -> None:
        """Sets the time limit of the current part of the handshake."""
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(
            seconds, faults.contain, self._on_timeout, self.fail
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        """The time limit has passed."""
        raise NotImplementedError

    def _ping(self) -> None:
        self.link.ping()

    def _on_stale(self) -> None:
        self.link.refuse("Stale Connection", CloseReason.STALE_CONNECTION)

    def _on_dropped(self) -> None:
        """The peer's backlog is full. The log gets a line a second at most, with the count."""
        if self._drop_timer is None:
            self._report_dropped()
            loop = asyncio.get_running_loop()
            self._drop_timer = loop.call_later(DROP_REPORT_S, self._on_drop_time)

    def _on_drop_time(self) -> None:
        self._drop_timer = None
        if self.sink.take_dropped()[0] > self._dropped:
            self._report_dropped()

    def _report_dropped(self) -> None:
        messages, size = self.sink.dropped_msgs, self.sink.dropped_bytes
        self._dropped = messages
        self.context.log.error(
            f"{self.name} - Slow Consumer: the {self.what.lower()} {self.link.name!r} is too slow; "
            f"{messages} messages ({size} bytes) dropped so far"
        )
