"""Connections through an HTTP proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.net.http_tunnel import HEAD_MAX, TunnelError, open_tunnel
from penstock.testing.clusters.reserved_ports import free_port

OK = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n"

pytestmark = pytest.mark.feature("cluster.leaf-nodes")


@asynccontextmanager
async def answering(response: bytes, *, pieces: int = 1 << 16) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that answers every request with these bytes: (its port, the requests)."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        for at in range(0, len(response), pieces):
            writer.write(response[at : at + pieces])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


async def read_all(port: int, **options: str) -> bytes:
    made = await open_tunnel(("127.0.0.1", port), "hub:7422", timeout_s=10, **options)
    reader, writer = await asyncio.open_connection(sock=made)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("pieces", [1, 7, 1 << 16])
async def test_what_follows_the_response_stays_in_the_socket(pieces: int) -> None:
    async with answering(OK + b"INFO {}\r\n", pieces=pieces) as (port, asked):
        assert await read_all(port) == b"INFO {}\r\n"
    assert asked == [b"CONNECT hub:7422 HTTP/1.1\r\nHost: hub:7422\r\n\r\n"]


async def test_user_and_password_go_to_the_proxy() -> None:
    async with answering(OK) as (port, asked):
        await read_all(port, user="u", password="p:q")
    assert b"Proxy-Authorization: Basic dTpwOnE=\r\n" in asked[0]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "CONNECT failed: '407 Proxy Auth"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "CONNECT failed"),
        (b"INFO {}\r\n\r\n", "no HTTP response: 'INFO {}'"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection without a response"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_MAX, "no end within 8192 bytes"),
    ],
)
async def test_a_response_that_is_not_200_is_an_error_that_says_so(response: bytes, text: str) -> None:
    async with answering(response) as (port, _):
        with pytest.raises(TunnelError, match=f"proxy 127.0.0.1:{port}: .*{text}"):
            await read_all(port)


async def test_a_proxy_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TunnelError, match=r"proxy 127\.0\.0\.1:.*refused"):
        await read_all(free_port())


async def test_a_proxy_that_does_not_answer_is_given_up() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TunnelError, match=r"no answer within 0\.05 s"):
            await open_tunnel(("127.0.0.1", port), "hub:7422", timeout_s=0.05)
