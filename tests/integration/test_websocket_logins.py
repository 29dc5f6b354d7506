"""WebSocket clients on both servers: cookies, users of their own, masks, compression and paths."""

from __future__ import annotations

import json
import re
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served

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
        assert len(data) < 126
        if self.masked:
            body = MASK + bytes(byte ^ MASK[i % 4] for i, byte in enumerate(data))
            self.sock.sendall(bytes([0x82, 0x80 | len(data)]) + body)
        else:
            self.sock.sendall(bytes([0x82, len(data)]) + data)

    def line(self) -> str:
        """The next line of the NATS protocol."""
        while b"\r\n" not in self.text:
            first, size = self.exactly(2)
            if size == 126:
                size = int.from_bytes(self.exactly(2), "big")
            body = self.exactly(size)
            if first & 0x0F == 8:
                raise ConnectionError("a farewell")
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


def conf(*lines: str, head: str = "") -> str:
    return f"{head}\nwebsocket {{ port: -1, no_tls: true\n" + "\n".join(lines) + "\n}\n"


COOKIES = ("user_cookie: u", "pass_cookie: p", "token_cookie: t")
VIOLATION = "-ERR 'Authorization Violation'"


@pytest.mark.parametrize("kind", KINDS)
def test_cookies_say_who_a_client_is_unless_its_connect_does(kind: str, tmp_path: Path) -> None:
    head = "authorization { users: [ {user: a, password: b}, {user: c, password: d} ] }"
    with served(kind, tmp_path, conf(*COOKIES, head=head)) as server:
        assert Peer(server, "Cookie: u=a; x=1; p=b").info()["auth_required"] is True
        for cookies, fields, answer in (
            ("u=a; x=1; p=b", {}, "PONG"),
            ("u=a; p=wrong", {}, VIOLATION),
            ("u=a; p=wrong", {"user": "c", "pass": "d"}, "PONG"),
            ("x=1", {}, VIOLATION),
        ):
            peer = Peer(server, f"Cookie: {cookies}")
            peer.info()
            assert peer.connect(**fields) == answer, cookies


@pytest.mark.parametrize("kind", KINDS)
def test_a_cookie_may_hold_the_token(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf(*COOKIES, head="authorization { token: s3cr3t }")) as server:
        for cookie, answer in (("t=s3cr3t", "PONG"), ("t=other", VIOLATION)):
            peer = Peer(server, f"Cookie: {cookie}")
            peer.info()
            assert peer.connect() == answer


@pytest.mark.parametrize("kind", KINDS)
def test_these_clients_may_have_a_user_of_their_own(kind: str, tmp_path: Path) -> None:
    own = "authorization { user: w, password: w, timeout: 5 }"
    with served(kind, tmp_path, conf(own)) as server:
        peer = Peer(server)
        assert peer.info()["auth_required"] is True
        assert peer.connect() == VIOLATION
        peer = Peer(server)
        peer.info()
        assert peer.connect(user="w", **{"pass": "w"}) == "PONG"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            assert b"auth_required" not in plain.recv(4096)


@pytest.mark.parametrize("kind", KINDS)
def test_these_clients_may_become_another_user_without_credentials(kind: str, tmp_path: Path) -> None:
    head = 'authorization { users: [ {user: a, password: b, permissions: {publish: "only"}} ] }'
    with served(kind, tmp_path, conf("no_auth_user: a", head=head)) as server:
        peer = Peer(server)
        peer.info()
        assert peer.connect() == "PONG"
        peer.send("PUB other 0\r\n\r\n")
        assert peer.line() == "-ERR 'Permissions Violation for Publish to \"other\"'"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            assert b'"auth_required":true' in plain.recv(4096)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_may_send_without_masks_does(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf("compression: true")) as server:
        peer = Peer(server, "Nats-No-Masking: true", masked=False)
        assert "Nats-No-Masking: true" in peer.headers
        peer.info()
        assert peer.connect() == "PONG"
        peer = Peer(server, masked=False)
        assert not any("Masking" in line for line in peer.headers)
        peer.info()
        with pytest.raises(ConnectionError):
            peer.connect()


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_worth_it_is_compressed(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf("compression: true")) as server:
        peer = Peer(server, "Sec-WebSocket-Extensions: permessage-deflate")
        peer.info()
        assert peer.compressed == [True]
        assert peer.connect() == "PONG"
        assert peer.compressed == [True, False]
        peer.send("SUB x 1\r\nPUB x 64\r\n" + "a" * 64 + "\r\n")
        assert (peer.line(), peer.line()) == ("MSG x 1 64", "a" * 64)
        assert peer.compressed == [True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_leaf_node_is_let_in_and_sent_away(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf()) as server:
        peer = Peer(server, path="/leafnode")
        assert peer.status == "HTTP/1.1 101 Switching Protocols"
        with pytest.raises(ConnectionError):
            peer.line()
        server.wait_for("Not configured to accept leaf node connections")
        assert Peer(server, path="/mqtt").status == "HTTP/1.1 404 Not Found"


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_has_the_headers_that_are_configured(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf('headers { "X-One": "a b" }')) as server:
        assert "X-One: a b" in Peer(server).headers
