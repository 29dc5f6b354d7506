"""WebSocket clients on both servers: cookies, users of their own, masks, compression and paths."""

from __future__ import annotations

import socket
import zlib
from pathlib import Path

import pytest

from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.websocket_peer import MASK, Peer

pytestmark = pytest.mark.feature("connectivity.websocket")


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


def deflated(data: bytes) -> bytes:
    """A frame with the data compressed."""
    deflate = zlib.compressobj(wbits=-15)
    packed = (deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH))[:-4]
    body = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(packed))
    return b"\xc2\xfe" + len(body).to_bytes(2, "big") + MASK + body


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_message_becomes_no_more_than_the_payload_limit(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, conf("compression: true")) as server:
        peer = Peer(server, "Sec-WebSocket-Extensions: permessage-deflate")
        peer.info()
        assert peer.connect() == "PONG"
        publish = b"PUB x 0\r\n\r\n"
        most = 1024 * 1024 // len(publish)
        peer.sock.sendall(deflated(publish * most))
        peer.send("PING\r\n")
        assert peer.line() == "PONG"
        peer.sock.sendall(deflated(publish * (most + 1)))
        with pytest.raises(ConnectionError):
            peer.line()
