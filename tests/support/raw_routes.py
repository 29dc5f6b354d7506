"""A peer of a route by hand: lines out, bytes in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.nats_servers import until


class RawRoute:
    """A server without a pool."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.data = b""
        self.is_open = True
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, port: int, name: str, *, cluster: str = "c", gossip_mode: int = 1) -> RawRoute:
        """A registered peer. By default others are not told of it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        raw = cls(reader, writer)
        await until(lambda: b"INFO" in raw.data)
        identity = f'"server_id":"ID-{name}","server_name":"{name}","cluster":"{cluster}"'
        connect = f'{{"name":"ID-{name}","headers":true,"cluster":"{cluster}","lnoc":true}}'
        about = (
            f'"proto":3,"headers":true,"host":"127.0.0.1","port":1,"gossip_mode":{gossip_mode},"nonce":"n"'
        )
        await raw.send(f"CONNECT {connect}\r\nINFO {{{identity},{about}}} \r\nPING\r\n".encode())
        await until(lambda: b"PONG" in raw.data)
        return raw

    async def _read(self) -> None:
        while data := await self._reader.read(65536):
            self.data += data
            if b"PING\r\n" in data:
                await self.send(b"PONG\r\n")
        self.is_open = False

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def take(self) -> bytes:
        """What has arrived since the last call."""
        data, self.data = self.data, b""
        return data

    def has(self, wanted: bytes) -> Callable[[], bool]:
        return lambda: wanted in self.data

    async def pause(self) -> None:
        """Reads nothing more."""
        self._task.cancel()

    async def resume(self) -> None:
        """Reads again."""
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()


async def exchange(port: int, sent: bytes) -> bytes:
    """Sends to a route port; returns everything that came until the server closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    got = b""
    async with asyncio.timeout(10):
        try:
            while data := await reader.read(65536):
                got += data
        except ConnectionResetError:
            pass
    writer.close()
    return got
