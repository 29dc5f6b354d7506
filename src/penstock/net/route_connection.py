"""The connection of a route or leaf node: bounded output, and compression of the byte stream.

A client that reads slowly is closed when its backlog is too large. A route is not: closing it would cost the
messages of all accounts, and the peer would be back with the same backlog. So only what the socket takes
leaves the out buffer while the transport is backlogged, and the sink, which then knows what is pending, drops
and counts messages above its bound. Pending at most: the bound in the out buffer, and as much in the
transport.

Compression begins at one point of the stream in each direction, within the handshake. Both directions are S2
streams: an identifier, then chunks. The identifier leaves with the first chunk: a server that decides to
decompress when it has parsed INFO takes what it read together with it as text. Compressed output goes through
the transport, because the sink can not send it itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import ProtocolError
from penstock.kernels.wire.route_links import RouteIngress
from penstock.net.backlog import BacklogWatch
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import Handler, ServerConnection
from penstock.protocol.s2_stream import IDENTIFIER, S2Reader, encode_chunks

READ_BYTES = 64 * 1024
BULK_READ_BYTES = 256 * 1024
"""For a protocol that took over, whose frames have up to megabytes."""
WEBSOCKET_MESSAGE_MAX = 64 * 1024 * 1024
PLAIN_MODE = "s2_uncompressed"


class RouteConnection(ServerConnection):
    """The protocol object of the socket of a route, leaf node or replication link.

    Arguments as for `ServerConnection`."""

    __slots__ = ("_has_begun", "_mode", "_read", "_reader", "_scratch", "wire_bytes")

    def __init__(
        self, ingress: RouteIngress, watch: BacklogWatch, handler: Handler, *, kind: str = "route"
    ) -> None:
        super().__init__(ingress, watch, handler, kind=kind)
        self._mode = ""  # of compression; "" = none
        self._has_begun = False  # the identifier of the compressed output is written
        self._reader: S2Reader | None = None
        self._read: Callable[[bytes | memoryview], object] | None = None  # in place of the parser
        self._scratch = bytearray()
        self.wire_bytes = 0  # written to the transport, compressed
        self.renew_bound()

    def renew_bound(self) -> None:
        """Applies the watch's limit on pending bytes: half for the out buffer, half for the transport."""
        self._sink.pending_max = max(1, self._watch.max_pending // 2)

    def flush(self) -> bool:
        transport = self._transport
        if transport is not None and self._sink.overflowed and self.close_reason is None:
            self.abort(CloseReason.SLOW_CONSUMER_PENDING)
        if transport is None or self.close_reason is not None or not self._backlogged:
            return super().flush()
        return self._note_congestion(transport.get_write_buffer_size() + self._out.size)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._out.size:
            self.flush()

    def compress(self, mode: str) -> None:
        """Writes what is in the out buffer in clear; everything else in both directions is compressed."""
        transport = self._transport
        if transport is None:
            return
        self.flush()
        self._mode, self._reader = mode, S2Reader()
        self._leave_socket()
        self._scratch = bytearray(READ_BYTES)
        self.get_buffer = self._get_scratch
        self.buffer_updated = self._decompress
        if not isinstance(transport, Layer) and not transport.is_closing():
            transport.set_protocol(self)  # uvloop keeps the methods that it found
        rest = self._ingress.parser.take_rest()
        if rest:
            self._read_chunks(rest)

    def hand_over(self, handler: Handler, read: Callable[[bytes | memoryview], object]) -> None:
        """Another protocol takes over, with its own handler: what is not parsed yet and all later input goes
        to `read`, whose argument is valid during the call only, and output comes by `send_bulk`. Also before
        the socket is open."""
        self._handler, self._read = handler, read
        self._leave_socket()
        self._scratch = bytearray(BULK_READ_BYTES)
        self.get_buffer = self._get_scratch
        self.buffer_updated = self._read_scratch
        transport = self._transport
        if transport is None:
            return
        self.flush()
        if not isinstance(transport, Layer) and not transport.is_closing():
            transport.set_protocol(self)  # as in compress()
        rest = self._ingress.parser.take_rest()
        if rest:
            read(rest)

    def send_bulk(self, data: bytes) -> None:
        """Writes bytes of the protocol that took over; nothing once the connection closes."""
        if self._transport is not None and self.close_reason is None:
            self._put_raw(self._transport, data)

    def _read_scratch(self, count: int) -> None:
        if self._read is not None and self.close_reason is None:
            self._read(memoryview(self._scratch)[:count])

    def change_level(self, mode: str) -> None:
        """Compresses output in this mode from now on."""
        self._mode = mode

    @property
    def max_payload(self) -> int:
        """Size limit of a compressed WebSocket message, bytes: other servers put many messages into one."""
        return WEBSOCKET_MESSAGE_MAX

    # -- internal

    def _go_straight_to_socket(self, transport: asyncio.Transport) -> None:
        if self._read is None:  # else handed over before the socket was open: the kernels must not read it
            super()._go_straight_to_socket(transport)

    def _is_congested(self, waiting: int) -> bool:
        return self._note_congestion(waiting)

    def _note_congestion(self, waiting: int) -> bool:
        congested = waiting > self._watch.stall_bytes
        self._sink.stall_threshold = 0 if congested else self._watch.eager_bytes
        return congested

    def _on_fed_slow(self) -> None:
        """Reading goes on: a client that reads slowly must not slow the messages of all others."""
        self._watch.flush_all()

    def _put(self, transport: asyncio.Transport, data: bytes) -> None:
        if self._mode:
            data = encode_chunks(data, compress=self._mode != PLAIN_MODE)
            if not self._has_begun:
                self._has_begun, data = True, IDENTIFIER + data
        self._put_raw(transport, data)

    def _put_raw(self, transport: asyncio.Transport, data: bytes) -> None:
        self._written += len(data)
        self.wire_bytes += len(data)
        transport.write(data)

    def _get_scratch(self, size_hint: int = -1) -> memoryview:
        return memoryview(self._scratch)

    def _decompress(self, count: int) -> None:
        self._read_chunks(bytes(memoryview(self._scratch)[:count]), is_new=True)

    def _read_chunks(self, data: bytes, *, is_new: bool = False) -> None:
        """Passes decompressed input to the parser. is_new: it comes from the socket, and is processed."""
        assert self._reader is not None
        parser = self._ingress.parser
        self._reader.feed(data)
        try:
            while self.close_reason is None and (plain := self._reader.read()) is not None:
                if not is_new:
                    parser.feed(plain)
                else:
                    self._pass_on(plain)
        except ProtocolError:
            self.abort(CloseReason.PROTOCOL_VIOLATION)

    def _pass_on(self, plain: bytes) -> None:
        """Gives the parser input in pieces: before registration it takes little at a time."""
        parser, at = self._ingress.parser, 0
        while at < len(plain) and self.close_reason is None:
            with parser.get_buffer(len(plain) - at) as room:
                count = min(len(room), len(plain) - at)
                room[:count] = plain[at : at + count]
            at += count
            self._ingress.received(count)
