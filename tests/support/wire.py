"""Raw transcripts with a server: bytes sent, bytes received, and whether the connection stayed open."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any

TIMEOUT_S = 10.0
READ_BYTES = 1 << 16


class Wire:
    """A blocking socket to a server, INFO already read (as `info`)."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(("127.0.0.1", port))
        self.buffer = b""
        self.info: dict[str, Any] = json.loads(self.until(b"\r\n").split(b" ", 1)[1])

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def encrypt(self, context: ssl.SSLContext) -> None:
        """TLS from here on."""
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")

    def connect(self, **settings: object) -> Wire:
        """CONNECT with settings; returns once the server has answered a PING."""
        defaults = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        self.send(b"CONNECT " + json.dumps(defaults | settings).encode() + b"\r\nPING\r\n")
        self.until(b"PONG\r\n")
        return self

    def until(self, end: bytes) -> bytes:
        """Everything up to and with `end`."""
        while end not in self.buffer:
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError(f"closed after {self.buffer!r}, expected {end!r}")
            self.buffer += data
        at = self.buffer.index(end) + len(end)
        found, self.buffer = self.buffer[:at], self.buffer[at:]
        return found

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        try:
            while data := self.sock.recv(READ_BYTES):
                self.buffer += data
        except ConnectionResetError:  # what was not read on the other side makes a close a reset
            pass
        found, self.buffer = self.buffer, b""
        return found

    def ask(self, data: bytes) -> bytes:
        """Sends, and returns everything that was answered before the PONG of a PING sent after it."""
        self.send(data + b"PING\r\n")
        return self.until(b"PONG\r\n").removesuffix(b"PONG\r\n")

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()


def send_slowly(wire: Wire, pieces: Iterable[bytes]) -> None:
    """Each piece in a segment of its own; stops when the server has closed."""
    wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for piece in pieces:
            wire.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        return


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Returns as soon as the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for: {what}")
        time.sleep(0.002)
