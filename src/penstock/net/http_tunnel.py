"""Connections through an HTTP proxy: a socket on which the proxy has answered CONNECT.

The response is read byte by byte: a hub speaks first, and what it sends must stay in the socket for the
protocol that follows. A response has few bytes, and HEAD_MAX at most.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket

HEAD_MAX = 8192
HEAD_END = b"\r\n\r\n"


class TunnelError(ConnectionError):
    """The proxy is not reachable, or does not connect to the host. An OSError, as a refused connection is."""


async def open_tunnel(
    proxy: tuple[str, int], target: str, *, user: str = "", password: str = "", timeout_s: float
) -> socket.socket:
    """Connects to a host through a proxy.

    Args:
        proxy: host and port of the proxy.
        target: host:port of the host.
        user, password: for the proxy (Basic); "" = it asks for none.
        timeout_s: time limit for connection and response together.

    Returns the socket, not blocking, from which nothing of the host has been read. Raises TunnelError.
    """
    loop = asyncio.get_running_loop()
    where = f"proxy {proxy[0]}:{proxy[1]}"
    try:
        async with asyncio.timeout(timeout_s):
            made = await _connect(loop, proxy)
            try:
                await loop.sock_sendall(made, request(target, user, password))
                check_response(await _head(loop, made))
            except BaseException:
                made.close()
                raise
            return made
    except TunnelError as error:
        raise TunnelError(f"{where}: {error}") from error
    except TimeoutError as error:
        raise TunnelError(f"{where}: no answer within {timeout_s:g} s") from error
    except OSError as error:
        code = error.errno or 0  # of the resolver: negative, with a text of its own
        text = os.strerror(code) if code > 0 else error.strerror or str(error)
        raise TunnelError(f"{where}: {text}") from error


async def _connect(loop: asyncio.AbstractEventLoop, proxy: tuple[str, int]) -> socket.socket:
    failed: OSError = TunnelError("has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(*proxy, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            failed = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failed


async def _head(loop: asyncio.AbstractEventLoop, made: socket.socket) -> bytes:
    head = b""
    while not head.endswith(HEAD_END):
        byte = await loop.sock_recv(made, 1)
        if not byte:
            raise TunnelError("closed the connection without a response")
        head += byte
        if len(head) > HEAD_MAX:
            raise TunnelError(f"its response has no end within {HEAD_MAX} bytes")
    return head


def request(target: str, user: str, password: str) -> bytes:
    """The CONNECT request for host:port."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if user:
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        lines.append(f"Proxy-Authorization: Basic {token}")
    return "\r\n".join((*lines, "", "")).encode()


def check_response(head: bytes) -> None:
    """Raises TunnelError if the response does not say that the host is connected."""
    status = head.partition(b"\r\n")[0].decode("latin-1")
    version, _, reason = status.partition(" ")
    if not version.startswith("HTTP/1."):
        raise TunnelError(f"no HTTP response: {status[:100]!a}")
    if reason.split(" ")[0] != "200":
        raise TunnelError(f"CONNECT failed: {reason[:100]!a}")
