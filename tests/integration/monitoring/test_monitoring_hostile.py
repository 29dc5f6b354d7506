"""Connections to the monitoring port that ask nothing, ask slowly or take nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.monitoring import monitor_http
from penstock.testing import EmbeddedServer
from penstock.testing import server as embedded
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.wire import wait_until

pytestmark = pytest.mark.feature("monitoring.http")

ASK = b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /varz HTTP/1.1\r\nHost: x\r\n"
PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with embedded(http_port=-1) as running:
        yield running


def dialled(port: int, sent: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", port))
    sock.sendall(sent)
    return sock


def monitor_port(server: EmbeddedServer) -> int:
    assert server.server.monitor is not None
    return server.server.monitor.port


def rest(sock: socket.socket) -> bytes:
    """Everything up to the end of the connection."""
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    sock.close()
    return found


def page(port: int) -> bytes:
    """The first bytes of an answer."""
    with dialled(port, ASK) as sock:
        return sock.recv(12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_half_sent_ends_after_some_seconds(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, "http: 127.0.0.1:-1\n") as server:
        port = int(server.log.split("Starting http monitor on 127.0.0.1:")[1].split()[0])
        half = dialled(port, HALF)
        assert rest(half) == b""


@pytest.mark.parametrize(
    "broken", [b"5\r\0\0\0Hlo\r\n0\r\n\r\n", b"zz\r\n\r\n", b"1\r\nxx\r\n", b"1\r\nx\r\nq\r\n"]
)
def test_a_broken_body_ends_its_connection_with_one_answer(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture, broken: bytes
) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    port = monitor_port(server)
    for cut in range(len(broken) + 1):  # the body comes with the head, or in part behind its page
        with dialled(port, head + broken[:cut]) as sock:
            if cut < len(broken):
                assert sock.recv(12).startswith(b"HTTP/1.1 ")
                sock.sendall(broken[cut:])
            assert rest(sock).count(b"HTTP/1.1 ") == (cut == len(broken))
    assert page(port) == b"HTTP/1.1 200"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("sent", [b"", b"G", HALF, ASK + HALF, ASK + b"\r\n", b"\r\n" * 10])
def test_whatever_was_sent_no_connection_outlasts_its_deadline(
    server: EmbeddedServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_http, "REQUEST_TIMEOUT_S", 0.1)
    found = rest(dialled(monitor_port(server), sent))
    assert found.count(b"HTTP/1.1 200 OK") == sent.count(ASK)


def test_a_body_that_goes_on_and_on_keeps_no_connection(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_http, "REQUEST_TIMEOUT_S", 0.1)
    sock = dialled(
        monitor_port(server), b"GET /varz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    while not ends(sock, b"1\r\nx\r\n"):
        pass
    sock.close()


def ends(sock: socket.socket, sent: bytes) -> bool:
    """Sends; True when the other side has closed."""
    try:
        sock.sendall(sent)
    except ConnectionError:
        return True
    return False


def test_a_reader_that_takes_nothing_keeps_no_connection(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_http, "REQUEST_TIMEOUT_S", 0.1)
    monkeypatch.setattr(monitor_http, "ANSWER_TIMEOUT_S", 0.1)
    monitor = server.server.monitor
    assert monitor is not None
    monitor._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # accepted sockets inherit it
    slow = dialled(monitor.port, ASK * 100, receive_buffer=2048)
    connections = lambda: monitor._http.server_state.connections if monitor._http is not None else ()  # noqa: E731
    wait_until(lambda: bool(connections()), "the connection", PATIENCE_S)
    wait_until(lambda: not connections(), "its end", PATIENCE_S)
    assert 0 < rest(slow).count(b"HTTP/1.1 200 OK") < 100


def test_when_there_are_too_many_the_one_that_waits_longest_goes(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_http, "CONNECTIONS_MAX", 5)
    port = monitor_port(server)
    assert page(port) == b"HTTP/1.1 200"
    waiting = [dialled(port, HALF) for _ in range(20)]
    assert page(port) == b"HTTP/1.1 200"
    assert [rest(sock) for sock in waiting[:15]] == [b""] * 15
    waiting[-1].sendall(b"\r\n")
    assert waiting[-1].recv(12) == b"HTTP/1.1 200"
    for sock in waiting[15:]:
        sock.close()


def test_no_connection_becomes_a_websocket(server: EmbeddedServer) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    with dialled(monitor_port(server), HALF + upgrade + key + b"\r\n") as sock:
        assert sock.recv(12) == b"HTTP/1.1 200"
