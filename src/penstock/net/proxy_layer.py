"""PROXY protocol: reads the header in which a proxy names its client, before the client's bytes.

A `ProxyLayer` is the protocol of an accepted socket until the header is complete. Then the connection, or the
TLS layer before it, takes over the socket, and the layer costs nothing more. Output bypasses it from the
start: INFO does not wait for the header, as in the official server.

Invariant: the connection sees no byte before the header is complete, and no byte of the header.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.errors import ProtocolError
from penstock.net.server_connection import ServerConnection
from penstock.protocol.proxy_protocol import ProxyHeader, read_header

if TYPE_CHECKING:
    from penstock.net.tls import TlsLayer

HEADER_TIMEOUT_S = 5.0
READ_BYTES = 4096


class ProxyLayer(asyncio.BufferedProtocol):
    """Reads the PROXY header of one accepted socket.

    Args:
        inner: protocol that takes over the socket.
        connection: the connection; not the same as `inner` with TLS.
        known: called with the header before any input of the client is read.
        refused: called with the reason when there is no valid header; closes the connection.
    """

    def __init__(
        self,
        inner: ServerConnection | TlsLayer,
        connection: ServerConnection,
        *,
        known: Callable[[ProxyHeader], None],
        refused: Callable[[str], None],
    ) -> None:
        self._inner = inner
        self._connection = connection
        self._known = known
        self._refused = refused
        self._read = bytearray(READ_BYTES)
        self._data = bytearray()
        self._raw: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        self._inner.connection_made(transport)
        if self._connection.close_reason is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(HEADER_TIMEOUT_S, self._on_timeout)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        if self._connection.close_reason is not None:
            return
        self._data += memoryview(self._read)[:nbytes]
        try:
            header = read_header(self._data)
        except ProtocolError as error:
            self._fail(str(error))
            return
        if header is not None:
            self._step_aside(header)

    def eof_received(self) -> bool:
        self._fail("failed to read the header: EOF")
        return False

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._inner.connection_lost(exc)

    # -- own

    def _step_aside(self, header: ProxyHeader) -> None:
        self._stop_timer()
        self._known(header)
        inner, rest = self._inner, memoryview(self._data)[header.size :]
        self._raw.set_protocol(inner)
        if not isinstance(inner, ServerConnection):
            inner.announced()
        while rest and self._connection.close_reason is None:
            # With optional TLS, the connection may have taken over the socket already.
            reader = cast(asyncio.BufferedProtocol, self._raw.get_protocol())
            with memoryview(reader.get_buffer(len(rest))) as buffer:
                count = min(len(rest), len(buffer))
                buffer[:count] = rest[:count]
            rest = rest[count:]
            reader.buffer_updated(count)

    def _fail(self, text: str) -> None:
        self._stop_timer()
        if self._connection.close_reason is None:
            self._refused(text)

    def _on_timeout(self) -> None:
        self._timer = None
        self._fail("timeout reading PROXY protocol header")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
