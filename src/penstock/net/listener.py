"""The listening socket of a server, and the connections that came in by it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.net.sockets import BACKLOG, listen

if TYPE_CHECKING:
    import ssl


class Listener:
    """Accepts connections.

    Args:
        accept: makes the protocol object of a new socket.
    """

    def __init__(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._accept = accept
        self._servers: list[asyncio.Server] = []  # one a socket
        self.host = ""
        self.port = 0

    async def open(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Binds and listens. Port 0 takes any free port; `self.port` then says which. With a context,
        everything is encrypted from the first byte on. sockets: listen already, on that address.

        Raises OSError when the address can't be bound.
        """
        await self._serve(sockets or listen(host, port), context)
        self.host = host
        self.port = cast(int, self._servers[0].sockets[0].getsockname()[1])

    async def _serve(self, sockets: list[socket.socket], context: ssl.SSLContext | None) -> None:
        create = asyncio.get_running_loop().create_server
        self._servers = [
            await create(self._accept, sock=sock, backlog=BACKLOG, ssl=context) for sock in sockets
        ]

    async def renew(self, context: ssl.SSLContext) -> None:
        """Encrypts what is accepted from now on with another context. Who is connecting meanwhile notices
        nothing: the new server listens on the same sockets."""
        before = self._servers
        listening = [sock for server in before for sock in server.sockets]
        await self._serve([socket.socket(fileno=os.dup(sock.fileno())) for sock in listening], context)
        for server in before:
            server.close()

    def close(self) -> None:
        """Stops listening; accepted connections stay."""
        for server in self._servers:
            server.close()
        self._servers = []
