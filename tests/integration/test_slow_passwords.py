"""bcrypt hashes are computed beside the event loop: who waits for one keeps nobody else waiting (row 182)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.server import passwords
from penstock.server.options import User
from penstock.server.passwords import Passwords
from penstock.testing import EmbeddedServer
from tests.support.conf_servers import login
from tests.support.rawnats import RawNats
from tests.support.reloads import reload

Factory = Callable[..., EmbeddedServer]
SLOW = "$2a$slow"
USERS = (User(name="slow", password=SLOW), User(name="quick", password="quick"))
PATIENCE_S = 20.0


class Hashing:
    """Stands for bcrypt: each comparison waits until the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []

    def matches(self, given: str, expected: str) -> bool:
        self.threads.append(threading.current_thread())
        self.begun.release()
        self.go_on.acquire(timeout=PATIENCE_S)
        return given == "right"

    def await_begun(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE_S)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    found = Hashing()
    monkeypatch.setattr(passwords, "matches_bcrypt", found.matches)
    yield found
    for _ in range(10):
        found.go_on.release()  # no thread is left behind


class Newcomer:
    """A client that sends CONNECT and more at once."""

    def __init__(self, port: int, password: str, more: bytes = b"") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._file = self.sock.makefile("rb")
        assert self.line().startswith("INFO")
        self.connect(password, more)

    def connect(self, password: str, more: bytes = b"") -> None:
        fields: dict[str, Any] = {"user": "slow", "pass": password, "verbose": False}
        self.sock.sendall(b"CONNECT " + json.dumps(fields).encode() + b"\r\n" + more)

    def line(self) -> str:
        return self._file.readline().decode().strip()

    def close(self) -> None:
        self._file.close()
        self.sock.close()


def reload_users(server: EmbeddedServer, users: tuple[User, ...]) -> None:
    async def change() -> bool:
        return await reload(server.server, lambda: replace(server.server.options, users=users))

    assert server.run(change())


def test_others_are_served_while_a_hash_is_computed(nats_server_factory: Factory, hashing: Hashing) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    other = login(server.port, "quick")
    other.subscribe("a", 1)
    other.flush()
    newcomer = Newcomer(server.port, "right", b"PING\r\nPUB a 1\r\n1\r\nPUB a 1\r\n2\r\n")
    hashing.await_begun()
    other.publish("b")
    other.flush()  # a PONG came, and nothing of the newcomer's
    assert not other.control
    login(server.port, "quick").close()  # others even log in
    newcomer.sock.sendall(b"PUB a 1\r\n3\r\nPING\r\n")
    other.flush()
    hashing.go_on.release()
    assert [newcomer.line(), newcomer.line()] == ["PONG", "PONG"]
    assert [other.message().payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert [thread.name.partition("_")[0] for thread in hashing.threads] == ["passwords"]
    newcomer.close()
    other.close()


def test_a_wrong_password_is_refused_and_a_right_one_is_remembered(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    for _ in range(3):
        hashing.go_on.release()
    wrong = Newcomer(server.port, "wrong", b"PING\r\n")
    assert [wrong.line(), wrong.line()] == ["-ERR 'Authorization Violation'", ""]
    for _ in range(2):
        client = RawNats(server.port, user="slow", **{"pass": "right"})
        client.close()
    reload_users(server, (*USERS, User(name="more", password="more")))
    client = RawNats(server.port, user="slow", **{"pass": "right"})
    client.close()
    wrong.close()
    assert len(hashing.threads) == 2


def test_the_time_to_log_in_goes_on_while_a_hash_is_computed(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=50_000_000)
    newcomer = Newcomer(server.port, "right", b"PING\r\n")
    hashing.await_begun()
    assert [newcomer.line(), newcomer.line()] == ["-ERR 'Authentication Timeout'", ""]
    hashing.go_on.release()
    login(server.port, "quick").close()
    newcomer.close()


def test_users_that_a_reload_takes_away_do_not_get_in_by_a_hash_begun_before(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    newcomer = Newcomer(server.port, "right", b"PING\r\n")
    hashing.await_begun()
    reload_users(server, USERS[1:])
    hashing.go_on.release()
    assert [newcomer.line(), newcomer.line()] == ["-ERR 'Authorization Violation'", ""]
    newcomer.close()


def test_a_reload_computes_changed_hashes_beside_the_loop(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    hashing.go_on.release()
    stays, goes = Newcomer(server.port, "right", b"PING\r\n"), login(server.port, "quick")
    assert stays.line() == "PONG"
    hashing.await_begun()
    reload_users(server, (User(name="slow", password="$2a$other"), User(name="quick", password="$2a$new")))
    hashing.await_begun()
    stays.sock.sendall(b"PING\r\n")
    hashing.go_on.release()
    hashing.go_on.release()
    assert stays.line() == "PONG"
    assert goes.line() == b"-ERR 'Authorization Violation'"
    stays.close()
    goes.close()


def test_a_second_login_waits_as_well(nats_server_factory: Factory, hashing: Hashing) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    hashing.go_on.release()
    client = Newcomer(server.port, "right", b"PING\r\n")
    assert client.line() == "PONG"
    hashing.await_begun()
    client.connect("wrong", b"PING\r\n")
    hashing.await_begun()
    reload_users(server, (*USERS, User(name="more", password="more")))  # meanwhile it is left alone
    hashing.go_on.release()
    hashing.await_begun()  # for the users as they are now
    hashing.go_on.release()
    assert [client.line(), client.line()] == ["-ERR 'Authorization Violation'", ""]
    client.close()


def test_a_server_stops_without_waiting_for_a_hash(nats_server_factory: Factory, hashing: Hashing) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    newcomers = [Newcomer(server.port, "right") for _ in range(passwords.THREADS + 2)]
    hashing.await_begun()
    server.stop()
    assert len(hashing.threads) <= passwords.THREADS
    for newcomer in newcomers:
        newcomer.close()


def test_only_hashes_that_are_not_proven_are_slow(hashing: Hashing) -> None:
    known = Passwords()
    assert not known.is_slow("plain", "plain")
    assert known.is_slow("right", SLOW)
    hashing.go_on.release()
    assert known.match("right", SLOW)
    assert not known.is_slow("right", SLOW)
    assert known.is_slow("wrong", SLOW)
