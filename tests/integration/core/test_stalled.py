"""Peers that stop halfway: each ends as the official server ends it, and no other client notices."""

from __future__ import annotations

import json
import resource
import selectors
import socket
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.rawnats import RawNats

STALLED = 5_000
# A server embedded in this process has the other end of each socket in it too.
FILES_NEEDED = 2 * STALLED + 500
ENDS_WITHIN_S = 60.0
READ_BYTES = 1 << 16

pytestmark = [pytest.mark.parametrize("kind", KINDS), pytest.mark.feature("core.hostile-input")]


@contextmanager
def many_files() -> Iterator[None]:
    """This process may open FILES_NEEDED files; skips where the machine doesn't allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES_NEEDED:
        pytest.skip(f"{STALLED} connections need {FILES_NEEDED} open files, `ulimit -Hn` allows {hard}")
    if soft == resource.RLIM_INFINITY or soft >= FILES_NEEDED:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_NEEDED, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Very many raw connections that send one thing and then only listen, beside a witness that is served."""

    def __init__(self, port: int, witness: RawNats, count: int, sent: bytes) -> None:
        self.witness = witness
        self.selector = selectors.DefaultSelector()
        self.heard: dict[int, bytes] = {}
        for i in range(count):
            if i % 20 == 0:  # often enough for the pings of one second, however slow the machine
                echo(witness)
            sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            if sent:
                sock.sendall(sent)
            self.heard[sock.fileno()] = received(sock)  # INFO: the server has counted it
            self.selector.register(sock, selectors.EVENT_READ)

    def until_all_ended(self) -> Counter[str]:
        """What the server said last to how many of them."""
        ends: Counter[str] = Counter()
        deadline = time.monotonic() + ENDS_WITHIN_S
        while sum(ends.values()) < len(self.heard):
            assert time.monotonic() < deadline, f"{len(self.heard)} are connected, ended have {ends}"
            for key, _ in self.selector.select(timeout=0.05):
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                got = received(sock)
                self.heard[key.fd] = (self.heard[key.fd] + got)[-200:]
                if not got:
                    self.selector.unregister(sock)
                    sock.close()
                    ends[last_line(self.heard[key.fd])] += 1
            echo(self.witness)
        return ends

    def close(self) -> None:
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()


@contextmanager
def crowd(port: int, witness: RawNats, count: int, sent: bytes = b"") -> Iterator[Crowd]:
    with many_files():
        one = Crowd(port, witness, count, sent)
        try:
            yield one
        finally:
            one.close()


def received(sock: socket.socket) -> bytes:
    """b"" once the peer is gone, however it went."""
    try:
        return sock.recv(READ_BYTES)
    except ConnectionResetError:
        return b""


def last_line(heard: bytes) -> str:
    """The last line but PINGs; of INFO only its name."""
    lines = [line for line in heard.split(b"\r\n") if line and line != b"PING"]
    return lines[-1].decode()[:60] if lines and lines[-1].startswith(b"-ERR") else "no error"


def echo(client: RawNats) -> None:
    """The client hears itself at once: it isn't kept waiting by others."""
    client.publish("witness", b"still here")
    assert client.message().payload == b"still here"


def slow_reasons(http_port: int) -> Counter[str]:
    """Why slow consumers were closed."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/connz?state=closed", timeout=10) as page:
        reasons = [each["reason"] for each in json.load(page)["connections"]]
        return Counter(reason for reason in reasons if reason.startswith("Slow"))


def slow_consumers(http_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/varz", timeout=10) as page:
        return int(json.load(page)["slow_consumers"])


def witness_of(port: int, **connect: object) -> RawNats:
    witness = RawNats(port, **connect)
    witness.subscribe("witness", 1)
    witness.flush()
    return witness


def test_five_thousand_connections_that_never_log_in_end_with_the_auth_timeout(
    kind: str, tmp_path: Path
) -> None:
    conf = "authorization { user: a, password: b, timeout: 1 }"
    with running_conf(kind, conf, tmp_path / kind) as port:
        witness = witness_of(port, user="a", **{"pass": "b"})
        with crowd(port, witness, STALLED) as stalled:
            assert stalled.until_all_ended() == {"-ERR 'Authentication Timeout'": STALLED}
        echo(witness)


def test_five_thousand_clients_that_answer_no_ping_end_as_stale(kind: str, tmp_path: Path) -> None:
    conf = 'ping_interval: "1s"\nping_max: 1'
    with running_conf(kind, conf, tmp_path / kind) as port:
        witness = witness_of(port)
        with crowd(port, witness, STALLED, b'CONNECT {"verbose":false}\r\nSUB stalled.> 1\r\n') as stalled:
            assert stalled.until_all_ended() == {"-ERR 'Stale Connection'": STALLED}
        echo(witness)


def test_connections_above_the_maximum_are_refused_and_those_below_stay(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, "max_connections: 1001", tmp_path / kind) as port:
        witness = witness_of(port)
        # The official server took a minute to refuse four thousand. A hundred show what it says.
        above = 100 if kind == "official" else STALLED - 1000
        with crowd(port, witness, 1000), crowd(port, witness, above) as refused:
            ends = refused.until_all_ended()
            assert ends == {"-ERR 'maximum connections exceeded'": above}
        echo(witness)


@pytest.mark.parametrize(
    "half",
    [b"PU", b"PUB a 1", b"PUB a 100\r\nhalf", b"PUB a 4\r\nhalf", b"HPUB a 12 20\r\nNATS/1.0\r\n", b"SUB a"],
)
def test_a_publisher_that_sends_half_a_frame_and_waits_ends_as_stale(
    kind: str, tmp_path: Path, half: bytes
) -> None:
    conf = 'ping_interval: "500ms"\nping_max: 1'
    with running_conf(kind, conf, tmp_path / kind) as port:
        witness = witness_of(port)
        witness.subscribe("a", 2)
        witness.flush()
        with crowd(port, witness, 1, b'CONNECT {"verbose":false,"headers":true}\r\n' + half) as stalled:
            assert stalled.until_all_ended() == {"-ERR 'Stale Connection'": 1}
        echo(witness)  # and nothing of the half has come before it


def test_half_a_connect_ends_with_the_auth_timeout(kind: str, tmp_path: Path) -> None:
    conf = "authorization { user: a, password: b, timeout: 1 }"
    with running_conf(kind, conf, tmp_path / kind) as port:
        witness = witness_of(port, user="a", **{"pass": "b"})
        with crowd(port, witness, 1, b'CONNECT {"user":"a","pa') as stalled:
            assert stalled.until_all_ended() == {"-ERR 'Authentication Timeout'": 1}


def flood(publisher: RawNats, size: int, messages: int) -> None:
    frame = b"PUB flood %d\r\n%s\r\n" % (size, b"x" * size)
    for _ in range(messages):
        publisher.send(frame)
    publisher.flush()


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        # Bytes wait up to max_pending, and above it the connection goes.
        ('max_pending: 1MB\nwrite_deadline: "60s"', "Slow Consumer (Pending Bytes)"),
        # Bytes wait below max_pending until none is taken for the deadline.
        ('max_pending: 512MB\nwrite_deadline: "500ms"', "Slow Consumer (Write Deadline)"),
    ],
)
def test_a_subscriber_that_never_reads_ends_as_slow_consumer_and_no_other_does(
    kind: str, tmp_path: Path, conf: str, reason: str
) -> None:
    http_port = free_port()
    with running_conf(kind, f"{conf}\nhttp: 127.0.0.1:{http_port}", tmp_path / kind) as port:
        witness, publisher = witness_of(port), RawNats(port)
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", port))
        stalled.sendall(b'CONNECT {"verbose":false}\r\nSUB flood 1\r\nPING\r\n')
        while b"PONG" not in stalled.recv(4096):
            pass
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not slow_consumers(http_port):
            assert time.monotonic() < deadline
            flood(publisher, 64 * 1024, 32)
            echo(witness)
        assert slow_consumers(http_port) == 1
        assert slow_reasons(http_port) == {reason: 1}
        stalled.settimeout(10)
        while received(stalled):
            pass
        stalled.close()
        echo(witness)
