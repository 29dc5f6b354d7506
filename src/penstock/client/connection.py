"""One connection to a server, by TCP, TLS or WebSocket: handshake, frame parsing, writing, liveness.

Theory of operation: the event loop reads directly into the parser's buffer. Messages go to the owner in
batches; control frames are handled here. Output accumulates in the owner's OutBuffer and is written once per
iteration of the event loop. A lost connection is not reused; its owner opens another.

Invariants: `on_lost` is called exactly once, and only after a successful handshake; PONGs answer PINGs in
order, so the waiters form a queue; nothing is written before CONNECT.

Rejected: asyncio streams (a copy and a coroutine switch per read), a writer task (a task switch per write).
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from penstock.client.credentials import Prove, with_proof
from penstock.client.info import ConnectRequest, ServerInfo, decode_info, encode_connect
from penstock.client.message import Immutable, RawMessage
from penstock.client.options import Options
from penstock.client.servers import ServerUrl
from penstock.errors import (
    AuthorizationError,
    ClientError,
    DisconnectedError,
    PenstockError,
    ProtocolError,
    ServerRefusedError,
    StaleConnectionError,
)
from penstock.kernels.wire.frames import (
    OP_ERR,
    OP_ERROR,
    OP_INFO,
    OP_NEED_MORE,
    OP_PING,
    OP_PONG,
    FrameParser,
    PyFrame,
)
from penstock.kernels.wire.output import OutBuffer
from penstock.protocol.hosts import host_checked

# INFO of a large cluster lists many URLs on one line.
INFO_LINE_BYTES_MAX = 1024 * 1024
WRITE_HIGH_WATER_BYTES = 512 * 1024
# How long a closed connection may take to send what was written.
CLOSE_LINGER_S = 2.0
# Plain ints compare faster than enum members, and these are compared on every read.
_NEED_MORE = int(OP_NEED_MORE)
_ERROR = int(OP_ERROR)

_AUTHORIZATION_TEXTS = (
    "authorization violation",
    "authentication ",
    "user authentication",
    "account authentication",
)


def error_of_text(text: str) -> ClientError:
    """The exception for a `-ERR` text that does not concern one subject. Texts as the official server's."""
    lower = text.lower()
    if lower.startswith(_AUTHORIZATION_TEXTS):
        return AuthorizationError(f"the server says: {text}; check user, password or token")
    if lower.startswith("stale connection"):
        return StaleConnectionError("the server gave the connection up: it got no answer to its PINGs")
    return ServerRefusedError(text)


class ConnectionOwner(Protocol):
    """Callbacks of a connection to its owner. Called from the event loop; must not raise."""

    def on_messages(self, batch: list[RawMessage], size: int) -> None:
        """MSG and HMSG frames, in order. size: bytes of their headers and payloads."""

    def on_info(self, info: ServerInfo) -> None:
        """INFO after the handshake: topology change or lame duck mode."""

    def on_server_error(self, text: str) -> None:
        """A `-ERR` after the handshake."""

    def on_lost(self, connection: Connection, error: Exception | None) -> None:
        """The connection is lost. error: None if it was closed locally."""


class Connection(asyncio.BufferedProtocol):
    """A connection. `open` connects it."""

    def __init__(self, owner: ConnectionOwner, url: ServerUrl, out: OutBuffer, options: Options) -> None:
        self.url = url
        self.info = ServerInfo()
        self.paused = False
        self._owner = owner
        self._out = out
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(INFO_LINE_BYTES_MAX, 0)
        self._transport: asyncio.Transport | None = None
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._writable: asyncio.Future[None] | None = None
        self._first_info: asyncio.Future[ServerInfo] = self._loop.create_future()
        self._greeted = False  # the handshake's PONG arrived: control frames go to the owner
        self._ready = False  # the handshake succeeded: the owner learns of a lost connection
        self._closing = False
        self._pings_unanswered = 0
        self._reason: Exception | None = None  # why the connection will close, if known
        self._ping_timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # --- opening -------------------------------------------------------------------------------

    async def open(self, credentials: ConnectRequest, prove: Prove | None = None) -> None:
        """Connect and complete the handshake. Called once.

        Raises OSError if the host is unreachable, AuthorizationError, ServerRefusedError, ProtocolError or
        DisconnectedError if the handshake fails, DisconnectedError if it exceeds connect_timeout.
        """
        url, options = self.url, self._options
        try:
            async with asyncio.timeout(options.connect_timeout):
                if url.is_websocket:
                    await _open_websocket(self, url, options)
                else:
                    await _open_socket(lambda: self, url, options, encrypt=options.tls_handshake_first)
                await self.handshake(credentials, prove)
        except TimeoutError:
            text = f"{url} did not finish the handshake within {options.connect_timeout:g} s"
            error = DisconnectedError(text)
            self.abort(error)
            raise error from None
        except BaseException:
            self.abort(DisconnectedError("the handshake was given up"))
            raise

    async def handshake(self, credentials: ConnectRequest, prove: Prove | None = None) -> None:
        """Read INFO, start TLS if required, send CONNECT and PING, and wait for the PONG."""
        self.info = await self._first_info
        # A WebSocket's TLS, if any, came before its handshake.
        if not self.url.is_websocket and (self.info.tls_required or self.url.tls or self._options.tls):
            await self._start_tls()
        if prove is not None:
            credentials = await with_proof(credentials, prove, self.info.nonce)
        # Do not flush the out buffer yet: subscriptions must be restored before its publishes are sent.
        pong = self._loop.create_future()
        self._pongs.append(pong)
        self._write(encode_connect(credentials) + b"PING\r\n")
        await pong
        if self._transport is None:  # lost right after its PONG
            raise self._reason or DisconnectedError(f"{self.url} closed the connection during the handshake")
        self._ready = True
        self._ping_timer = self._loop.call_later(self._options.ping_interval, self._on_ping_timer)

    async def _start_tls(self) -> None:
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return
        upgraded = await self._loop.start_tls(
            transport, self, tls_context(self._options), server_hostname=tls_hostname(self._options, self.url)
        )
        if upgraded is None:
            raise DisconnectedError(f"{self.url} closed the connection during the TLS handshake")
        self._transport = upgraded

    # --- asyncio.BufferedProtocol --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        parser.buffer_updated(nbytes)
        self._parse(parser)

    def eof_received(self) -> bool:
        return False  # the transport closes itself and calls connection_lost

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._transport = None
        error = self._reason or self._explain(exc)
        if not self._first_info.done():
            self._first_info.set_exception(error)
            self._first_info.exception()  # mark as retrieved, so that asyncio does not log it
        for waiter in self._pongs:
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
        self._pongs.clear()
        self.resume_writing()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._ready:
            self._ready = False
            self._owner.on_lost(self, None if self._closing else error)

    def _explain(self, exc: Exception | None) -> Exception:
        if exc is None:
            return DisconnectedError(f"{self.url} closed the connection")
        error = DisconnectedError(f"the connection to {self.url} broke: {exc}")
        error.__cause__ = exc
        return error

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    @property
    def received(self) -> tuple[int, int]:
        """Number of messages read, and the bytes of their headers and payloads."""
        return self._parser.messages, self._parser.message_bytes

    # --- reading -------------------------------------------------------------------------------

    def _parse(self, parser: FrameParser) -> None:
        while True:
            counted = parser.message_bytes
            batch = parser.next_batch()
            if self._closing:
                return  # the owner may have another connection, whose messages these are not
            if batch:
                self._owner.on_messages(batch, parser.message_bytes - counted)
            op = parser.stopped_op
            if op == _NEED_MORE:
                return
            if op == _ERROR:
                text = f"{self.url} sent what is no NATS frame (parse error {parser.error})"
                self.abort(ProtocolError(text))
                return
            frame = parser.next_frame()
            if frame is None:
                return
            self._on_control(frame)

    def _on_control(self, frame: PyFrame) -> None:
        op = frame.op
        if op == OP_PING:
            self._write(b"PONG\r\n")
        elif op == OP_PONG:
            self._greeted = True
            self._pings_unanswered = 0
            waiter = self._pongs.popleft() if self._pongs else None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        elif op == OP_INFO:
            self._on_info(frame.payload or b"")
        elif op == OP_ERR:
            self._on_err((frame.payload or b"").decode("utf-8", "replace"))
        # +OK is sent in verbose mode only, which this client never requests; other frames are for servers.

    def _on_info(self, body: bytes) -> None:
        try:
            info = decode_info(body)
        except ProtocolError as error:
            self.abort(error)
            return
        self.info = info
        if not self._first_info.done():
            self._first_info.set_result(info)
        elif self._greeted:
            self._owner.on_info(info)

    def _on_err(self, text: str) -> None:
        error = error_of_text(text)
        if not self._greeted:
            self.abort(error)
            return
        if not isinstance(error, ServerRefusedError):
            self._reason = error  # the server closes next
        self._owner.on_server_error(text)

    # --- writing -------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the out buffer to the transport in one call."""
        if self._out.size and self._transport is not None:
            self._transport.write(self._out.take())

    def flush_now(self) -> bool:
        """`flush`, in any thread where the session has several. Returns False if it is left to the loop."""
        self.flush()
        return True

    def write_behind(self, parts: Sequence[Immutable]) -> None:
        """Write the out buffer, then `parts`. The transport may keep them, so they must never change."""
        transport = self._transport
        if transport is None:
            return
        self.flush()
        if not _joins_lines(transport):
            transport.writelines(parts)
            return
        sent = 0 if transport.get_write_buffer_size() else _send_parts(transport, parts)
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                transport.write(memoryview(part)[sent:])
                sent = 0

    def write_first(self, data: bytes) -> None:
        """Write ahead of the out buffer; restores subscriptions after a reconnect."""
        self._write(data)

    async def writable(self) -> None:
        """Wait until the transport accepts more data."""
        if self.paused:
            if self._writable is None:
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

    async def ping(self) -> None:
        """Make a round trip. When it returns, the server has read everything written before.

        Raises DisconnectedError, or the cause of the loss, if the connection is lost meanwhile.
        """
        if self._transport is None:
            raise DisconnectedError(f"the connection to {self.url} is gone")
        waiter = self._loop.create_future()
        self.flush()
        self._pongs.append(waiter)
        self._write(b"PING\r\n")
        await waiter

    def _on_ping_timer(self) -> None:
        if self._pings_unanswered >= self._options.max_outstanding_pings:
            self.abort(StaleConnectionError(f"{self.url} did not answer {self._pings_unanswered} PINGs"))
            return
        self._pings_unanswered += 1
        self.flush()
        self._pongs.append(None)
        self._write(b"PING\r\n")
        self._ping_timer = self._loop.call_later(self._options.ping_interval, self._on_ping_timer)

    # --- ending --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close after all written data is sent, which a stalled peer delays for CLOSE_LINGER_S at most."""
        self._closing = True
        if self._ping_timer is not None:
            self._ping_timer.cancel()  # it would write the out buffer, which is the next connection's by then
        if self._transport is not None:
            self.flush()
            self._ping_timer = self._loop.call_later(CLOSE_LINGER_S, self._transport.abort)
            self._transport.close()

    def abort(self, reason: PenstockError) -> None:
        """Close at once. `on_lost`, or the handshake, reports `reason`."""
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()


def _joins_lines(transport: asyncio.Transport) -> bool:
    """Whether its `writelines` copies everything: asyncio's plain sockets before Python 3.12."""
    return sys.version_info < (3, 12) and is_plain_socket(transport)


def is_plain_socket(transport: asyncio.Transport) -> bool:
    """Whether bytes go to the socket as they are: no TLS, no WebSocket frames, no other event loop's."""
    return type(transport).__module__ == "asyncio.selector_events"


def _send_parts(transport: asyncio.Transport, parts: Sequence[Immutable]) -> int:
    """Send what the socket of a transport takes now, and return the number of bytes. The transport, which
    has nothing else to send, meets the error of a broken connection when it writes the rest."""
    try:
        return os.writev(transport.get_extra_info("socket").fileno(), parts)
    except OSError:
        return 0


def tls_context(options: Options) -> ssl.SSLContext:
    """The TLS context in the options, else the system's default."""
    return options.tls if isinstance(options.tls, ssl.SSLContext) else ssl.create_default_context()


def tls_hostname(options: Options, url: ServerUrl) -> str:
    """The host name to verify the server's certificate against."""
    return options.tls_hostname or url.host


async def _open_socket(
    make: Callable[[], asyncio.BaseProtocol], url: ServerUrl, options: Options, *, encrypt: bool
) -> None:
    loop = asyncio.get_running_loop()
    context = tls_context(options) if encrypt else None
    name = tls_hostname(options, url) if encrypt else None
    if options.open_socket is None:
        with host_checked(url.host):
            await loop.create_connection(make, url.host, url.port, ssl=context, server_hostname=name)
    else:
        sock = await options.open_socket()
        await loop.create_connection(make, sock=sock, ssl=context, server_hostname=name)


async def _open_websocket(connection: Connection, url: ServerUrl, options: Options) -> None:
    from penstock.client.websocket_transport import WebsocketTransport, header_pairs  # needs an extra

    headers = await header_pairs(options.websocket_headers)
    websocket = WebsocketTransport(connection, url, headers, compression=options.websocket_compression)
    # `tls` with a ws:// URL encrypts, too: who asks for TLS does not expect a password in plain text.
    try:
        await _open_socket(lambda: websocket, url, options, encrypt=url.tls or bool(options.tls))
        await websocket.opened
    except BaseException:
        websocket.abort()
        raise
