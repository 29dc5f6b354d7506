"""bcrypt hashes are computed beside the event loop: a login that waits for one delays no other client."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from msgspec.structs import replace

from penstock.server.auth import client_login, passwords
from penstock.server.auth.authenticator import ConfiguredUsers, Credentials
from penstock.server.auth.passwords import PasswordCheck, PasswordQueue, Passwords, network_of
from penstock.server.config.server_options import ServerOptions, User
from penstock.testing import EmbeddedServer
from tests.support.conf_servers import login, running_conf
from tests.support.keys import key
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.reloads import reload
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.passwords")

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


class LoginAttempt:
    """A client that sends CONNECT and more at once."""

    def __init__(self, port: int, password: str, more: bytes = b"", user: str = "slow") -> None:
        self.user = user
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._file = self.sock.makefile("rb")
        assert self.line().startswith("INFO")
        self.connect(password, more)

    def connect(self, password: str, more: bytes = b"") -> None:
        fields: dict[str, Any] = {"user": self.user, "pass": password, "verbose": False}
        self.sock.sendall(b"CONNECT " + json.dumps(fields).encode() + b"\r\n" + more)

    def line(self) -> str:
        return self._file.readline().decode().strip()

    def answer(self) -> str:
        """The next line that is no PING, which a server may send to a client that waits."""
        return next(line for line in iter(self.line, None) if line != "PING")

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
    new_session = LoginAttempt(server.port, "right", b"PING\r\nPUB a 1\r\n1\r\nPUB a 1\r\n2\r\n")
    hashing.await_begun()
    other.publish("b")
    other.flush()  # a PONG came, and nothing of the new session's
    assert not other.control
    login(server.port, "quick").close()  # others even log in
    new_session.sock.sendall(b"PUB a 1\r\n3\r\nPING\r\n")
    other.flush()
    hashing.go_on.release()
    assert [new_session.line(), new_session.line()] == ["PONG", "PONG"]
    assert [other.message().payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert [thread.name.partition("_")[0] for thread in hashing.threads] == ["passwords"]
    new_session.close()
    other.close()


def test_a_wrong_password_is_refused_and_a_right_one_is_remembered(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    for _ in range(3):
        hashing.go_on.release()
    wrong = LoginAttempt(server.port, "wrong", b"PING\r\n")
    assert [wrong.line(), wrong.line()] == ["-ERR 'Authorization Violation'", ""]
    for _ in range(2):
        client = RawNats(server.port, user="slow", **{"pass": "right"})
        client.close()
    reload_users(server, (*USERS, User(name="more", password="more")))
    client = RawNats(server.port, user="slow", **{"pass": "right"})
    client.close()
    wrong.close()
    assert len(hashing.threads) == 2


def test_waiting_for_a_hash_is_no_time_to_log_in(nats_server_factory: Factory, hashing: Hashing) -> None:
    """The client has done its part; who makes it wait are others."""
    server = nats_server_factory(users=USERS, auth_timeout_ns=50_000_000)
    new_session = LoginAttempt(server.port, "right", b"PING\r\n")
    hashing.await_begun()
    with Wire(server.port) as silent:  # it came later, and its time is over
        assert silent.rest() == b"-ERR 'Authentication Timeout'\r\n"
    hashing.go_on.release()
    assert new_session.line() == "PONG"
    new_session.close()


def test_a_login_does_not_wait_for_its_hash_for_ever(
    nats_server_factory: Factory, hashing: Hashing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_login, "HASH_WAIT_S", 0.05)
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    new_session = LoginAttempt(server.port, "right", b"PING\r\n")
    hashing.await_begun()
    assert [new_session.line(), new_session.line()] == ["-ERR 'Authentication Timeout'", ""]
    hashing.go_on.release()
    login(server.port, "quick").close()
    new_session.close()


def test_who_hung_up_while_waiting_costs_no_hash(nats_server_factory: Factory, hashing: Hashing) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    first = [LoginAttempt(server.port, "wrong") for _ in range(passwords.THREADS)]
    for _ in first:
        hashing.await_begun()
    for _ in range(5):
        LoginAttempt(server.port, "wrong").close()
    last = LoginAttempt(server.port, "right", b"PING\r\n")
    login(server.port, "quick").close()  # all of them have been read
    for _ in range(passwords.THREADS + 1):
        hashing.go_on.release()
    assert last.line() == "PONG"
    assert len(hashing.threads) == passwords.THREADS + 1
    for new_session in (*first, last):
        new_session.close()


def test_wrong_logins_for_one_user_delay_those_of_another_by_one_turn(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=(*USERS, User(name="other", password=SLOW)), auth_timeout_ns=10**11)
    wrong = [LoginAttempt(server.port, "wrong") for _ in range(passwords.THREADS + 20)]
    login(server.port, "quick").close()  # all of them have been read
    right = LoginAttempt(server.port, "right", b"PING\r\n", user="other")
    login(server.port, "quick").close()
    for _ in range(passwords.THREADS + 2):
        hashing.go_on.release()
    assert right.line() == "PONG"
    for new_session in (*wrong, right):
        new_session.close()


def test_a_hash_that_can_not_be_computed_ends_its_connection_alone(
    nats_server_factory: Factory, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    def fail(given: str, expected: str) -> bool:
        raise MemoryError("no room for a hash")

    monkeypatch.setattr(passwords, "matches_bcrypt", fail)
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    for _ in range(passwords.THREADS + 1):
        new_session = LoginAttempt(server.port, "right", b"PING\r\n")
        assert new_session.line().startswith("-ERR 'Internal Error, fault ")
        new_session.close()
    login(server.port, "quick").close()
    assert {str(error) for error in noted_faults} == {"no room for a hash"}
    noted_faults.clear()


@pytest.mark.parametrize(
    ("user", "password"),
    [("slow", "wrong"), ("nobody", "wrong"), ("", ""), ("quick", "wrong"), ("keyed", "x")],
)
def test_a_failed_login_costs_one_hash_for_any_name(
    user: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[str] = []

    def note(given: str, expected: str) -> bool:
        costs.append(expected[:7])
        return False

    monkeypatch.setattr(passwords, "matches_bcrypt", note)
    nkey = key("user", "keyed").public
    users = (
        User(name="slow", password="$2a$11$" + "x" * 53),
        User(name="also", password="$2b$11$" + "y" * 53),
        User(name="slower", password="$2a$12$" + "z" * 53),
        User(name="quick", password="quick"),
        User(name=nkey, password="", nkey=nkey),
    )
    known = ConfiguredUsers(ServerOptions(users=users))
    shown = Credentials(user=nkey if user == "keyed" else user, password=password)
    assert known.is_slow(shown)
    assert known.check(shown) is None
    assert [cost[4:] for cost in costs] == ["11$"]
    right = Credentials(user="quick", password="quick")
    assert not known.is_slow(right)
    assert known.check(right) is not None
    assert len(costs) == 1


def test_the_hash_of_no_user_matches_nothing_and_costs_what_others_do() -> None:
    assert passwords.stand_in(["plain", ""]) == ""
    found = passwords.stand_in(["plain", "$2a$04$x", "$2y$05$x", "$2b$04$x", "$2a$slow"])
    assert found.startswith("$2b$04$")
    assert passwords.stand_in([SLOW]).startswith("$2b$10$")
    for given in ("", "x", "." * 53, found):
        assert not passwords.matches_bcrypt(given, found)


def test_networks_have_turns_and_users_within_them() -> None:
    queue = PasswordQueue()
    for name, network, user in [
        *((f"a{number}", "net a", "joe") for number in range(3)),
        ("b", "net b", ""), ("c", "net a", "ann"), ("d", "net b", ""), ("e", "net c", "joe"),
    ]:  # fmt: skip
        queue.add(network, user, job_named(name))
    order = []
    while (job := queue.take()) is not None:
        order.append(name_of(job))
    assert order == ["a0", "b", "e", "c", "d", "a1", "a2"]


def job_named(name: str) -> PasswordCheck:
    def work() -> None:
        """Does nothing."""

    work.__name__ = name
    return PasswordCheck(work, lambda identity: None, lambda: True, lambda error: None)


def name_of(job: PasswordCheck) -> str:
    return str(job.work.__name__)


@pytest.mark.parametrize(
    ("host", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_ipv6_network_is_one_source(host: str, other: str, same: bool) -> None:
    assert (network_of(host) == network_of(other)) is same


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_login_behind_many_wrong_ones_does_not_run_out_of_time(kind: str, tmp_path: Path) -> None:
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(10)).decode()
    conf = f"authorization {{ timeout: 0.3, users: [ {{ user: slow, password: {json.dumps(hashed)} }} ] }}"
    with running_conf(kind, conf, tmp_path) as port:
        wrong = [LoginAttempt(port, "wrong") for _ in range(20)]
        right = LoginAttempt(port, "right", b"PING\r\n")
        assert right.answer() == "PONG"
        assert {new_session.answer() for new_session in wrong} == {"-ERR 'Authorization Violation'"}
        for new_session in (*wrong, right):
            new_session.close()


def test_users_that_a_reload_takes_away_do_not_get_in_by_a_hash_begun_before(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    new_session = LoginAttempt(server.port, "right", b"PING\r\n")
    hashing.await_begun()
    reload_users(server, USERS[1:])
    hashing.go_on.release()
    assert [new_session.line(), new_session.line()] == ["-ERR 'Authorization Violation'", ""]
    new_session.close()


def test_a_reload_computes_changed_hashes_beside_the_loop(
    nats_server_factory: Factory, hashing: Hashing
) -> None:
    server = nats_server_factory(users=USERS, auth_timeout_ns=10**11)
    hashing.go_on.release()
    stays, goes = LoginAttempt(server.port, "right", b"PING\r\n"), login(server.port, "quick")
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
    client = LoginAttempt(server.port, "right", b"PING\r\n")
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
    new_sessions = [LoginAttempt(server.port, "right") for _ in range(passwords.THREADS + 2)]
    hashing.await_begun()
    server.stop()
    assert len(hashing.threads) <= passwords.THREADS
    for new_session in new_sessions:
        new_session.close()


def test_only_hashes_that_are_not_proven_are_slow(hashing: Hashing) -> None:
    known = Passwords()
    assert not known.is_slow("plain", "plain")
    assert known.is_slow("right", SLOW)
    hashing.go_on.release()
    assert known.match("right", SLOW)
    assert not known.is_slow("right", SLOW)
    assert known.is_slow("wrong", SLOW)
