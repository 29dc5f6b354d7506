"""WebSocket of a connection that this server dials: a leaf node to its hub.

The request says what the other side is to be; with the response, or with what follows it in the same read,
frames begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError

from penstock.net.server_connection import ServerConnection
from penstock.net.websocket import MESSAGE_BYTES, READ_BYTES, Deflate, WebsocketLayer, WebSocketPhase


class DialledWebsocket(WebsocketLayer):
    """WebSocket of one dialled socket.

    Args:
        connected: creates the connection after the handshake.
        host: host:port, for the request.
        target: path, for the request.
        compression: offer permessage-deflate.
        handshake_timeout_s: time limit of the handshake.
        log_error: called with error lines about broken frames.

    Attributes:
        opened: done after the handshake; raises ConnectionError if it fails.
    """

    def __init__(
        self,
        connected: Callable[[], ServerConnection],
        host: str,
        target: str,
        *,
        compression: bool,
        handshake_timeout_s: float,
        log_error: Callable[[str], None],
    ) -> None:
        scratch = bytearray(READ_BYTES)
        super().__init__(WSConnection(ConnectionType.CLIENT), handshake_timeout_s, scratch, log_error)
        self._connected = connected
        self._request = Request(
            host=host, target=target, extensions=[Deflate(self._message_max)] if compression else []
        )
        if not compression:
            self._piece = MESSAGE_BYTES
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._send(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection closed in the WebSocket handshake{f': {exc}' if exc is not None else ''}")
        super().connection_lost(exc)

    # -- handshake

    def _greet(self, data: bytes) -> None:
        if data.startswith(b"INFO "):
            self._fail("this port does not speak WebSocket; is it that of leafnodes or of clients?")
            return
        try:
            self._ws.receive_data(self._head_of(data))
            for event in self._ws.events():
                if isinstance(event, AcceptConnection):
                    self._open()
                if isinstance(event, RejectConnection):
                    self._fail(f"WebSocket handshake refused with HTTP status {event.status_code}")
        except (RemoteProtocolError, UnicodeError) as error:  # wsproto does not catch UnicodeError
            self._fail(f"this port does not speak WebSocket: {error}")

    def _open(self) -> None:
        self._stop_timer()
        if not self.opened.done():  # else the dial was given up
            self.opened.set_result(None)
            self._begin(self._connected())

    def _on_timeout(self) -> None:
        self._timer = None
        self._fail("timeout of the WebSocket handshake")

    def _fail(self, text: str) -> None:
        """Gives up, if the handshake is not done."""
        if self._phase is not WebSocketPhase.GREETING:
            return
        self._stop_timer()
        self._phase = WebSocketPhase.CLOSED
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(text))
            self.opened.exception()  # marked as retrieved: after a cancelled dial there is no reader
        self._raw.abort()
