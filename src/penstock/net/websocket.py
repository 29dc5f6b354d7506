"""WebSocket (RFC 6455) between a socket and its connection.

A `WebsocketLayer` is the protocol of the socket and the transport of the connection. (`websocket_dial.py` has
the side that dials.) The parser of the protocol sees the payloads of all client frames as one byte stream,
wherever the client splits them. A kernel takes the payloads out of plain binary frames, which clients send
messages in; wsproto, a hundred times slower, has the handshake and all other frames. Output leaves in binary
messages of at most MESSAGE_BYTES, because some clients (aiohttp) refuse messages of a few MiB.

Phases: GREETING (reading the HTTP request) -> OPEN -> CLOSED. The connection is created after the handshake,
so that an incomplete handshake does not count as a client.

Invariants: the layer passes messages on as they arrive and never assembles them. It inflates compressed input
in pieces of INFLATE_BYTES, so that a few bytes cannot become gigabytes before limits apply.

Rejected: the `websockets` library. It owns the socket and needs a task per connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Request,
    TextMessage,
)
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import CloseReason as WireReason
from wsproto.frame_protocol import FrameDecoder, FrameProtocol, Opcode, RsvBits
from wsproto.utilities import RemoteProtocolError

from penstock.kernels.wire.websocket_frames import FrameReader
from penstock.net.layer import Layer
from penstock.net.reasons import CloseReason
from penstock.net.server_connection import ServerConnection

MESSAGE_BYTES = 64 * 1024
READ_BYTES = 256 * 1024
# Where others wait. Beside a flood of 128-byte publishes the median round trip of a bystander was 0.19 ms
# with 16 KiB, 0.17 with 8 KiB, 0.16 with 3 KiB; the flood's rate 4.4, 3.2 and 2.2 million messages a second.
CROWDED_READ_BYTES = 3 * 1024
INFLATE_BYTES = 4 * 1024
COMPRESS_THRESHOLD = 64  # bytes; as the official server
NO_MASKING = "Nats-No-Masking"
HEAD_END = re.compile(rb"\n\r?\n")
PORTS = {"http": 80, "https": 443}
CODES = {
    CloseReason.CLIENT_CLOSED: 1000,
    CloseReason.AUTHENTICATION_TIMEOUT: 1008,
    CloseReason.AUTHENTICATION_FAILURE: 1008,
    CloseReason.SLOW_CONSUMER_PENDING: 1008,
    CloseReason.SLOW_CONSUMER_DEADLINE: 1008,
    CloseReason.MAX_CONNECTIONS: 1008,
    CloseReason.MAX_SUBSCRIPTIONS: 1008,
    CloseReason.TLS_HANDSHAKE_FAILURE: 1015,
    CloseReason.PARSE_ERROR: 1002,
    CloseReason.PROTOCOL_VIOLATION: 1002,
    CloseReason.BAD_CLIENT_PROTOCOL: 1002,
    CloseReason.MAX_PAYLOAD: 1009,
    CloseReason.MAX_CONTROL_LINE: 1009,
    CloseReason.READ_ERROR: 1001,
    CloseReason.WRITE_ERROR: 1001,
    CloseReason.STALE_CONNECTION: 1001,
    CloseReason.SERVER_SHUTDOWN: 1001,
}
CODE_OTHER = 1011
CODE_TOO_BIG = 1009
_TEXTS = {400: b"Bad Request", 403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed"}
WebOrigin = tuple[str, str, int]  # scheme, host, port


@dataclass(frozen=True, slots=True)
class WebsocketPolicy:
    """Handshake rules of a listener.

    handshake_timeout_s: time limit of the handshake.
    compression: use permessage-deflate with clients that offer it.
    same_origin: the origin of a browser's page must be the host it connects to.
    allowed_origins: allowed origins of a browser's page; empty = all.
    encrypted: the listener has TLS.
    headers: additional headers of the response.
    refusal: with TLS, returns why a client certificate (DER, b"" = none) is refused; "" = accepted.
    """

    handshake_timeout_s: float = 2.0
    compression: bool = False
    same_origin: bool = False
    allowed_origins: frozenset[WebOrigin] = frozenset()
    encrypted: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    refusal: Callable[[bytes], str] | None = None


class Deflate(PerMessageDeflate):
    """permessage-deflate with limits: leaves small messages uncompressed (they would grow), and refuses input
    that inflates to more than `size_max()` bytes, as the official server does. Nine kilobytes can hold a
    million PINGs."""

    def __init__(self, size_max: Callable[[], int]) -> None:
        super().__init__(client_no_context_takeover=True, server_no_context_takeover=True)
        self._size_max = size_max
        self._is_control = False
        self._room: int | None = None  # bytes the message may still inflate to; None = not compressed

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> WireReason | RsvBits:
        self._is_control = opcode.iscontrol()
        if not self._is_control and opcode is not Opcode.CONTINUATION:
            self._room = self._size_max() if rsv.rsv1 else None
        return super().frame_inbound_header(proto, opcode, rsv, payload_length)

    def frame_inbound_payload_data(
        self, proto: FrameDecoder | FrameProtocol, data: bytes
    ) -> bytes | WireReason:
        plain = super().frame_inbound_payload_data(proto, data)
        if self._room is None or not isinstance(plain, bytes):
            return plain
        self._room -= len(plain)
        return plain if self._room >= 0 else WireReason.MESSAGE_TOO_BIG

    def frame_inbound_complete(
        self, proto: FrameDecoder | FrameProtocol, fin: bool
    ) -> bytes | WireReason | None:
        # wsproto would take the end of a control frame for the end of the fragmented message around it.
        return None if self._is_control else super().frame_inbound_complete(proto, fin)

    def frame_outbound(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, data: bytes, fin: bool
    ) -> tuple[RsvBits, bytes]:
        if fin and opcode is not Opcode.CONTINUATION and len(data) <= COMPRESS_THRESHOLD:
            return rsv, data
        return super().frame_outbound(proto, opcode, rsv, data, fin)


class HandshakeRefused(Exception):
    """A refused handshake: the HTTP status of the response and the reason for the log."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class WebSocketPhase(Enum):
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class WebsocketLayer(asyncio.BufferedProtocol, Layer):
    """WebSocket of one socket, either side.

    Args:
        ws: the protocol, in the role of this side.
        handshake_timeout_s: time limit of the handshake.
        scratch: read buffer; layers of one event loop may share it.
        log_error: called with error lines about the handshake.
    """

    def __init__(
        self,
        ws: WSConnection,
        handshake_timeout_s: float,
        scratch: bytearray,
        log_error: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._scratch = memoryview(scratch)
        self._offered = 0  # bytes of it for the next read
        self._handshake_timeout_s = handshake_timeout_s
        self._log_error = log_error
        self._ws = ws
        self._frames = FrameReader(masked=not ws.client)
        self._tail = b""  # the last bytes so far of the handshake, to find its end across reads
        self._phase = WebSocketPhase.GREETING
        self._connection: ServerConnection | None = None
        self._peer: tuple[Any, ...] = ("", 0)
        self._piece = INFLATE_BYTES
        self._unread = b""  # from `_start` on
        self._start = 0
        self._is_working = False
        self._has_frames = False  # wsproto may hold a complete frame
        self._lost: list[Exception | None] = []  # set when the socket closed before all input was processed

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._peer = self._raw.get_extra_info("peername") or ("", 0)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshake_timeout_s, self._on_timeout)

    def get_buffer(self, sizehint: int) -> memoryview:
        connection = self._connection
        is_crowded = connection is not None and connection.budget.crowded
        self._offered = min(len(self._scratch), CROWDED_READ_BYTES if is_crowded else READ_BYTES)
        return self._scratch[: self._offered]

    def buffer_updated(self, nbytes: int) -> None:
        self._unread, self._start = self._unread[self._start :] + self._scratch[:nbytes], 0
        self._work()
        if nbytes == self._offered and self._connection is not None and not self._is_over():
            self._connection.end_full_read()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if not self._is_over() and self._is_paused and (self._has_frames or self._start < len(self._unread)):
            self._lost.append(exc)  # input that came before the end is processed first
            return
        self._phase = WebSocketPhase.CLOSED
        if self._connection is not None:
            self._connection.connection_lost(exc)

    # -- from the connection

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._phase is not WebSocketPhase.OPEN or self._lost:
            return
        view = memoryview(data)
        for start in range(0, len(view), MESSAGE_BYTES):
            self._send(BytesMessage(data=bytes(view[start : start + MESSAGE_BYTES])))

    def close(self) -> None:
        if self._phase is WebSocketPhase.OPEN:
            reason = self._connection.close_reason if self._connection is not None else None
            code = CODES.get(reason, CODE_OTHER) if reason is not None else 1000
            self._send(CloseConnection(code=code, reason=str(reason or "")))
        self._phase = WebSocketPhase.CLOSED
        self._raw.close()
        if self._lost:
            asyncio.get_running_loop().call_soon(self._report_loss)

    def abort(self) -> None:
        self._phase = WebSocketPhase.CLOSED
        super().abort()
        if self._lost:
            asyncio.get_running_loop().call_soon(self._report_loss)

    # -- handshake

    def _greet(self, data: bytes) -> None:
        """Takes input of the handshake."""
        raise NotImplementedError

    def _begin(self, connection: ServerConnection) -> None:
        """The handshake is done."""
        self._phase = WebSocketPhase.OPEN
        self._connection = connection
        connection.connection_made(self)

    def _message_max(self) -> int:
        return self._connection.max_payload if self._connection is not None else 0

    def _on_timeout(self) -> None:
        self._timer = None
        self._log_error(f"{self._peer[0]}:{self._peer[1]} - websocket handshake error: timeout")
        self._raw.abort()

    def _head_of(self, data: bytes) -> bytes:
        """The part of the last piece of input that is of the HTTP head; what follows it stays unread."""
        seen = self._tail + data
        end = HEAD_END.search(seen)
        if end is None:
            self._tail = seen[-3:]
            return data
        self._tail = b""
        behind = len(seen) - end.end()
        self._start -= behind
        return data[: len(data) - behind]

    # -- frames

    def _work(self) -> None:
        """Processes input piece by piece until the connection's part is over. Each frame for wsproto counts,
        because a tiny one takes as long as a large one."""
        if self._is_working:
            return
        self._is_working = True
        budget = self._connection.budget if self._connection is not None else None
        if budget is not None:
            budget.begin_part()
        try:
            while (self._is_ending or not self._is_paused) and not self._is_over() and self._take_piece():
                if budget is not None and not self._is_ending and not self._is_over() and budget.is_over():
                    assert self._connection is not None
                    self._connection.queue_part()
        finally:
            self._is_working = False
            if budget is not None:
                budget.end_part()
        if self._is_over() or not self._is_paused:
            self._report_loss()

    def _report_loss(self) -> None:
        """Reports the closed socket once all input that came before is processed."""
        if self._lost:
            self._is_paused = False
            self.connection_lost(self._lost.pop())

    def _take_piece(self) -> bool:
        """Processes the next piece of input; False when there is none."""
        if self._phase is WebSocketPhase.GREETING:
            return self._take_greeting()
        if self._has_frames:
            self._take_frames()
            return True
        if self._take_plain():
            return True
        count = self._frames.other(self._unread, self._start, self._piece)
        piece = self._unread[self._start : self._start + count]
        self._start += count
        if not piece:
            self._unread, self._start = self._unread[self._start :], 0
            return False
        self._ws.receive_data(piece)
        self._has_frames = True
        return True

    def _take_greeting(self) -> bool:
        piece = self._unread[self._start : self._start + self._piece]
        self._start += len(piece)
        if not piece:
            self._unread, self._start = b"", 0
            return False
        self._greet(piece)
        if self._connection is not None and not self._is_over():
            self._connection.queue_part()  # input that follows the handshake
        return True

    def _take_plain(self) -> bool:
        """Hands over the payloads of plain frames, as many as the connection has room for."""
        connection = self._connection
        assert connection is not None
        if self._start == len(self._unread):
            return False
        with memoryview(connection.get_buffer(-1)) as room:
            taken, copied = self._frames.take(self._unread, self._start, room)
        self._start += taken
        if copied:
            connection.buffer_updated(copied)
        return taken > 0

    def _take_frames(self) -> None:
        """Processes what wsproto made of its input."""
        for event in self._ws.events():
            self._on_event(event)
            if self._is_over():
                return
            if self._is_paused and not self._is_ending:
                return  # wsproto continues after this event at the next call
        self._has_frames = False

    def _on_event(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._hand_over(event.data)
        elif isinstance(event, TextMessage):
            self._hand_over(event.data.encode())
        elif isinstance(event, Ping):
            if not self._is_over():
                self._send(event.response())
        elif isinstance(event, CloseConnection) and not self._is_over():
            # wsproto reports bad frames as a close, too; only a real close frame changes its state.
            true = self._ws.state is not ConnectionState.OPEN
            if not true:
                self._log_error(f"{self._peer[0]}:{self._peer[1]} - read error: {event.reason}")
            self._send(event.response())
            self._phase = WebSocketPhase.CLOSED
            if self._connection is not None:
                found = CloseReason.MAX_PAYLOAD if event.code == CODE_TOO_BIG else CloseReason.READ_ERROR
                self._connection.close(CloseReason.CLIENT_CLOSED if true else found)

    def _hand_over(self, data: bytes | bytearray) -> None:
        connection = self._connection
        rest = memoryview(data)
        while rest and connection is not None and connection.close_reason is None:
            with memoryview(connection.get_buffer(len(rest))) as buffer:
                count = min(len(rest), len(buffer))
                buffer[:count] = rest[:count]
            rest = rest[count:]
            connection.buffer_updated(count)

    def _is_over(self) -> bool:
        if self._phase is WebSocketPhase.CLOSED:
            return True
        return self._connection is not None and self._connection.close_reason is not None

    def _send(self, event: Event) -> None:
        if not self._lost:
            self._raw.write(self._ws.send(event))


class AcceptedWebsocket(WebsocketLayer):
    """WebSocket of one accepted socket.

    Args:
        accept: creates the connection after the handshake; gets the request's cookies, and the address
            from X-Forwarded-For ("" = none), which is not verified and only used in logs.
        policy: rules of the handshake.
        scratch: read buffer; layers of one event loop may share it.
        log_error: called with error lines about the handshake.
        accept_leaf: creates the connection of a leaf node; returns None if the server accepts none.
    """

    def __init__(
        self,
        accept: Callable[[dict[str, str], str], ServerConnection],
        policy: WebsocketPolicy,
        scratch: bytearray,
        log_error: Callable[[str], None],
        accept_leaf: Callable[[], ServerConnection | None] = lambda: None,
    ) -> None:
        super().__init__(WSConnection(ConnectionType.SERVER), policy.handshake_timeout_s, scratch, log_error)
        self._accept = accept
        self._accept_leaf = accept_leaf
        self._policy = policy
        self._head = b""  # the first bytes of the request: the method

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        encrypted = self._raw.get_extra_info("ssl_object")
        if self._policy.refusal is not None and encrypted is not None:
            reason = self._policy.refusal(encrypted.getpeercert(binary_form=True) or b"")
            if reason:
                self._stop_timer()
                self._log_error(f"{self._peer[0]}:{self._peer[1]} - TLS handshake error: {reason}")
                self._raw.abort()

    def _greet(self, data: bytes) -> None:
        if len(self._head) < 4:
            self._head += data[:4]
        try:
            self._ws.receive_data(self._head_of(data))
            for event in self._ws.events():
                if isinstance(event, Request):
                    self._open(event)
        except (RemoteProtocolError, UnicodeError) as error:  # wsproto does not catch UnicodeError
            self._refuse(HandshakeRefused(400 if self._head[:4] == b"GET " else 405, str(error)))
        except HandshakeRefused as error:
            self._refuse(error)

    def _open(self, request: Request) -> None:
        headers = {name.lower().decode(): value.decode("latin-1") for name, value in request.extra_headers}
        path = request.target.partition("?")[0]
        if path.endswith("/mqtt"):
            raise HandshakeRefused(404, "mqtt websocket endpoint not enabled")
        check_origin(headers.get("origin", ""), request.host, self._policy)
        extensions: list[Extension] = []
        if self._policy.compression:
            extensions.append(Deflate(self._message_max))
        else:
            self._piece = MESSAGE_BYTES
        self._stop_timer()
        extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._policy.headers]
        unmasked = headers.get(NO_MASKING.lower()) == "true"
        if unmasked:
            extra.append((NO_MASKING.encode(), b"true"))
        self._send(AcceptConnection(extensions=extensions, extra_headers=extra))
        if unmasked:
            _expect_unmasked(self._ws)
            self._frames = FrameReader(masked=False)
        if not path.endswith("/leafnode"):
            claimed = forwarded_for(headers.get("x-forwarded-for", ""))
            self._begin(self._accept(cookies_of(headers.get("cookie", "")), claimed))
            return
        connection = self._accept_leaf()
        if connection is None:  # as the official server: handshake, then close
            self._log_error("Not configured to accept leaf node connections")
            self._phase = WebSocketPhase.CLOSED
            self._raw.close()
        else:
            self._begin(connection)

    def _refuse(self, refused: HandshakeRefused) -> None:
        self._stop_timer()
        self._log_error(f"{self._peer[0]}:{self._peer[1]} - websocket handshake error: {refused}")
        text = _TEXTS[refused.status] + b"\n"
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Sec-Websocket-Version", b"13"),
            (b"Content-Length", str(len(text)).encode()),
        ]
        lines = [b"HTTP/1.1 %d %s" % (refused.status, _TEXTS[refused.status])]
        lines += [b"%s: %s" % header for header in headers]
        self._raw.write(b"\r\n".join(lines) + b"\r\n\r\n" + text)
        self._phase = WebSocketPhase.CLOSED
        self._raw.close()


def _expect_unmasked(ws: WSConnection) -> None:
    """Accepts frames without a mask, which the peer was allowed to send. wsproto has no public option."""
    assert ws.connection is not None
    ws.connection._proto._frame_decoder.client = True


def cookies_of(header: str) -> dict[str, str]:
    """Names and values of a Cookie header; skips malformed parts."""
    found = {}
    for part in header.split(";"):
        name, equals, value = part.strip().partition("=")
        if equals and name:
            found[name] = value.removeprefix('"').removesuffix('"')
    return found


def origin_of(url: str) -> WebOrigin:
    """(scheme, host, port) of an origin. Raises ValueError when it is malformed."""
    parts = urlsplit(url.lower())
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no origin: write it as http://host or https://host:port")
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]


def check_origin(origin: str, host: str, policy: WebsocketPolicy) -> None:
    """Raises HandshakeRefused (403) when the origin may not connect. Only browsers send one."""
    if not origin or not (policy.same_origin or policy.allowed_origins):
        return
    try:
        found = origin_of(origin)
        own = origin_of(f"{'https' if policy.encrypted else 'http'}://{host}")
    except ValueError as error:
        raise HandshakeRefused(403, f"origin not allowed: {error}") from error
    if policy.same_origin and found[1:] != own[1:]:
        raise HandshakeRefused(403, f"origin not allowed: not same origin: {origin}")
    if policy.allowed_origins and found not in policy.allowed_origins:
        raise HandshakeRefused(403, f"origin not allowed: not in the allowed list: {origin}")


def forwarded_for(header: str) -> str:
    """The client address claimed by X-Forwarded-For, its first entry, which is not verified.

    "" when it is not an address.
    """
    first = header.split(",", maxsplit=1)[0].strip()
    try:
        return str(ipaddress.ip_address(first))
    except ValueError:
        return ""
