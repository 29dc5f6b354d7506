"""Listening sockets, created before the event loop and the slow imports.

A client that connects during start-up waits in the socket's queue and gets INFO when the server is ready.
Test suites that probe the port only once, with a timeout of 100 ms, then succeed.

Rejected: one IPv6 socket for both families, as in Go. Every IPv4 peer would appear as `::ffff:a.b.c.d`, and
networks in permissions and monitoring would need to convert it back.
"""

from __future__ import annotations

import errno
import os
import socket

from penstock.errors import ServerError

DEFAULT_HOST = "0.0.0.0"
DEFAULT_PORT = 4222
ANY_PORT = -1  # value of the option; 0 for a socket
PORT_MAX = 65535  # as in protocol/hosts.py, whose import would delay the first listener
BACKLOG = 4096
WILDCARDS = ("", "0.0.0.0", "::")
FREE_PORT_TRIES = 16


def listen(host: str, port: int, backlog: int = BACKLOG) -> list[socket.socket]:
    """Returns bound, listening sockets of an address, all on the same port. Port 0 takes a free one.

    A wildcard address listens on IPv4 and, if available, IPv6, as the official server does.
    Raises OSError when an address cannot be bound; no socket stays open then.
    """
    for _ in range(FREE_PORT_TRIES if port == 0 else 1):
        made: list[socket.socket] = []
        try:
            for family, address in _addresses(host, port):
                _add(made, family, address, backlog)
        except OSError as error:
            _close(made)
            if port == 0 and made and error.errno == errno.EADDRINUSE:
                continue  # the port is free in one address family and used in the other
            raise
        return made
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def failure(host: str, port: int, error: OSError) -> str:
    """Why `listen` failed. Begins like the official server's line, which scripts search for."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    reason = (error.strerror or str(error)).lower()
    advice = "; is another server running there?" if error.errno == errno.EADDRINUSE else ""
    return f'Error listening on port: {where}, "listen tcp {where}: bind: {reason}"{advice}'


def listen_for_clients(host: str, port: int) -> list[socket.socket]:
    """`listen` for the options `host` and `port`, where 0 is the default port and -1 any free port.

    Raises ServerError when the address cannot be bound.
    """
    port = {0: DEFAULT_PORT, ANY_PORT: 0}.get(port, port)
    try:
        return listen(host, port)
    except OSError as error:
        raise ServerError(failure(host, port, error)) from error


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    if host in WILDCARDS:
        both = [(int(socket.AF_INET), ("0.0.0.0", port)), (int(socket.AF_INET6), ("::", port))]
        return both if socket.has_ipv6 else both[:1]
    # A str would import the IDNA codec first, which takes longer than the rest of this module.
    name = host.encode() if host.isascii() else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((int(family), (str(address[0]), port)) for family, _, _, _, address in found))


def _add(made: list[socket.socket], family: int, address: tuple[str, int], backlog: int) -> None:
    """Binds one more socket, on the port of the first. Skips IPv6 when the kernel lacks it."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if made and error.errno == errno.EAFNOSUPPORT:
            return
        raise
    try:
        if os.name == "posix":  # on Windows it would allow two servers on one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((address[0], made[0].getsockname()[1] if made else address[1]))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if made and error.errno == errno.EADDRNOTAVAIL:
            return
        raise
    made.append(sock)


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
