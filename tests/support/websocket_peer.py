"""A blocking WebSocket client of a server of either kind, in a few lines."""

from __future__ import annotations

import json
import re
import socket
import zlib
from typing import Any

from tests.support.processes import Served

HEAD = """GET {path} HTTP/1.1\r
Host: localhost\r
Upgrade: websocket\r
Connection: Upgrade\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
Sec-WebSocket-Version: 13\r
{lines}\r
"""
MASK = b"\x01\x02\x03\x04"


class Peer:
    """A blocking WebSocket client that sends one frame for each text, masked or not."""

    def __init__(self, server: Served, *lines: str, path: str = "/", masked: bool = True) -> None:
        found = re.findall(r"websocket clients on ws://\S+:(\d+)", server.log)
        self.sock = socket.create_connection(("127.0.0.1", int(found[-1])), timeout=10)
        self.sock.sendall(HEAD.format(path=path, lines="".join(f"{line}\r\n" for line in lines)).encode())
        self.masked = masked
        self.buffer = b""
        self.status, *self.headers = self.until(b"\r\n\r\n").decode().split("\r\n")
        self.text = b""
        self.compressed: list[bool] = []

    def until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            self.fill()
        found, self.buffer = self.buffer.split(end, 1)
        return found

    def fill(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("closed")
        self.buffer += data

    def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self.fill()
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def send(self, text: str) -> None:
        data = text.encode()
        masked = 0x80 if self.masked else 0
        size = (
            bytes([masked | len(data)])
            if len(data) < 126
            else bytes([masked | 126]) + len(data).to_bytes(2, "big")
        )
        body = MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(data)) if self.masked else data
        self.sock.sendall(b"\x82" + size + body)

    def line(self) -> str:
        """The next line of the NATS protocol."""
        while b"\r\n" not in self.text:
            first, size = self.exactly(2)
            if size == 126:
                size = int.from_bytes(self.exactly(2), "big")
            body = self.exactly(size)
            if first & 0x0F == 8:
                raise ConnectionError("a close frame")
            self.compressed.append(bool(first & 0x40))
            self.text += zlib.decompressobj(-15).decompress(body + b"\0\0\xff\xff") if first & 0x40 else body
        found, self.text = self.text.split(b"\r\n", 1)
        return found.decode()

    def info(self) -> Any:
        return json.loads(self.line().removeprefix("INFO "))

    def connect(self, **fields: object) -> str:
        """What answers a PING behind CONNECT."""
        self.send(f"CONNECT {json.dumps({'verbose': False, 'pedantic': False, **fields})}\r\nPING\r\n")
        return self.line()
