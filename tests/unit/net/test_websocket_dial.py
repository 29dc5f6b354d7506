"""The dialling side of a WebSocket: its handshake, however the answer is split."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request

from penstock.net.websocket_dial import DialledWebsocket

PARTS = (b"INFO {} \r\n", b"x" * 9000)


class FakeSocket:
    def __init__(self) -> None:
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class FakeBudget:
    crowded = False

    def begin_part(self) -> None: ...

    def end_part(self) -> None: ...

    def is_over(self) -> bool:
        return False


class FakeConnection:
    """Takes input at once, except that a turn has to be waited for."""

    close_reason = None
    max_payload = 1 << 20

    def __init__(self) -> None:
        self.got = b""
        self.budget = FakeBudget()
        self._room = bytearray(4096)
        self._transport: Any = None
        self.is_waiting = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, size: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, count: int) -> None:
        self.got += self._room[:count]

    def queue_part(self) -> None:
        self._transport.pause_reading()
        self.is_waiting = True

    def end_full_read(self) -> None:
        self.queue_part()

    def take_turn(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self._transport.resume_reading()


class Dial:
    """A dialling layer, and what a server answers."""

    def __init__(self) -> None:
        self.raw, self.connection = FakeSocket(), FakeConnection()
        connected: Any = lambda: self.connection  # noqa: E731
        self.layer = DialledWebsocket(
            connected, "h:1", "/leafnode", compression=False, handshake_timeout_s=2.0, log_error=print
        )
        raw: Any = self.raw
        self.layer.connection_made(raw)

    def answer(self) -> bytes:
        server = WSConnection(ConnectionType.SERVER)
        server.receive_data(self.raw.written)
        (request,) = server.events()
        assert isinstance(request, Request)
        assert request.target == "/leafnode"
        return server.send(AcceptConnection()) + b"".join(server.send(BytesMessage(part)) for part in PARTS)

    def feed(self, data: bytes) -> None:
        while data:
            room = self.layer.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.layer.buffer_updated(count)
            data = data[count:]
            self.connection.take_turn()


@pytest.mark.parametrize("size", [1, 7, 150, 1 << 20])
async def test_frames_behind_the_answer_arrive_however_they_are_split(size: int) -> None:
    dial = Dial()
    answer = dial.answer()
    for at in range(0, len(answer), size):
        dial.feed(answer[at : at + size])
    await asyncio.wait_for(dial.layer.opened, 10)
    assert dial.connection.got == b"".join(PARTS)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: wrong\r\n\r\n"
        ),
        b"INFO {}\r\n",
        b"\xff\xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000,
    ],
    ids=["refused", "wrong-key", "no-websocket", "garbage", "endless"],
)
async def test_a_wrong_answer_ends_the_dial(answer: bytes) -> None:
    dial = Dial()
    dial.feed(answer)
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(dial.layer.opened, 10)
    assert dial.raw.is_aborted
    assert dial.connection.got == b""
