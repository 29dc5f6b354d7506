"""A TCP proxy in front of a server that cuts a connection after its n-th protocol frame, of both directions.

It forwards frame by frame, so that "after the n-th frame" means a step of the protocol and not a number of
bytes: PING, MSG with its payload, SUB and so on. Only one connection is cut; later ones pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_WITH_PAYLOAD = (b"PUB ", b"HPUB ", b"MSG ", b"HMSG ")


def frame_at_start(data: bytes | bytearray) -> int:
    """Size of the first frame in the data, 0 while it is incomplete."""
    end = data.find(b"\r\n") + 2
    if end < 2:
        return 0
    if data.startswith(_WITH_PAYLOAD):
        end += int(data[: end - 2].rsplit(b" ", 1)[1]) + 2
    return end if len(data) >= end else 0


class FrameProxy:
    """cut_after: frames of the first connection after which it is cut; 0: never. frames: what was forwarded
    before, as "> SUB" (to the server) and "< MSG"."""

    def __init__(self, port: int, cut_after: int) -> None:
        self._port = port
        self._cut_after = cut_after
        self.frames: list[str] = []
        self.was_cut = False
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        is_first = self.connections == 1
        try:
            upstream, server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, server)
        self._writers.update(pair)
        ways = [
            asyncio.ensure_future(self._forward(reader, server, ">", counted=is_first)),
            asyncio.ensure_future(self._forward(upstream, writer, "<", counted=is_first)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for one in pair:  # what was forwarded is delivered before the end
                one.close()
            self._writers.difference_update(pair)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mark: str, *, counted: bool
    ) -> None:
        buffer = bytearray()
        while data := await reader.read(65536):
            buffer += data
            while size := frame_at_start(buffer):
                frame = bytes(buffer[:size])
                del buffer[:size]
                if counted and self.was_cut:
                    return
                writer.write(frame)
                if counted:
                    self.frames.append(f"{mark} {frame.split(None, 1)[0].decode()}")
                    if len(self.frames) == self._cut_after:
                        self.was_cut = True
                        return
            await writer.drain()

    def close(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def frame_proxy(url: str, cut_after: int = 0) -> AsyncIterator[tuple[FrameProxy, str]]:
    """The proxy and its URL, in front of the server at a URL."""
    proxy = FrameProxy(int(url.rsplit(":", 1)[1]), cut_after)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        proxy.close()
