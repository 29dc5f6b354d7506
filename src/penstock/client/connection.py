"""One TCP (or TLS) connection to a server: handshake, frames in, bytes out, liveness.

Theory of operation: the event loop reads straight into the parser's buffer; messages go to the owner batch
by batch, control frames are handled here. What is to be sent gathers in the owner's OutBuffer and leaves in
one write per tick of the loop. A connection serves once: after it is lost the owner makes another.

Invariants: `on_lost` is called exactly once, and only after a handshake that succeeded; PONGs answer PINGs
in order, so waiters are a queue; nothing is written before CONNECT.

Rejected: asyncio streams (a copy and a coroutine switch per read), a writer task (a task switch per write).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Protocol, cast

from penstock.client.credentials import Prove, proven
from penstock.client.info import ConnectRequest, ServerInfo, decode_info, encode_connect
from penstock.client.message import RawMessage
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
from penstock.kernels.wire.buffers import OutBuffer
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

# INFO of a large cluster lists many URLs on one line; a server's word on its own line length is trusted.
INFO_LINE_BYTES_MAX = 1024 * 1024
WRITE_HIGH_WATER_BYTES = 512 * 1024
# Whole numbers compare faster than enum members, and these are compared per read.
_NEED_MORE = int(OP_NEED_MORE)
_ERROR = int(OP_ERROR)

_AUTHORIZATION_TEXTS = (
    "authorization violation",
    "authentication ",
    "user authentication",
    "account authentication",
)


def error_of_text(text: str) -> ClientError:
    """The exception for a `-ERR` text that is not about one subject; texts in the official server's words."""
    lower = text.lower()
    if lower.startswith(_AUTHORIZATION_TEXTS):
        return AuthorizationError(f"the server says: {text}; check user, password or token")
    if lower.startswith("stale connection"):
        return StaleConnectionError("the server gave the connection up: it got no answer to its PINGs")
    return ServerRefusedError(text)


class ConnectionOwner(Protocol):
    """What a connection tells whoever opened it. Called from the event loop; must not raise."""

    def on_messages(self, batch: list[RawMessage]) -> None:
        """MSG and HMSG frames, in order."""

    def on_info(self, info: ServerInfo) -> None:
        """An INFO after the handshake: topology change, lame duck."""

    def on_server_error(self, text: str) -> None:
        """A `-ERR` after the handshake."""

    def on_lost(self, connection: Connection, error: Exception | None) -> None:
        """The connection is gone; error is None when it was closed from this side."""


class Connection(asyncio.BufferedProtocol):
    """Made by `open_connection`."""

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
        self._greeted = False  # the handshake's PONG came: control frames are for the owner
        self._ready = False  # the handshake returned: losing the connection is for the owner
        self._closing = False
        self._pings_unanswered = 0
        self._reason: Exception | None = None  # why the connection is about to go, when known
        self._ping_timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # --- handshake -----------------------------------------------------------------------------

    async def shake_hands(self, credentials: ConnectRequest, prove: Prove | None = None) -> None:
        """INFO, TLS when asked for, CONNECT, and a PING whose PONG says that the server took it all."""
        self.info = await self._first_info
        if self.info.tls_required or self.url.tls or self._options.tls:
            await self._start_tls()
        if prove is not None:
            credentials = await proven(credentials, prove, self.info.nonce)
        # The out buffer stays where it is: subscriptions must be made again before what it holds is sent.
        pong = self._loop.create_future()
        self._pongs.append(pong)
        self._write(encode_connect(credentials) + b"PING\r\n")
        await pong
        if self._transport is None:  # lost right behind its PONG
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
        return False  # the transport closes itself; connection_lost tells

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._transport = None
        error = self._reason or self._explain(exc)
        if not self._first_info.done():
            self._first_info.set_exception(error)
            self._first_info.exception()  # retrieved, so that asyncio does not log it when nobody waits
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

    # --- reading -------------------------------------------------------------------------------

    def _parse(self, parser: FrameParser) -> None:
        while True:
            batch = parser.next_batch()
            if batch:
                self._owner.on_messages(batch)
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
        # +OK is only sent in verbose mode, which this client never asks for; other frames are for servers.

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
        """Hands everything in the out buffer to the transport, in one write."""
        if self._out.size and self._transport is not None:
            self._transport.write(self._out.take())

    def write_first(self, data: bytes) -> None:
        """Writes ahead of the out buffer: what restores a session after a reconnect."""
        self._write(data)

    async def writable(self) -> None:
        """Returns when the transport takes more; at once when it does already."""
        if self.paused:
            if self._writable is None:
                self._writable = self._loop.create_future()
            await asyncio.shield(self._writable)

    async def ping(self) -> None:
        """A round trip: everything written before was taken by the server when this returns.

        Raises DisconnectedError (or why the connection went) when it is lost meanwhile.
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
        """Closes after everything written is sent."""
        self._closing = True
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self, reason: PenstockError) -> None:
        """Closes now, for a reason that `on_lost` (or the handshake) will tell."""
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()


def tls_context(options: Options) -> ssl.SSLContext:
    """The context of the options, else the system's default one."""
    return options.tls if isinstance(options.tls, ssl.SSLContext) else ssl.create_default_context()


def tls_hostname(options: Options, url: ServerUrl) -> str:
    """The name that the server's certificate is checked against."""
    return options.tls_hostname or url.host


async def open_connection(
    owner: ConnectionOwner,
    url: ServerUrl,
    out: OutBuffer,
    options: Options,
    credentials: ConnectRequest,
    prove: Prove | None = None,
) -> Connection:
    """Connects and shakes hands; the connection is ready to use when this returns.

    Raises OSError when the host can not be reached, AuthorizationError, ServerRefusedError, ProtocolError or
    DisconnectedError when the handshake fails, DisconnectedError when it takes over connect_timeout.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(owner, url, out, options)
    context = tls_context(options) if options.tls_handshake_first else None
    hostname = tls_hostname(options, url) if context is not None else None
    try:
        async with asyncio.timeout(options.connect_timeout):
            await loop.create_connection(
                lambda: connection, url.host, url.port, ssl=context, server_hostname=hostname
            )
            await connection.shake_hands(credentials, prove)
    except TimeoutError:
        error = DisconnectedError(f"{url} did not finish the handshake within {options.connect_timeout:g} s")
        connection.abort(error)
        raise error from None
    except BaseException:
        connection.abort(DisconnectedError("the handshake was given up"))
        raise
    return connection
