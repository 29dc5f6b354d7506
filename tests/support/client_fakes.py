"""Fakes for the client's unit tests: a transport that records, an owner that records, a scripted server."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.client.connection import Connection
from penstock.client.info import ServerInfo
from penstock.client.message import RawMessage

INFO = b'INFO {"server_id":"FAKE","version":"2.14.0","proto":1,"headers":true,"max_payload":1048576}\r\n'


class FakeTransport(asyncio.Transport):
    """Keeps what is written; closing tells the protocol in the next tick, as real transports do."""

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written = bytearray()
        self.lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.lost, "written after the transport was closed"
        self.written += data

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.lost:
            self.lost = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default


class RecordingOwner:
    """A ConnectionOwner that records its calls."""

    def __init__(self) -> None:
        self.messages: list[RawMessage] = []
        self.infos: list[ServerInfo] = []
        self.texts: list[str] = []
        self.lost: list[Exception | None] = []

    def on_messages(self, batch: list[RawMessage], size: int) -> None:
        self.messages += batch
        assert size == sum(len(raw[3] or b"") + len(raw[4]) for raw in batch)

    def on_info(self, info: ServerInfo) -> None:
        self.infos.append(info)

    def on_server_error(self, text: str) -> None:
        self.texts.append(text)

    def on_lost(self, connection: Connection, error: Exception | None) -> None:
        self.lost.append(error)


def feed(connection: Connection, data: bytes, step: int = 0) -> None:
    """Bytes from the wire, at most `step` at a time (0: all at once)."""
    while data:
        view = connection.get_buffer(-1)
        count = min(len(view), step or len(data), len(data))
        view[:count] = data[:count]
        del view  # the parser may move its buffer only when no view is alive
        connection.buffer_updated(count)
        data = data[count:]


class ScriptedPeer:
    """The server's side of one accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def line(self) -> bytes:
        """The next line without its CRLF; b"" at the end of the connection."""
        return (await self._reader.readline()).rstrip(b"\r\n")

    async def exactly(self, count: int) -> bytes:
        """The next `count` bytes."""
        return await self._reader.readexactly(count)

    async def lines_until(self, last: bytes) -> list[bytes]:
        """The lines before `last`, which is read too."""
        lines: list[bytes] = []
        while (line := await self.line()) != last:
            assert line or not self._reader.at_eof(), f"the client closed before {last!r}; it sent {lines}"
            lines.append(line)
        return lines

    async def handshake(self, info: bytes = INFO) -> bytes:
        """The usual start of a session; returns the CONNECT line."""
        self.send(info)
        connect = await self.line()
        assert await self.line() == b"PING"
        self.send(b"PONG\r\n")
        return connect

    async def secure(self, context: ssl.SSLContext) -> None:
        """The server's side of a TLS handshake."""
        await self._writer.start_tls(context)

    def hang_up(self) -> None:
        self._writer.transport.abort()


Script = Callable[[ScriptedPeer, int], Awaitable[None]]


@asynccontextmanager
async def scripted_server(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on a free port that runs `script(peer, number)` for each connection, numbered from 0.

    tls: encrypt from the first byte on. An assertion that fails in a script fails the test. Yields the URL.
    """
    failures: list[BaseException] = []
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        number, count = count, count + 1
        try:
            await script(ScriptedPeer(reader, writer), number)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            failures.append(error)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.close()
    if failures:
        raise failures[0]
