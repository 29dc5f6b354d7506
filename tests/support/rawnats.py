"""A blocking NATS connection in a few lines, for tests that must not trust the client under test."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

READ_BYTES = 1 << 16


@dataclass(frozen=True)
class RawMessage:
    subject: bytes
    sid: bytes
    reply: bytes
    header: bytes
    payload: bytes


class RawNats:
    """Reads whole frames; everything that is not a message is kept in `control`.

    sign: makes `sig` of the nonce.
    """

    def __init__(
        self,
        port: int,
        timeout_s: float = 10.0,
        *,
        sign: Callable[[str], str] | None = None,
        **connect: object,
    ) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.control: list[bytes] = []
        self.info: dict[str, Any] = json.loads(self.line().split(b" ", 1)[1])
        settings = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, **connect}
        if sign is not None:
            settings["sig"] = sign(self.info["nonce"])
        self.send(b"CONNECT " + json.dumps(settings).encode() + b"\r\n")
        self.flush()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply.encode(), len(payload), payload))

    def subscribe(self, subject: str, sid: int) -> None:
        self.send(b"SUB %s %d\r\n" % (subject.encode(), sid))

    def flush(self) -> None:
        """Returns when the server has processed everything sent so far."""
        self.send(b"PING\r\n")
        while self.line() != b"PONG":
            pass

    def line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            self.fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def fill(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.buffer += data

    def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self.fill()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def message(self) -> RawMessage:
        """The next message; PINGs are answered on the way."""
        while True:
            line = self.line()
            verb, _, rest = line.partition(b" ")
            if verb == b"PING":
                self.send(b"PONG\r\n")
                continue
            if verb not in (b"MSG", b"HMSG"):
                self.control.append(line)
                continue
            words = rest.split()
            size = int(words[-1])
            header_size = int(words[-2]) if verb == b"HMSG" else 0
            reply_at = len(words) - (2 if verb == b"HMSG" else 1)
            body = self.exactly(size + 2)[:size]
            return RawMessage(
                words[0], words[1], words[2] if reply_at > 2 else b"", body[:header_size], body[header_size:]
            )

    def request(self, subject: str, body: object = None) -> dict[str, Any]:
        """One JSON request. The connection must have no other subscription with traffic."""
        payload = b"" if body is None else json.dumps(body).encode()
        self.send(b"SUB _R.test r1\r\nUNSUB r1 1\r\n")
        self.publish(subject, payload, "_R.test")
        while True:
            message = self.message()
            if message.sid == b"r1":
                return json.loads(message.payload)  # type: ignore[no-any-return]

    @staticmethod
    def request_http(address: str, path: str) -> dict[str, Any]:
        """A monitoring page of the server at host:port."""
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def close(self) -> None:
        self.sock.close()
