"""Clients in the server's own process: a pair of sockets in place of a TCP connection.

Such a client sends CONNECT like any other, so that users, permissions, limits and the queue of password
hashes hold for it. TLS is left out: no byte leaves the process. Rejected: calling accounts and streams
directly on behalf of a user. Each call would have to repeat the checks that a connection makes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

_FOR_OTHERS = ("tls_required", "tls_verify", "tls_available", "connect_urls")


def local_info(info: dict[str, Any]) -> dict[str, Any]:
    """The fields of INFO for a client in this process: no TLS, no other servers."""
    return {name: value for name, value in info.items() if name not in _FOR_OTHERS}


async def open_pair(accept: Callable[[], asyncio.BaseProtocol]) -> socket.socket:
    """Gives one socket of a pair to a new server connection, and returns the other. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        theirs.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(accept, ours)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return theirs
