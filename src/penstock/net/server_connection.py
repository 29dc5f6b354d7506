"""One client socket: reads go into the frame parser's buffer, writes leave once a tick, or earlier when
much waits.

The handler (the server's session) interprets control frames. This module does transport, back pressure and
closing.

Invariants: the connection reads nothing once `close_reason` is set. `close` writes what is in the out buffer,
unless the receiver is slow. The sink writes to a plain socket directly while the transport's buffer is empty
and the socket takes everything. The remainder goes through the transport (`flush`), and so does all later
output until the transport's buffer is empty, which keeps the order.

Fairness: input is processed as long as the loop's time budget allows. Then reading pauses, and the remaining
input waits in the read buffer for a later iteration (`kernels/wire/ticks.pyx`). If the socket closes
meanwhile, the handler sees the close after all input: it was sent before.

Works on uvloop and on asyncio's event loop.

Rejected: asyncio streams (a copy and a task per connection) and Protocol.data_received (a bytes object per
read).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from penstock import faults
from penstock.kernels.wire.ingress import Ingress
from penstock.net.backlog import HIGH_WATER, LOW_WATER, BacklogWatch
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

CLOSE_GRACE_S = 2.0
UVLOOP_MODULE = "uvloop.loop"


class Handler(Protocol):
    """Callbacks of a connection."""

    def connected(self) -> None:
        """The socket is open and the addresses are known."""

    def control(self, op: int) -> None:
        """The ingress stopped at a control frame. The handler reads it and continues parsing."""

    def fell_behind(self) -> None:
        """The write deadline has passed; the receiver made progress and stays open."""

    def closed(self, reason: CloseReason) -> None:
        """The socket is closed. Called once, as the last callback."""


class ServerConnection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket.

    Args:
        ingress: its parser takes the input; the out buffer of its sink holds the output.
        watch: observes the connection while it is backlogged.
        handler: interprets control frames.
        kind: transport as named by monitoring, "nats" or "websocket".
        forwarded_for: client address claimed by the HTTP request, for log lines only; "" = none.
    """

    __slots__ = (
        "_backlogged",
        "_grace",
        "_handler",
        "_ingress",
        "_input_paused",
        "_lost",
        "_out",
        "_part_queued",
        "_plain_socket",
        "_sink",
        "_stalled",
        "_transport",
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

    get_buffer: Callable[..., Buffer]
    buffer_updated: Callable[..., None]

    def __init__(
        self,
        ingress: Ingress,
        watch: BacklogWatch,
        handler: Handler,
        *,
        kind: str = "nats",
        forwarded_for: str = "",
    ) -> None:
        ingress.sink.stall_threshold = watch.eager_bytes
        ingress.sink.pending_max = watch.max_pending
        self._ingress = ingress
        self._sink = ingress.sink
        self._out = ingress.sink.out
        self._watch = watch
        self._transport: asyncio.Transport | None = None
        self._handler = handler
        self._backlogged = False
        self._stalled = False
        self._input_paused = False
        self._part_queued = False
        self._lost: CloseReason | None = None  # reason of a closed socket whose input is not yet processed
        self._grace: asyncio.TimerHandle | None = None
        self._written = 0
        ingress.on_control = handler.control
        ingress.on_fed_slow = self._on_fed_slow
        ingress.on_wait = self.queue_part
        ingress.trigger = watch.trigger
        self.budget = watch.budget
        # The event loop calls the kernels directly: a read runs Python code only for control frames.
        self.get_buffer = ingress.parser.get_buffer
        self.buffer_updated = ingress.received
        self._plain_socket = -1
        self.stalls = 0
        self.close_reason: CloseReason | None = None
        self.kind = kind
        self.forwarded_for = forwarded_for
        self.peer: tuple[str, int] = ("", 0)

    def use(self, transport: asyncio.Transport) -> None:
        """Reads and writes through this transport from now on: a layer below it was removed or put there."""
        self._transport = transport
        self._leave_socket()
        self._go_straight_to_socket(transport)

    @property
    def transport(self) -> asyncio.Transport | None:
        """The socket's transport, or the layer on it; None = closed."""
        return self._transport

    def set_peer(self, peer: tuple[str, int]) -> None:
        """Sets the client's address, where the socket's is that of a proxy."""
        self.peer = peer

    def take_activity(self) -> bool:
        """Whether anything was read since the last call."""
        return self._ingress.take_activity()

    @property
    def active_ns(self) -> int:
        """Monotonic time of the client's last message, delivery or request; 0 = none yet."""
        return self._sink.active_ns

    def note_active(self) -> None:
        """Notes a request other than a message, as activity of the client."""
        self._sink.note_active()

    @property
    def max_payload(self) -> int:
        """Largest message that the client may send, bytes."""
        return self._ingress.parser.max_payload

    def tls(self) -> tuple[str, str]:
        """(version, cipher suite) of an encrypted connection; ("", "") of a plain one."""
        encrypted = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        if encrypted is None:
            return "", ""
        from penstock.net.tls import described

        return described(encrypted)

    def pause_input(self) -> None:
        """Stops reading and processing input until `resume_input()`."""
        self._input_paused = self._ingress.paused = True
        self._pause()

    def resume_input(self) -> None:
        """Continues with the input and reads again."""
        self._input_paused = self._ingress.paused = False
        if not self._part_queued:
            self._work_on()

    def queue_part(self) -> None:
        """Ends this connection's part: reading pauses, and input waits for a later iteration."""
        self._pause()
        if not self._part_queued:
            self._part_queued = True
            self.budget.wait(self._run_part, self._part_failed)

    def end_full_read(self) -> None:
        """Ends the part after a read that filled a layer's room: the loop would read the rest at once."""
        self._ingress.note_full_read()
        self.queue_part()

    def finish(self) -> None:
        """Processes all input that was read, before the server stops."""
        if self._input_paused or self.close_reason is not None:
            return
        self._ingress.finish()
        if isinstance(self._transport, Layer):
            self._transport.finish()
            self._ingress.finish()

    def has_left(self) -> bool:
        """Whether the client has closed its side. Needed while reading is paused."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(select, "POLLRDHUP"):
            return self._transport is None
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def certificate(self) -> bytes:
        """The client's TLS certificate, DER; b"" when there is none."""
        encrypted = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return (encrypted.getpeercert(binary_form=True) or b"") if encrypted is not None else b""

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        if type(transport).__module__ != UVLOOP_MODULE:  # which does so itself
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = (peer[0], peer[1])
        self._go_straight_to_socket(self._transport)
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
        self._leave_socket()
        self._transport = None
        reason = CloseReason.CLIENT_CLOSED if exc is None else CloseReason.READ_ERROR
        if self.close_reason is None and self._ingress.waiting:
            self._lost = reason
            self.queue_part()
        else:
            self._end(reason)

    # -- from the server

    def flush(self) -> bool:
        """Writes the out buffer; returns True when the receiver is congested.

        Called at the end of a tick with output, and within a tick when the buffer exceeds
        `BacklogWatch.eager_bytes`.
        """
        transport = self._transport
        if transport is None:
            self._sink.take()
            return False
        if self._sink.overflowed:
            self.abort(CloseReason.SLOW_CONSUMER_PENDING)
        data = self._sink.take()
        if data and self.close_reason is None:
            self._put(transport, data)
        waiting = transport.get_write_buffer_size()
        # While the transport holds data, later data must follow it: order.
        self._sink.socket = -1 if waiting else self._plain_socket
        if self._backlogged:
            return self._is_congested(waiting)
        self._sink.drained()
        return False

    def pending_bytes(self) -> int:
        """Bytes not yet taken by the socket."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self._out.size

    def bytes_taken(self) -> int:
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._written + self._sink.sent_bytes - waiting

    def close(self, reason: CloseReason) -> None:
        """Stops reading, writes the out buffer, then closes. The first reason given is kept."""
        transport = self._transport
        if transport is None or self.close_reason is not None:
            self._give_up(reason)
            return
        data = self._sink.take()
        if data:
            self._put(transport, data)
        self._stop(transport, reason)
        transport.close()
        # A peer that does not read would keep the socket open for ever.
        self._grace = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, transport.abort)

    def close_slow(self) -> None:
        """Closes a receiver whose write deadline has passed."""
        self.abort(CloseReason.SLOW_CONSUMER_DEADLINE)

    def count_slow(self) -> None:
        """Reports a receiver that missed its write deadline and stays open."""
        self._handler.fell_behind()

    def abort(self, reason: CloseReason) -> None:
        """Closes at once and drops pending output."""
        transport = self._transport
        if transport is None or self.close_reason is not None:
            self._give_up(reason)
            return
        self._stop(transport, reason)
        transport.abort()

    def cut(self) -> None:
        """Drops the socket of a closing connection without waiting for its receiver."""
        if self._transport is not None:
            self._transport.abort()

    # -- internal

    def _put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes output to the transport."""
        self._written += len(data)
        transport.write(data)

    def _go_straight_to_socket(self, transport: asyncio.Transport) -> None:
        """Lets the kernel send to the socket directly, unless there is a layer between."""
        sock = transport.get_extra_info("socket")
        if sock is not None and not isinstance(transport, Layer):
            self._plain_socket = self._ingress.socket = sock.fileno()
            self._ingress.is_direct = True
            if not transport.get_write_buffer_size():  # else `flush` begins, when nothing waits ahead
                self._sink.socket = self._plain_socket
            # Any object with a buffer suffices for uvloop; asyncio's loops need its length as well.
            if type(transport).__module__ == UVLOOP_MODULE and transport.get_protocol() is self:
                self.get_buffer = self._ingress.parser.room_to_read
                transport.set_protocol(self)  # uvloop keeps the methods that it found

    def _leave_socket(self) -> None:
        """Ends the direct use of the socket: it is closed, or its bytes are no longer those of the protocol.

        Both kernels must forget it. The ingress would otherwise give the parser compressed or encrypted bytes
        as soon as the connection is busy, and the sink would send ahead of what a layer has to encode.
        """
        self._sink.socket = self._ingress.socket = self._plain_socket = -1
        self._ingress.is_direct = False

    def _on_fed_slow(self) -> None:
        if self._watch.flush_all():
            self._stall()

    def _stop(self, transport: asyncio.Transport, reason: CloseReason) -> None:
        self.close_reason = reason
        self._sink.closed = True
        if not transport.is_closing():
            transport.pause_reading()

    def _is_congested(self, waiting: int) -> bool:
        """Whether `waiting` bytes make the receiver congested; closes it above max_pending."""
        if waiting > self._watch.max_pending:
            self.abort(CloseReason.SLOW_CONSUMER_PENDING)
            return False
        congested = waiting > self._watch.stall_bytes
        # With threshold 0, every later delivery to this sink reports it (Ingress.fed_slow).
        self._sink.stall_threshold = 0 if congested else self._watch.eager_bytes
        return congested

    def _stall(self) -> None:
        """Pauses reading, because this connection publishes to a congested one."""
        if self._stalled or self.close_reason is not None or self._transport is None:
            return
        self._stalled = True
        self.stalls += 1
        self._pause()
        self._watch.stall(self._resume, self._ingress.read_bytes)

    def _resume(self) -> None:
        self._stalled = False
        if not self._part_queued:
            self._work_on()

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _run_part(self) -> None:
        self._part_queued = False
        self.budget.begin_part()  # for input here and in the layers below
        try:
            self._work_on()
        finally:
            self.budget.end_part()

    def _part_failed(self, error: Exception) -> None:
        """Logs the fault and closes, as for an exception within a read. The connection would hang otherwise,
        with reading paused."""
        faults.note(f"work for the connection from {self.peer[0]}:{self.peer[1]}", error)
        self._part_queued = False
        if self._lost is not None:
            self._end(self._lost)
        else:
            self.abort(CloseReason.READ_ERROR)

    def _work_on(self) -> None:
        """Processes input within the time budget of its part, then resumes reading."""
        if self._stalled or self._input_paused:
            return
        self._ingress.go_on()
        if self._ingress.is_broken:
            self.abort(CloseReason.READ_ERROR)
            return
        if self._ingress.waiting or self._stalled or self._input_paused:
            return
        if self._lost is not None:
            self._end(self._lost)
        elif self._transport is not None and self.close_reason is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _give_up(self, reason: CloseReason) -> None:
        """Discards unprocessed input of a socket that is closed already."""
        if self._lost is not None and self.close_reason is None:
            self.close_reason = reason
            self._sink.closed = True

    def _end(self, reason: CloseReason) -> None:
        """Ends the connection after its socket closed and all input was processed."""
        if self.close_reason is None:
            self.close_reason = reason
        self._sink.closed = True
        self._sink.drained()
        self._ingress.parser.release()
        self._handler.closed(self.close_reason)
