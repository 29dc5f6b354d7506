"""A WebSocket between a connection and a fake socket; the server's side is wsproto's."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

from penstock.client.connection import Connection
from penstock.client.info import ConnectRequest
from penstock.client.options import Options
from penstock.client.servers import parse_server_url
from penstock.client.websocket_transport import MESSAGE_BYTES, WebsocketTransport, header_pairs
from penstock.errors import DisconnectedError, MisuseError
from penstock.kernels.wire.output import OutBuffer
from tests.support.client_fakes import INFO, FakeTransport, RecordingOwner

pytestmark = pytest.mark.feature("client.websocket")

SMALL_INFO = INFO.replace(b"1048576", b"300")


class Socket:
    """Both ends: a client's connection over a fake transport, and a server that takes what it writes."""

    def __init__(self, url: str = "ws://h:8080", *, compression: bool = False, step: int = 0) -> None:
        self.owner = RecordingOwner()
        self.out = OutBuffer()
        parsed = parse_server_url(url)
        self.connection = Connection(self.owner, parsed, self.out, Options())
        self.websocket = WebsocketTransport(
            self.connection, parsed, [(b"X-A", b"b")], compression=compression
        )
        self.transport = FakeTransport(self.websocket)
        self.server = WSConnection(ConnectionType.SERVER)
        self.step = step
        self.websocket.connection_made(self.transport)

    def feed(self, data: bytes) -> None:
        size = self.step or len(data) or 1
        for start in range(0, len(data), size):
            self.websocket.data_received(data[start : start + size])

    def send(self, *events: Any) -> None:
        self.feed(b"".join(self.server.send(event) for event in events))

    def received(self) -> list[Any]:
        self.server.receive_data(self.transport.take())
        return list(self.server.events())

    def sent(self) -> bytes:
        return b"".join(event.data for event in self.received() if isinstance(event, BytesMessage))

    async def open(self, info: bytes = INFO, **accept: Any) -> None:
        """The handshakes of WebSocket and NATS."""
        self.received()
        self.send(AcceptConnection(**accept), BytesMessage(info))
        task = asyncio.ensure_future(self.connection.handshake(ConnectRequest()))
        await asyncio.sleep(0)
        assert self.sent().endswith(b"PING\r\n")
        self.send(BytesMessage(b"PONG\r\n"))
        await task


def test_the_request_has_host_path_and_headers() -> None:
    async def main() -> None:
        socket = Socket("ws://h:8080/nats?x=1")
        [request] = socket.received()
        assert isinstance(request, Request)
        assert (request.host, request.target, request.extensions) == ("h:8080", "/nats?x=1", [])
        assert (b"x-a", b"b") in request.extra_headers

    asyncio.run(main())


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("compression", [False, True])
async def test_messages_arrive_however_the_bytes_are_cut(compression: bool, step: int) -> None:
    socket = Socket(compression=compression, step=step)
    extensions = [PerMessageDeflate()] if compression else []
    await socket.open(extensions=extensions)
    payload = b"x" * 300
    socket.send(
        BytesMessage(b"MSG a 1 300\r\n" + payload[:100], message_finished=False),
        Ping(b"still there?"),
        BytesMessage(payload[100:], message_finished=True),
        TextMessage("\r\nMSG b 1 "),
        BytesMessage(b"2\r\nyz\r\n"),
    )
    assert [(raw[1], raw[4]) for raw in socket.owner.messages] == [(b"a", payload), (b"b", b"yz")]
    assert [event for event in socket.received() if isinstance(event, Pong)] == [Pong(b"still there?")]


async def test_large_output_leaves_in_messages_of_a_limited_size() -> None:
    socket = Socket()
    await socket.open()
    data = bytes(range(256)) * (MESSAGE_BYTES // 100)
    socket.out.write(data)
    socket.connection.flush()
    messages = [event for event in socket.received() if isinstance(event, BytesMessage)]
    assert b"".join(bytes(event.data) for event in messages) == data
    assert sum(event.message_finished for event in messages) == -(-len(data) // MESSAGE_BYTES)


async def test_a_compressed_message_is_not_larger_than_max_payload() -> None:
    """The official server inflates a message up to max_payload, and closes the connection above."""
    socket = Socket(compression=True)
    await socket.open(SMALL_INFO, extensions=[PerMessageDeflate()])
    socket.out.write(b"y" * 1000)
    socket.connection.flush()
    written = bytes(socket.transport.written)
    sizes, message = [], 0
    socket.server.receive_data(written)
    for event in socket.server.events():
        assert isinstance(event, BytesMessage)
        message += len(event.data)
        if event.message_finished:
            sizes.append(message)
            message = 0
    assert sizes == [300, 300, 300, 100]
    assert len(written) < 200


async def test_without_the_servers_consent_nothing_is_compressed() -> None:
    socket = Socket(compression=True)
    await socket.open()
    socket.out.write(b"y" * 1000)
    socket.connection.flush()
    assert socket.sent() == b"y" * 1000


async def test_closing_sends_a_close_frame() -> None:
    socket = Socket()
    await socket.open()
    socket.connection.close()
    assert [type(event) for event in socket.received()] == [CloseConnection]
    await asyncio.sleep(0)
    assert socket.owner.lost == [None]


async def test_a_close_frame_of_the_server_is_answered_and_ends_the_connection() -> None:
    socket = Socket()
    await socket.open()
    socket.send(CloseConnection(code=1001))
    assert [type(event) for event in socket.received()] == [CloseConnection]
    await asyncio.sleep(0)
    [error] = socket.owner.lost
    assert isinstance(error, DisconnectedError)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            RejectConnection(status_code=404),
            "ws://h:8080 refused the WebSocket handshake with HTTP status 404",
        ),
        (INFO, "ws://h:8080 is a port for nats://, not for WebSocket"),
        (b"220 smtp.example.com\r\n\r\n", "ws://h:8080 does not speak WebSocket: "),
        (b"", "ws://h:8080 closed the connection during the WebSocket handshake"),
    ],
    ids=["404", "a NATS port", "another port", "closed"],
)
async def test_a_failed_handshake_says_why(answer: Any, text: str) -> None:
    socket = Socket()
    socket.received()
    if isinstance(answer, bytes):
        socket.feed(answer)
        socket.transport.abort()
    else:
        socket.send(answer)
    with pytest.raises(DisconnectedError) as caught:
        await socket.websocket.opened
    assert str(caught.value).startswith(text)
    assert socket.transport.lost


async def test_frames_that_break_the_protocol_end_the_connection_with_the_reason() -> None:
    socket = Socket()
    await socket.open()
    socket.feed(b"\x82\x85abcd")  # masked, as only clients do
    await asyncio.sleep(0)
    [error] = socket.owner.lost
    assert "broke the WebSocket protocol" in str(error)


async def test_headers_come_from_a_mapping_or_a_function() -> None:
    async def later() -> dict[str, Any]:
        return {"A": ["1", "2"], "B": "3"}

    expected = [(b"A", b"1"), (b"A", b"2"), (b"B", b"3")]
    for given in ({"A": ("1", "2"), "B": "3"}, lambda: {"A": ["1", "2"], "B": "3"}, later):
        assert await header_pairs(given) == expected
    assert await header_pairs(None) == []
    with pytest.raises(MisuseError, match="no HTTP header"):
        await header_pairs({"A": "1\r\nB: 2"})


def test_the_info_of_a_small_server_is_what_the_test_takes_it_for() -> None:
    assert json.loads(SMALL_INFO[5:])["max_payload"] == 300
