"""One client socket: bytes in go straight to the frame parser's buffer, bytes out leave in one write a tick.

What arrives is the handler's business (the server's session); this is transport, backlog and closing.

Invariants: nothing is read once `close_reason` is set; what was in the out buffer when `close` was called is
still written, unless the receiver is slow. A plain socket is written to by the sink itself, as long as the
transport holds nothing and the socket takes all; what it doesn't take goes through the transport (`flush`),
and everything behind it too, until the transport is empty again.
Everybody has a turn: what a read brought is worked on for as long as the loop's budget allows; then reading
pauses, and the rest waits in the read buffer for the next turn of the loop (`kernels/wire/budget.pyx`). A
socket that closes meanwhile is closed for the handler when the rest has been worked on: it was sent before.

Works on uvloop and on asyncio's own loop.

Rejected: asyncio streams (a copy and a task per connection) and Protocol.data_received (a bytes object
per read).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Protocol, cast

from penstock import faults
from penstock.kernels.wire.dispatch import Ingress
from penstock.net.backlog import HIGH_WATER, LOW_WATER, BacklogWatch
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason

CLOSE_GRACE_S = 2.0


class Handler(Protocol):
    """What a connection tells its owner."""

    def connected(self) -> None:
        """The socket is open; the addresses are known."""

    def control(self, op: int) -> None:
        """The inlet stopped at a frame that is no publish: reads it, and goes on from there."""

    def fell_behind(self) -> None:
        """Its write deadline has passed; it took something and stays."""

    def closed(self, reason: CloseReason) -> None:
        """The socket is gone. Called once, and nothing is called after it."""


class ServerConnection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket.

    Args:
        inlet: its parser takes what arrives, its sink's out buffer holds what is to leave.
        watch: keeps an eye on it while it is backlogged.
        kind: its transport as monitoring calls it, "nats" or "websocket".
        forwarded_for: the address that the client's HTTP request claims, for log lines only; "" = none.
    """

    __slots__ = (
        "_backlogged",
        "_grace",
        "_handler",
        "_held",
        "_inlet",
        "_lost",
        "_out",
        "_plain_socket",
        "_sink",
        "_stalled",
        "_transport",
        "_turn_due",
        "_watch",
        "_written",
        "budget",
        "buffer_updated",
        "close_reason",
        "forwarded_for",
        "get_buffer",
        "kind",
        "peer",
        "stalls",
    )

    get_buffer: Callable[..., memoryview]
    buffer_updated: Callable[..., None]

    def __init__(
        self, ingress: Ingress, watch: BacklogWatch, *, kind: str = "nats", forwarded_for: str = ""
    ) -> None:
        ingress.sink.stall_threshold = watch.eager_bytes
        ingress.sink.pending_max = watch.max_pending
        self._inlet = ingress
        self._sink = ingress.sink
        self._out = ingress.sink.out
        self._watch = watch
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._backlogged = False
        self._stalled = False
        self._held = False
        self._turn_due = False
        self._lost: CloseReason | None = None  # the socket is gone, and why; the rest of what it sent waits
        self._grace: asyncio.TimerHandle | None = None
        self._written = 0
        ingress.on_fed_slow = self._on_fed_slow
        ingress.on_wait = self.wait_turn
        ingress.trigger = watch.trigger
        self.budget = watch.budget
        # The event loop calls the kernels: a read passes no Python code unless there is something to decide.
        self.get_buffer = ingress.parser.get_buffer
        self.buffer_updated = ingress.received
        self._plain_socket = -1
        self.stalls = 0
        self.close_reason: CloseReason | None = None
        self.kind = kind
        self.forwarded_for = forwarded_for
        self.peer: tuple[str, int] = ("", 0)

    def attach(self, handler: Handler) -> None:
        """Sets who is told. Before the socket is connected."""
        self._handler = handler
        self._inlet.on_control = handler.control

    def use(self, transport: asyncio.Transport) -> None:
        """Reads and writes through this transport from now on: what was between it and the socket is gone."""
        self._transport = transport
        self._go_straight_to_socket(transport)

    @property
    def active(self) -> bool:
        """Has something been read since this was set to False?"""
        return self._inlet.active

    @active.setter
    def active(self, value: bool) -> None:
        self._inlet.active = value

    @property
    def max_payload(self) -> int:
        """Bytes of the largest message that the client may send."""
        return self._inlet.parser.max_payload

    def tls(self) -> tuple[str, str]:
        """(version, cipher suite) of an encrypted connection; ("", "") of any other."""
        encrypted = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        if encrypted is None:
            return "", ""
        from penstock.net.tls import described

        return described(encrypted)

    def hold(self) -> None:
        """Reads nothing, and works on nothing that was read, until `release()`."""
        self._held = self._inlet.held = True
        self._pause()

    def release(self) -> None:
        """Goes on with what was read, and reads again."""
        self._held = self._inlet.held = False
        if not self._turn_due:
            self._work_on()

    def wait_turn(self) -> None:
        """This turn's part is over: what was read waits for a later one, and reading pauses until then."""
        self._pause()
        if not self._turn_due:
            self._turn_due = True
            self.budget.wait(self._on_turn, self._turn_failed)

    def finish(self) -> None:
        """Works through all that was read, for a server that is about to stop."""
        if self._held or self.close_reason is not None:
            return
        self._inlet.finish()
        if isinstance(self._transport, Layer):
            self._transport.finish()
            self._inlet.finish()

    def has_left(self) -> bool:
        """Has the client closed its side? While nothing is read, nothing else tells."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(select, "POLLRDHUP"):
            return self._transport is None
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def certificate(self) -> bytes:
        """The client's TLS certificate, DER; b"" when it showed none."""
        encrypted = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return (encrypted.getpeercert(binary_form=True) or b"") if encrypted is not None else b""

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = (peer[0], peer[1])
        self._go_straight_to_socket(self._transport)
        assert self._handler is not None
        self._handler.connected()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._backlogged = True
        self._watch.begin(self)

    def resume_writing(self) -> None:
        self._backlogged = False
        self._sink.stall_threshold = self._watch.eager_bytes
        self._watch.end(self)
        self._sink.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._backlogged:
            self.resume_writing()
        self._watch.forget(self._resume)
        self._stalled = False
        if self._grace is not None:
            self._grace.cancel()
        self._sink.socket = self._plain_socket = -1
        self._transport = None
        reason = CloseReason.CLIENT_CLOSED if exc is None else CloseReason.READ_ERROR
        if self.close_reason is None and self._inlet.waiting:
            self._lost = reason
            self.wait_turn()
        else:
            self._end(reason)

    # -- from the server

    def flush(self) -> bool:
        """Writes what the out buffer holds; True when the receiver is congested.

        Called at the end of a tick in which something was put there, and within one that puts much there.
        """
        transport = self._transport
        if transport is None:
            self._sink.take()
            return False
        if self._sink.overflowed:
            self.abort(CloseReason.SLOW_CONSUMER_PENDING)
        data = self._sink.take()
        if data and self.close_reason is None:
            self._written += len(data)
            transport.write(data)
        waiting = transport.get_write_buffer_size()
        # While the transport holds something, what comes goes behind it.
        self._sink.socket = -1 if waiting else self._plain_socket
        if self._backlogged:
            return self._is_congested(waiting)
        self._sink.drained()
        return False

    def pending_bytes(self) -> int:
        """Bytes that wait for the receiver."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self._out.size

    def bytes_taken(self) -> int:
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._written + self._sink.sent_bytes - waiting

    def close(self, reason: CloseReason) -> None:
        """Stops reading, writes what is in the out buffer, then closes. The first reason stands."""
        transport = self._transport
        if transport is None or self.close_reason is not None:
            self._give_up(reason)
            return
        data = self._sink.take()
        if data:
            transport.write(data)
        self._stop(transport, reason)
        transport.close()
        # A peer that doesn't read would keep the socket for ever.
        self._grace = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, transport.abort)

    def close_slow(self) -> None:
        """Closes a receiver whose write deadline has passed."""
        self.abort(CloseReason.SLOW_CONSUMER_DEADLINE)

    def count_slow(self) -> None:
        """Tells of a receiver whose write deadline has passed, and which stays."""
        if self._handler is not None:
            self._handler.fell_behind()

    def abort(self, reason: CloseReason) -> None:
        """Closes at once; what still waits is dropped."""
        transport = self._transport
        if transport is None or self.close_reason is not None:
            self._give_up(reason)
            return
        self._stop(transport, reason)
        transport.abort()

    def cut(self) -> None:
        """Drops the socket of a connection that is closing already, without waiting for its receiver."""
        if self._transport is not None:
            self._transport.abort()

    # -- own

    def _go_straight_to_socket(self, transport: asyncio.Transport) -> None:
        """From now on the kernel sends to the socket, unless there is a layer between."""
        sock = transport.get_extra_info("socket")
        if sock is not None and not isinstance(transport, Layer):
            self._plain_socket = sock.fileno()
            self._inlet.is_direct = True

    def _on_fed_slow(self) -> None:
        if self._watch.flush_all():
            self._stall()

    def _stop(self, transport: asyncio.Transport, reason: CloseReason) -> None:
        self.close_reason = reason
        self._sink.closed = True
        if not transport.is_closing():
            transport.pause_reading()

    def _is_congested(self, waiting: int) -> bool:
        """Judges the bytes that the socket hasn't taken; too many of them end the connection."""
        if waiting > self._watch.max_pending:
            self.abort(CloseReason.SLOW_CONSUMER_PENDING)
            return False
        congested = waiting > self._watch.stall_bytes
        # With 0, whoever delivers to this sink from now on is told so (Inlet.fed_slow).
        self._sink.stall_threshold = 0 if congested else self._watch.eager_bytes
        return congested

    def _stall(self) -> None:
        """This connection publishes to a congested one: it stops reading for a moment."""
        if self._stalled or self.close_reason is not None or self._transport is None:
            return
        self._stalled = True
        self.stalls += 1
        self._pause()
        self._watch.stall(self._resume, self._inlet.read_bytes)

    def _resume(self) -> None:
        self._stalled = False
        if not self._turn_due:
            self._work_on()

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _on_turn(self) -> None:
        self._turn_due = False
        self.budget.begin_part()  # of what waits here, and in the layers between
        try:
            self._work_on()
        finally:
            self.budget.end_part()

    def _turn_failed(self, error: Exception) -> None:
        """Like an exception within a read: it is logged, and the connection is gone. It would wait for ever
        otherwise, with its reading paused."""
        faults.note(f"work for the connection from {self.peer[0]}:{self.peer[1]}", error)
        self._turn_due = False
        if self._lost is not None:
            self._end(self._lost)
        else:
            self.abort(CloseReason.READ_ERROR)

    def _work_on(self) -> None:
        """Goes on with what was read, for as long as this turn's part allows, and then with reading."""
        if self._stalled or self._held:
            return
        self._inlet.go_on()
        if self._inlet.waiting or self._stalled or self._held:
            return
        if self._lost is not None:
            self._end(self._lost)
        elif self._transport is not None and self.close_reason is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _give_up(self, reason: CloseReason) -> None:
        """The socket is gone already: what it sent and still waits goes no further."""
        if self._lost is not None and self.close_reason is None:
            self.close_reason = reason
            self._sink.closed = True

    def _end(self, reason: CloseReason) -> None:
        """The socket is gone, and all that it sent was worked on."""
        if self.close_reason is None:
            self.close_reason = reason
        self._sink.closed = True
        self._sink.drained()
        assert self._handler is not None
        self._handler.closed(self.close_reason)
