"""What a peer that has not logged in can make a server hold: 64 KiB at most, on every port for servers."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from penstock.testing.clusters.reserved_ports import free_port
from tests.support.conf_servers import running_as_configured

pytestmark = pytest.mark.feature("cluster.route-security")

HELD_MAX = 64 * 1024
LOGIN = "authorization { user: u, password: p, timeout: 30 }"
ANNOUNCED = 8 << 20

_INFO = json.dumps(
    {
        "server_id": "X" * 56, "server_name": "x", "version": "2.15.2", "host": "127.0.0.1", "port": 1,
        "cluster": "c", "gateway": "other", "compression": "s2_fast", "nonce": "n",
    }
).encode()  # fmt: skip
# Beginnings of frames that never end. The last one announces a chunk of 8 MiB, compressed.
BEGINNINGS = {
    "no line": b"",
    "CONNECT": b'CONNECT {"x":"',
    "INFO": b'INFO {"x":"',
    "message": b"RMSG $G a 8388608\r\n",
    "leaf message": b"LMSG a 8388608\r\n",
    "interest": b"RS+ $G ",
    "chunk": b"INFO " + _INFO + b"\r\n\xff\x06\x00\x00S2sTwO\x01" + (ANNOUNCED).to_bytes(3, "little"),
}
HANDSHAKE = (
    b"GET /leafnode HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A server's ports for other servers, by kind of link."""
    found = {kind: free_port() for kind in ("route", "leaf", "gateway", "websocket")}
    conf = f"""
        server_name: here
        cluster {{ name: c, listen: "127.0.0.1:{found["route"]}", compression: s2_fast, {LOGIN} }}
        leafnodes {{ listen: "127.0.0.1:{found["leaf"]}", compression: s2_fast, {LOGIN} }}
        gateway {{ name: c, listen: "127.0.0.1:{found["gateway"]}", {LOGIN} }}
        websocket {{ listen: "127.0.0.1:{found["websocket"]}", no_tls: true, compression: true }}
        """
    with running_as_configured("penstock", conf, tmp_path_factory.mktemp("peers")):
        yield found


def send_until_closed(port: int, beginning: bytes, filling: bytes, first: bytes = b"") -> None:
    """Sends HELD_MAX bytes, and returns when the server has closed the connection; TimeoutError when it waits
    for more."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        if first:
            peer.sendall(first)
            while b"\r\n\r\n" not in peer.recv(65536):
                pass
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            peer.sendall(beginning)
            for _ in range(HELD_MAX // len(filling)):
                peer.sendall(filling)
            while peer.recv(65536):
                pass


@pytest.mark.parametrize("kind", ["route", "leaf", "gateway"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_peer_that_has_not_logged_in_makes_the_server_hold_little(
    ports: dict[str, int], kind: str, beginning: str
) -> None:
    send_until_closed(ports[kind], BEGINNINGS[beginning], b"a" * 4096)


@pytest.mark.parametrize("first_byte", [b"\x82", b"\xc2"], ids=["plain", "compressed"])
def test_a_frame_of_a_peer_that_has_not_logged_in_is_not_gathered(
    ports: dict[str, int], first_byte: bytes
) -> None:
    frame = first_byte + b"\xff" + ANNOUNCED.to_bytes(8, "big") + bytes(4)
    stored = b"\x00\xfb\x0f\x04\xf0" + b"a" * 4091  # a block of deflate, not compressed
    filling = b"a" * 4096 if first_byte == b"\x82" else stored
    send_until_closed(ports["websocket"], frame, filling, HANDSHAKE)
