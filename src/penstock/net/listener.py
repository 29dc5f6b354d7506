"""The listening socket of a server, and the connections that came in by it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl

BACKLOG = 4096


class Listener:
    """Accepts connections.

    Args:
        accept: makes the protocol object of a new socket.
    """

    def __init__(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        self._accept = accept
        self._server: asyncio.Server | None = None
        self.host = ""
        self.port = 0

    async def open(self, host: str, port: int, context: ssl.SSLContext | None = None) -> None:
        """Binds and listens. Port 0 takes any free port; `self.port` then says which. With a context,
        everything is encrypted from the first byte on.

        Raises OSError when the address can't be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG, ssl=context)
        self.host = host
        self.port = cast(int, self._server.sockets[0].getsockname()[1])

    async def renew(self, context: ssl.SSLContext) -> None:
        """Encrypts what is accepted from now on with another context. Who is connecting meanwhile notices
        nothing: the new server listens on the same sockets."""
        if self._server is None:
            return
        loop = asyncio.get_running_loop()
        before = self._server
        for listening in before.sockets:
            same = socket.socket(fileno=os.dup(listening.fileno()))
            self._server = await loop.create_server(self._accept, sock=same, backlog=BACKLOG, ssl=context)
        before.close()

    def close(self) -> None:
        """Stops listening; accepted connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
