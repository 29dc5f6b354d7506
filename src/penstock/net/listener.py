"""A listening socket and the protocol objects of the connections it accepts."""

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
        accept: returns the protocol object of a new socket.
    """

    def __init__(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._accept = accept
        self._servers: list[asyncio.Server] = []  # one per socket
        self.host = ""
        self.port = 0

    async def open(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Binds and listens. Port 0 takes any free port, which `self.port` then holds.

        Args:
            host: address to bind.
            port: port to bind.
            context: encrypts connections from the first byte on; None = plain.
            sockets: sockets that listen on that address already; they are used instead of new ones.

        Raises:
            OSError: the address cannot be bound.
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
        """Uses another context for connections accepted from now on. Connecting clients are not disturbed:
        the new asyncio server listens on the same sockets."""
        before = self._servers
        listening = [sock for server in before for sock in server.sockets]
        await self._serve([socket.socket(fileno=os.dup(sock.fileno())) for sock in listening], context)
        for server in before:
            server.close()

    def close(self) -> None:
        """Stops listening; accepted connections stay open."""
        for server in self._servers:
            server.close()
        self._servers = []
