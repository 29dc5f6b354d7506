"""Bytes that go straight to a socket and bytes that go through its transport: one stream, in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from penstock.server.server import Server

MESSAGES_A_ROUND = 60_000
ROUNDS = 12
READ_A_ROUND = 100_000


class Peer:
    """A client's socket, read and written by the same loop as the server."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int, receive_buffer: int | None = None) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        peer = cls(sock)
        await peer.loop.sock_connect(sock, ("127.0.0.1", port))
        await peer.send(b'CONNECT {"verbose":false}\r\n')
        await peer.ask(b"")
        return peer

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def ask(self, data: bytes) -> None:
        """Returns when the server has worked through it."""
        await self.send(data + b"PING\r\n")
        heard = b""
        while b"PONG\r\n" not in heard:
            heard = heard[-8:] + await self.loop.sock_recv(self.sock, 65536)

    async def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await self.loop.sock_recv(self.sock, size - len(data))
        return bytes(data)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_reader_that_lags_gets_everything_in_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk() -> None:
        async with Server() as server:
            reader, writer = (
                await Peer.connect(server.port, receive_buffer=4096),
                await Peer.connect(server.port),
            )
            await reader.ask(b"SUB a 1\r\n")
            session = next(iter(server.sessions.values()))
            session.keep_alive.stop()  # no PING among the messages
            straight: list[bool] = []
            expected, got = bytearray(), bytearray()
            for n in range(ROUNDS):
                numbers = [b"%09d" % i for i in range(n * MESSAGES_A_ROUND, (n + 1) * MESSAGES_A_ROUND)]
                expected += b"".join(b"MSG a 1 9\r\n%s\r\n" % number for number in numbers)
                await writer.ask(b"".join(b"PUB a 9\r\n%s\r\n" % number for number in numbers))
                straight.append(session.sink.socket >= 0)
                # Every fourth round it catches up, so that the socket is written to straight again.
                size = len(expected) - len(got) if n % 4 == 3 else READ_A_ROUND
                got += await reader.read(size)
            got += await reader.read(len(expected) - len(got))
            assert got == expected
            assert set(straight) == {True, False}, "both ways were taken"
            reader.sock.close()
            writer.sock.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(talk(), 60))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_flood_beside_a_client_with_little_to_do_arrives_whole_and_in_order(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk() -> None:
        async with Server() as server:
            flood, reader, bystander = [await Peer.connect(server.port) for _ in range(3)]
            await reader.ask(b"SUB a 1\r\n")
            for session in server.sessions.values():
                session.keep_alive.stop()
            numbers = [b"%09d" % number for number in range(MESSAGES_A_ROUND)]
            expected = b"".join(b"MSG a 1 9\r\n%s\r\n" % number for number in numbers)
            reading = asyncio.create_task(reader.read(len(expected)))
            sending = asyncio.create_task(flood.send(b"".join(b"PUB a 9\r\n%s\r\n" % n for n in numbers)))
            asked = 0
            while not reading.done():
                await bystander.ask(b"")
                asked += 1
            assert await reading == expected
            assert asked > 3, "it is served between the parts of the flood"
            await sending
            for peer in (flood, reader, bystander):
                peer.sock.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(talk(), 60))


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_new_connection_is_answered_without_its_transport(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def talk() -> None:
        async with Server() as server:
            client = await Peer.connect(server.port)
            session = next(iter(server.sessions.values()))
            assert session.sink.sent_bytes == session.connection.bytes_taken() > len(b"PONG\r\n")
            client.sock.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(talk(), 60))
