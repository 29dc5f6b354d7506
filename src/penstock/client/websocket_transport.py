"""WebSocket (RFC 6455) between a socket and a `Connection`: `ws://` and `wss://` servers.

A `WebsocketTransport` is the protocol of the socket and the transport of the connection, which therefore is
the same for TCP, TLS and WebSocket. The frame parser sees the payloads of all messages as one byte stream.
wsproto does the handshake and the frames; it does no IO, and needs no task.

Phases: GREETING (waits for the HTTP response) -> OPEN -> CLOSED. The connection learns of its transport when
the phase becomes OPEN.

Invariants: messages are handed over as they arrive and never assembled; those sent have at most
MESSAGE_BYTES, and with compression at most the server's max_payload, above which the official server refuses
them.

Rejected: aiohttp (which nats-py uses) and the `websockets` library. Both own the socket, and cost a task and
a queue between it and the parser.
"""

from __future__ import annotations

import asyncio
import inspect
from enum import Enum
from typing import Any, cast

from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits
from wsproto.utilities import ProtocolError as WebsocketError

from penstock.client.connection import Connection
from penstock.client.options import HeaderMap, WebsocketHeaders
from penstock.client.servers import ServerUrl
from penstock.errors import DisconnectedError, MisuseError

MESSAGE_BYTES = 64 * 1024
COMPRESS_THRESHOLD = 64  # smaller messages would grow


class ClientDeflate(PerMessageDeflate):
    """permessage-deflate without context takeover, as the official server requires it."""

    def __init__(self) -> None:
        super().__init__(client_no_context_takeover=True, server_no_context_takeover=True)
        self._is_control = False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> CloseReason | RsvBits:
        self._is_control = opcode.iscontrol()
        return super().frame_inbound_header(proto, opcode, rsv, payload_length)

    def frame_inbound_complete(
        self, proto: FrameDecoder | FrameProtocol, fin: bool
    ) -> bytes | CloseReason | None:
        # wsproto would take the end of a control frame for the end of the fragmented message around it.
        return None if self._is_control else super().frame_inbound_complete(proto, fin)

    def frame_outbound(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, data: bytes, fin: bool
    ) -> tuple[RsvBits, bytes]:
        if fin and opcode is not Opcode.CONTINUATION and len(data) <= COMPRESS_THRESHOLD:
            return rsv, data
        return super().frame_outbound(proto, opcode, rsv, data, fin)


async def header_pairs(given: WebsocketHeaders | None) -> list[tuple[bytes, bytes]]:
    """The user's headers of the handshake. Raises MisuseError for a header that HTTP does not allow."""
    found = given() if callable(given) else given
    headers: HeaderMap = await found if inspect.isawaitable(found) else found or {}
    pairs: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        for text in [value] if isinstance(value, str) else value:
            if not name or any(ord(char) < 32 for char in name + text):
                raise MisuseError(f"websocket_headers has {name!r}: {text!r}, which is no HTTP header")
            pairs.append((name.encode("latin-1"), text.encode("latin-1")))
    return pairs


class WebsocketPhase(Enum):
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class WebsocketTransport(asyncio.Protocol, asyncio.Transport):
    """WebSocket of one connection to a server.

    headers: of the handshake. compression: offer permessage-deflate. opened: done once the handshake is;
    DisconnectedError if it fails.
    """

    def __init__(
        self, connection: Connection, url: ServerUrl, headers: list[tuple[bytes, bytes]], *, compression: bool
    ) -> None:
        super().__init__()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._url = url
        self._headers = headers
        self._offers: list[Extension] = [ClientDeflate()] if compression else []
        self._is_compressed = False
        self._phase = WebsocketPhase.GREETING
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._raw: asyncio.Transport | None = None

    # --- from the event loop -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's does not inherit from asyncio's
        url = self._url
        host = f"[{url.host}]" if ":" in url.host else url.host
        self._send(
            Request(
                host=f"{host}:{url.port}",
                target=url.path or "/",
                extensions=self._offers,
                extra_headers=self._headers,
            )
        )

    def data_received(self, data: bytes) -> None:
        if self._phase is WebsocketPhase.CLOSED:
            return
        if self._phase is WebsocketPhase.GREETING and data.startswith(b"INFO "):
            self._fail(f"{self._url} is a port for nats://, not for WebSocket")
            return
        try:
            self._ws.receive_data(data)
            for event in self._ws.events():
                self._on_event(event)
        except (WebsocketError, UnicodeError) as error:  # wsproto does not catch UnicodeError
            self._fail(f"{self._url} does not speak WebSocket: {error}")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = WebsocketPhase.CLOSED
        if not self.opened.done():
            detail = f": {exc}" if exc is not None else ""
            self._fail(f"{self._url} closed the connection during the WebSocket handshake{detail}")
        self._connection.connection_lost(exc)

    # --- from the connection -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._phase is not WebsocketPhase.OPEN:
            return
        view = memoryview(data)
        size = MESSAGE_BYTES
        if self._is_compressed:
            size = min(size, max(self._connection.info.max_payload, COMPRESS_THRESHOLD))
        for start in range(0, len(view), size):
            self._send(BytesMessage(data=bytes(view[start : start + size])))

    def close(self) -> None:
        if self._phase is WebsocketPhase.OPEN:
            self._send(CloseConnection(code=1000))
        self._phase = WebsocketPhase.CLOSED
        if self._raw is not None:
            self._raw.close()

    def abort(self) -> None:
        self._phase = WebsocketPhase.CLOSED
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    # --- frames --------------------------------------------------------------------------------

    def _send(self, event: Event) -> None:
        if self._raw is not None:
            self._raw.write(self._ws.send(event))

    def _fail(self, text: str) -> None:
        error = DisconnectedError(text)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # mark as retrieved: nothing waits for it if the connect was cancelled
        self._phase = WebsocketPhase.CLOSED
        self._connection.abort(error)
        if self._raw is not None:
            self._raw.abort()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._hand_over(event.data)
        elif isinstance(event, TextMessage):
            self._hand_over(event.data.encode())
        elif isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, AcceptConnection):
            self._is_compressed = bool(event.extensions)
            self._phase = WebsocketPhase.OPEN
            self._connection.connection_made(self)
            self.opened.set_result(None)
        elif isinstance(event, RejectConnection):
            self._fail(f"{self._url} refused the WebSocket handshake with HTTP status {event.status_code}")
        elif isinstance(event, CloseConnection):
            self._on_close(event)

    def _on_close(self, event: CloseConnection) -> None:
        # wsproto reports frames that break the protocol as a close, too; only a real one changes its state.
        reason = f": {event.reason}" if event.reason else ""
        if self._ws.state is ConnectionState.OPEN:
            self._fail(f"{self._url} broke the WebSocket protocol{reason}")
            return
        if self._phase is WebsocketPhase.OPEN:
            self._send(event.response())
        self._phase = WebsocketPhase.CLOSED
        if self._raw is not None:
            self._raw.close()

    def _hand_over(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        while rest and self._phase is WebsocketPhase.OPEN:
            with self._connection.get_buffer(len(rest)) as buffer:
                count = min(len(rest), len(buffer))
                buffer[:count] = rest[:count]
            self._connection.buffer_updated(count)
            rest = rest[count:]
