"""WebSocket clients: the official Python client's, and frames made by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

import penstock
from penstock.errors import ConfigError
from penstock.net.reasons import CloseReason
from penstock.net.websocket import (
    HandshakeRefused,
    WebsocketLayer,
    WebsocketPolicy,
    check_origin,
    forwarded_for,
)
from penstock.server.config.server_options import ServerOptions, WebsocketOptions
from penstock.server.monitoring.pages.connz import ConnzOptions, connz
from penstock.server.monitoring.pages.page_options import in_pieces
from penstock.server.monitoring.pages.varz import VarzOptions, varz
from penstock.server.server import Server
from tests.support.certificates import make_certificates

pytestmark = pytest.mark.feature("connectivity.websocket")

WAIT_S = 10.0
KEY = base64.b64encode(b"the sample nonce").decode()
DEFLATE_RATIO_MAX = 1032  # the format makes no more of a byte
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(
    opcode: int, payload: bytes = b"", *, final: bool = True, masked: bool = True, rsv: int = 0
) -> bytes:
    """A frame of a client."""
    head = bytes([final << 7 | rsv << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([mask_bit | len(payload)])
    else:
        head += bytes([mask_bit | 126]) + struct.pack(">H", len(payload))
    mask = b"\x01\x02\x03\x04" if masked else b""
    return head + mask + bytes(byte ^ mask[i % 4] if masked else byte for i, byte in enumerate(payload))


def request(*lines: str, path: str = "/", method: str = "GET") -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    head += [f"Sec-WebSocket-Key: {KEY}", "Sec-WebSocket-Version: 13", *lines, "", ""]
    return "\r\n".join(head).encode()


class Peer:
    """One raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.stream = b""

    async def head(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def frame(self) -> tuple[int, bytes]:
        """(first byte, payload) of the next frame of the server."""
        async with asyncio.timeout(WAIT_S):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            return first, await self.reader.readexactly(size)

    async def until(self, wanted: bytes) -> bytes:
        """What the server's binary frames hold, up to where they contain `wanted`."""
        while wanted not in self.stream:
            first, payload = await self.frame()
            assert first == 0x80 | BINARY
            self.stream += payload
        return self.stream

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with make_server() as running:
        yield running


def make_server(**settings: Any) -> Server:
    websocket = WebsocketOptions(**{"host": "127.0.0.1", "port": -1, "no_tls": True, **settings})
    return Server(options=ServerOptions(host="127.0.0.1", port=-1, websocket=websocket))


async def dial(server: Server) -> Peer:
    assert server.websockets is not None
    return Peer(*await asyncio.open_connection("127.0.0.1", server.websockets.port))


async def opened(server: Server, *lines: str) -> Peer:
    """A client after the handshake."""
    peer = await dial(server)
    peer.writer.write(request(*lines))
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    return peer


async def closed_for(server: Server) -> CloseReason:
    async with asyncio.timeout(WAIT_S):
        while not server.sessions.closed:
            await asyncio.sleep(0)
    return server.sessions.closed[0].reason


def url_of(server: Server) -> str:
    assert server.websockets is not None
    return server.websockets.url


@pytest.mark.parametrize("compression", [False, True])
async def test_nats_py_talks_over_websocket(compression: bool) -> None:
    async with make_server(compression=compression) as server:
        ws = await nats.connect(url_of(server))
        async with penstock.connect(server.url) as tcp:
            subscription = await ws.subscribe("big")
            await ws.flush()
            payload = bytes(range(256)) * 3900
            for _ in range(8):
                await tcp.publish("big", payload)
            for _ in range(8):
                assert (await subscription.next_msg(timeout=WAIT_S)).data == payload
            back = await tcp.subscribe("back")
            await tcp.flush()
            await ws.publish("back", payload)
            async with asyncio.timeout(WAIT_S):
                assert (await back.next()).data == payload
        await ws.close()


async def test_nats_py_talks_over_websocket_with_tls(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    async with make_server(no_tls=False, tls=certificates.options()) as server:
        assert url_of(server).startswith("wss://")
        client = await nats.connect(url_of(server), tls=certificates.client_context())
        await client.flush()
        kinds = {(one.connection.kind, one.connection.tls()[0]) for one in server.sessions.values()}
        assert kinds == {("websocket", "1.3")}
        await client.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_frames_split_at_every_byte_or_not_at_all(server: Server, whole: bool) -> None:
    peer = await dial(server)
    talk = (
        frame(TEXT, b"CONNECT {}\r\nSU") + frame(PING, b"hm") + frame(BINARY, b"B a 1\r\nPUB ", final=False)
    )
    talk += frame(0, b"a 5\r\nhe") + frame(BINARY, b"llo\r\n" + b"PING\r\n")
    sent = request() + talk
    for piece in [sent] if whole else [bytes([byte]) for byte in sent]:
        peer.writer.write(piece)
        await peer.writer.drain()
        await asyncio.sleep(0)
    assert (await peer.head()).startswith(b"HTTP/1.1 101 ")
    opcodes, stream = [], b""
    while b"PONG\r\n" not in stream:
        first, payload = await peer.frame()
        opcodes.append(first & 0x0F)
        stream += payload if first & 0x0F == BINARY else b""
    assert PONG in opcodes
    assert b"MSG a 1 5\r\nhello\r\n" in stream


async def test_info_is_of_this_listener(server: Server) -> None:
    peer = await opened(server)
    info = json.loads((await peer.until(b"\r\n")).split(b" ", 1)[1])
    assert server.websockets is not None
    assert info["port"] == server.websockets.port
    assert "tls_required" not in info


async def test_a_close_frame_is_answered(server: Server) -> None:
    peer = await opened(server)
    await peer.until(b"\r\n")
    peer.writer.write(frame(CLOSE, struct.pack(">H", 1000)))
    assert await peer.rest() == bytes([0x80 | CLOSE, 2]) + struct.pack(">H", 1000)
    assert await closed_for(server) is CloseReason.CLIENT_CLOSED


async def test_a_broken_nats_protocol_closes_with_1002(server: Server) -> None:
    peer = await opened(server)
    await peer.until(b"\r\n")
    peer.writer.write(frame(BINARY, b"NONSENSE\r\n"))
    await peer.until(b"-ERR 'Unknown Protocol Operation'\r\n")
    first, payload = await peer.frame()
    assert (first, payload[:2]) == (0x80 | CLOSE, struct.pack(">H", 1002))


async def test_shutdown_closes_with_1001() -> None:
    server = make_server()
    async with server:
        peer = await opened(server)
        await peer.until(b"\r\n")
    first, payload = await peer.frame()
    assert (first, payload[:2]) == (0x80 | CLOSE, struct.pack(">H", 1001))


@pytest.mark.parametrize(
    "bad",
    [frame(BINARY, b"PING\r\n", masked=False), frame(3), frame(BINARY, b"PING\r\n", rsv=7)],
    ids=["unmasked", "unknown opcode", "reserved bits"],
)
async def test_frames_against_the_rules_close_the_connection(server: Server, bad: bytes) -> None:
    peer = await opened(server)
    await peer.until(b"\r\n")
    peer.writer.write(bad)
    assert b"PONG\r\n" not in await peer.rest()
    assert await closed_for(server) is CloseReason.READ_ERROR


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
        (request(method="POST"), b"405 Method Not Allowed"),
        (request(path="/mqtt"), b"404 Not Found"),
        (request().replace(b"localhost", b"\xff\xfe"), b"400 Bad Request"),
        (request(path="//[x"), b"101 "),
        (b"\x16\x03\x01\x00\x05hello\r\n\r\n", b"4"),
    ],
    ids=["no upgrade", "method", "mqtt", "host", "brackets", "no HTTP"],
)
async def test_a_bad_handshake_is_answered_with_its_status(
    server: Server, sent: bytes, status: bytes
) -> None:
    peer = await dial(server)
    peer.writer.write(sent)
    assert (await peer.head()).startswith(b"HTTP/1.1 " + status)
    assert bool(server.sessions) == status.startswith(b"101")


async def test_a_handshake_that_takes_too_long_ends() -> None:
    async with make_server(handshake_timeout_ns=30_000_000) as server:
        peer = await dial(server)
        peer.writer.write(b"GET / HTTP/1.1\r\n")
        assert await peer.rest() == b""


async def test_origins_are_compared_with_the_list() -> None:
    async with make_server(allowed_origins=("https://good.example",)) as server:
        peer = await opened(server, "Origin: https://good.example:443")
        await peer.until(b"\r\n")
        other = await dial(server)
        other.writer.write(request("Origin: https://bad.example"))
        assert (await other.rest()).startswith(b"HTTP/1.1 403 ")


def test_same_origin_means_host_and_port() -> None:
    policy = WebsocketPolicy(same_origin=True)
    check_origin("http://a.example", "a.example:80", policy)
    check_origin("", "a.example", policy)
    for origin in ("http://a.example:81", "http://b.example", "null"):
        with pytest.raises(HandshakeRefused):
            check_origin(origin, "a.example", policy)


def deflated(payload: bytes) -> bytes:
    """A frame with the payload compressed."""
    deflate = zlib.compressobj(wbits=-15)
    packed = deflate.compress(payload) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return frame(BINARY, packed[:-4], rsv=4)


async def test_compressed_messages_can_not_grow_past_the_payload_limit() -> None:
    """A megabyte of zeros that came as a kilobyte."""
    async with make_server(compression=True) as server:
        peer = await opened(server, "Sec-WebSocket-Extensions: permessage-deflate")
        peer.writer.write(deflated(b"PUB " + b"a" * 30_000_000))
        assert await closed_for(server) is CloseReason.MAX_PAYLOAD


async def test_a_ping_between_the_fragments_of_a_compressed_message_changes_nothing() -> None:
    async with make_server(compression=True) as server:
        peer = await opened(server, "Sec-WebSocket-Extensions: permessage-deflate")
        deflate = zlib.compressobj(wbits=-15)
        packed = deflate.compress(b"PING\r\n" * 20) + deflate.flush(zlib.Z_SYNC_FLUSH)
        first, rest = packed[:5], packed[5:-4]
        peer.writer.write(frame(BINARY, first, rsv=4, final=False) + frame(PING, b"?") + frame(0, rest))
        await peer.frame()  # INFO
        pongs, text = [], b""
        while len(text) < len(b"PONG\r\n" * 20) or not pongs:  # in as many messages as there were iterations
            head, body = await peer.frame()
            if head == 0x80 | PONG:
                pongs.append(body)
            else:
                is_packed = head & 0x40
                text += zlib.decompressobj(-15).decompress(body + b"\0\0\xff\xff") if is_packed else body
        assert (pongs, text) == ([b"?"], b"PONG\r\n" * 20)


async def test_a_message_in_fragments_grows_no_more_than_a_whole_one() -> None:
    async with make_server(compression=True) as server:
        peer = await opened(server, "Sec-WebSocket-Extensions: permessage-deflate")
        deflate = zlib.compressobj(wbits=-15)
        opcode, rsv = BINARY, 4
        for _ in range(3):
            packed = deflate.compress(b"PUB x 0\r\n\r\n" * 45_000) + deflate.flush(zlib.Z_SYNC_FLUSH)
            peer.writer.write(frame(opcode, packed, rsv=rsv, final=False) + frame(PING, b"?"))
            opcode, rsv = 0, 0
        assert await closed_for(server) is CloseReason.MAX_PAYLOAD


async def test_compressed_input_becomes_a_bounded_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty megabytes that came as forty kilobytes."""
    sizes: list[int] = []
    hand_over = WebsocketLayer._hand_over

    def noted(layer: WebsocketLayer, data: bytes | bytearray) -> None:
        sizes.append(len(data))
        hand_over(layer, data)

    monkeypatch.setattr(WebsocketLayer, "_hand_over", noted)
    async with make_server(compression=True) as server:
        peer = await opened(server, "Sec-WebSocket-Extensions: permessage-deflate")
        message = b"PUB x 1000000\r\n" + bytes(1_000_000) + b"\r\n"
        peer.writer.write(deflated(message) * 40)
        async with asyncio.timeout(WAIT_S):
            while sum(sizes) < 40 * len(message):
                await asyncio.sleep(0)
    assert sum(sizes) == 40 * len(message)
    assert max(sizes) <= 4096 * DEFLATE_RATIO_MAX


async def test_an_address_that_a_client_claims_is_for_the_log(server: Server) -> None:
    peer = await opened(server, "X-Forwarded-For: 203.0.113.9, 10.0.0.1")
    assert b'"client_ip":"127.0.0.1"' in await peer.until(b"\r\n")
    (session,) = server.sessions.values()
    assert session.name.startswith("203.0.113.9/127.0.0.1:")
    assert forwarded_for("rubbish") == ""


async def test_an_origin_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"good\.example"):
        await make_server(allowed_origins=("good.example",)).start()


async def test_monitoring_log_and_ports_file_show_the_listener(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    websocket = WebsocketOptions(host="127.0.0.1", port=-1, no_tls=True, compression=True)
    options = ServerOptions(host="127.0.0.1", port=-1, websocket=websocket, ports_file_dir=str(tmp_path))
    with caplog.at_level("INFO", "penstock.server"):
        async with Server(options=options) as server:
            peer = await opened(server)
            await peer.until(b"\r\n")
            assert ports_in(tmp_path)["websocket"] == [url_of(server)]
            (entry,) = (await in_pieces(connz(server, ConnzOptions())))["connections"]
            assert entry["type"] == "websocket"
            shown = varz(server, VarzOptions(), {})["websocket"]
            assert (shown["port"], shown["no_tls"]) == (peer.writer.get_extra_info("peername")[1], True)
            assert next(iter(server.sessions.values())).name.endswith(" - wid:1")
    assert f"Listening for websocket clients on {shown_url(shown)}" in caplog.text


def ports_in(directory: Path) -> dict[str, list[str]]:
    (file,) = directory.glob("*.ports")
    found: dict[str, list[str]] = json.loads(file.read_text())
    return found


def shown_url(shown: dict[str, Any]) -> str:
    return f"ws://{shown['host']}:{shown['port']}"
