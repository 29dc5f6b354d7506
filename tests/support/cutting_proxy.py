"""A TCP proxy between a client and a server that cuts connections where a test wants it.

    async with cutting_proxy(server.port) as proxy:
        client = await connect(proxy.url)
        proxy.cut()                 # now
        proxy.cut_at(3)             # instead of the third read from here on, of either side
        proxy.refuse()              # now, and accept no further connection

What one side wrote at once usually comes in one read, so that counting reads walks through the steps of a
protocol: a test repeats an operation with 1, 2, 3 ... until one ends without a cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

READ_BYTES = 64 * 1024


class CuttingProxy:
    """Made by `cutting_proxy`. cuts: connections cut so far."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._refuses = False
        self._left = 0  # reads until the cut; 0: none is planned
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.cuts = 0

    def cut(self) -> None:
        """Abort all connections."""
        self.cuts += bool(self._writers)
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Abort all connections, and those that clients open later."""
        self._refuses = True
        self.cut()

    def cut_at(self, reads: int) -> None:
        """Abort all connections in place of forwarding the `reads`th read from now on; 0: don't."""
        self._left = reads

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        if self._refuses:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            self._writers |= {writer, other_writer}
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, other_writer))
                group.create_task(self._forward(other_reader, writer))
            self._writers -= {writer, other_writer}
        except OSError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if self._left:
                    self._left -= 1
                    if not self._left:
                        self.cut()
                        break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def stop(self) -> None:
        """End all connections and wait for their tasks."""
        for writer in self._writers:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def cutting_proxy(server_port: int) -> AsyncIterator[CuttingProxy]:
    """A proxy in front of the server on this port of the loopback interface."""
    proxy = CuttingProxy(server_port)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.stop()
