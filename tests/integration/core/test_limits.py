"""Limits, credentials and keep-alive: what is refused, with which text, and who is closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.server.config.server_options import User
from penstock.testing import EmbeddedServer
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS
from tests.support.wire import Wire, wait_until

pytestmark = pytest.mark.feature("core.limits")

Factory = Callable[..., EmbeddedServer]
SECOND_NS = 1_000_000_000


def reasons(server: EmbeddedServer) -> list[str]:
    """Close reasons of the sessions that are gone, in order."""

    async def look() -> list[str]:
        return [str(session.reason) for session in server.server.sessions.closed]

    return server.run(look())


def refused(server: EmbeddedServer, sent: bytes) -> bytes:
    """What a new connection gets for it, up to its end."""
    with Wire(server.port) as wire:
        wire.send(sent)
        return wire.rest()


VIOLATION = b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"PING\r\n",
        b"SUB a 1\r\n",
        b"PUB a 0\r\n\r\n",
        b"HELLO\r\n",
        b"INFO {}\r\n",
        b"CONNECT {}\r\n",
        b'CONNECT {"user":"a","pass":"x"}\r\n',
        b'CONNECT {"user":"x","pass":"b"}\r\n',
        b'CONNECT {"auth_token":"b"}\r\n',
    ],
)
def test_without_the_right_credentials_nothing_is_possible(nats_server_factory: Factory, sent: bytes) -> None:
    server = nats_server_factory(user="a", password="b")
    assert refused(server, sent) == VIOLATION
    assert reasons(server) == ["Authentication Failure"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [b"P", b"h", b"S", b"+", b"\x00"])
def test_who_has_not_logged_in_is_refused_at_the_first_byte_of_anything_else(
    kind: str, first: bytes, tmp_path: Path
) -> None:
    """Waiting for the rest of a PUB would let strangers fill memory with payloads."""
    with running_conf(kind, "authorization { user: a, password: b }", tmp_path) as port, Wire(port) as wire:
        wire.send(first)
        assert wire.rest() == VIOLATION


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_not_be_the_user_without_credentials_is_refused_at_the_first_byte(
    kind: str, tmp_path: Path
) -> None:
    user = "{ user: a, password: b, allowed_connection_types: [ WEBSOCKET ] }"
    conf = f"authorization {{ users: [ {user} ] }}\nno_auth_user: a\n"
    with running_conf(kind, conf, tmp_path) as port, Wire(port) as wire:
        wire.send(b"PUB a 1\r\nx\r\n")
        assert wire.rest() == VIOLATION


def test_a_publish_before_connect_reaches_no_client(nats_server_factory: Factory) -> None:
    server = nats_server_factory(user="a", password="b")
    with Wire(server.port) as other:
        other.connect(user="a", **{"pass": "b"})
        other.ask(b"SUB > 1\r\n")
        assert refused(server, b"PUB a 0\r\n\r\n" * 3) == VIOLATION
        assert other.ask(b"") == b""


@pytest.mark.parametrize(
    ("options", "connect"),
    [
        ({"user": "a", "password": "b"}, {"user": "a", "pass": "b"}),
        ({"token": "s3cr3t"}, {"auth_token": "s3cr3t"}),
        ({"users": (User(name="a", password="b"), User(name="c", password="d"))}, {"user": "c", "pass": "d"}),
    ],
)
def test_the_right_credentials_open_the_door(
    nats_server_factory: Factory, options: dict[str, object], connect: dict[str, object]
) -> None:
    server = nats_server_factory(**options)
    with Wire(server.port) as wire:
        assert wire.info["auth_required"] is True
        wire.connect(**connect)
        assert wire.ask(b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"


def test_clients_without_credentials_become_the_no_auth_user(nats_server_factory: Factory) -> None:
    server = nats_server_factory(users=(User(name="a", password="b"),), no_auth_user="a")
    with Wire(server.port) as wire:
        assert "auth_required" not in wire.info
        assert wire.ask(b"SUB a 1\r\n") == b"+OK\r\n"
    assert refused(server, b'CONNECT {"user":"a","pass":"x"}\r\n') == VIOLATION


def test_a_client_that_says_nothing_is_closed_after_the_auth_timeout(nats_server_factory: Factory) -> None:
    server = nats_server_factory(token="x", auth_timeout_ns=SECOND_NS // 20)
    assert refused(server, b"") == b"-ERR 'Authentication Timeout'\r\n"
    assert reasons(server) == ["Authentication Timeout"]


def test_clients_of_protocol_1_learn_their_account_after_the_first_pong(nats_server_factory: Factory) -> None:
    server = nats_server_factory(jetstream=True)
    with Wire(server.port) as wire:
        wire.send(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
        assert wire.until(b"INFO ") == b"PONG\r\nINFO "
        info = wire.until(b"\r\n")
        assert b'"connect_info":true' in info
        assert b'"remote_account":"$G"' in info
        assert wire.ask(b"PING\r\n") == b""  # once only


def test_info_has_the_api_level_without_jetstream_too(nats_server_factory: Factory) -> None:
    with Wire(nats_server_factory().port) as wire:
        assert wire.info["api_lvl"] >= 5
        assert "jetstream" not in wire.info


def test_info_tells_what_clients_need(nats_server_factory: Factory) -> None:
    server = nats_server_factory(jetstream=True, server_name="one", max_payload=4096)
    with Wire(server.port) as first, Wire(server.port) as second:
        info = first.info
        assert len(info["server_id"]) == 56
        assert info["server_id"].startswith("N")
        assert info["server_name"] == "one"
        assert tuple(map(int, info["version"].split("."))) >= (2, 15, 2)
        assert info["proto"] == 1
        assert info["headers"] is True
        assert info["jetstream"] is True
        assert info["api_lvl"] >= 5
        assert info["max_payload"] == 4096
        assert info["client_ip"] == "127.0.0.1"
        assert info["port"] == server.port
        assert second.info["client_id"] > info["client_id"]


def test_more_connections_than_allowed_are_refused(nats_server_factory: Factory) -> None:
    server = nats_server_factory(max_connections=1)
    with Wire(server.port) as first:
        first.connect()
        assert refused(server, b"") == b"-ERR 'maximum connections exceeded'\r\n"
        assert first.ask(b"") == b""
    wait_until(lambda: reasons(server) == ["Client Closed"], "the first connection to be gone")
    with Wire(server.port) as next_one:
        next_one.connect()


def test_more_subscriptions_than_allowed_are_refused_but_the_connection_stays(
    nats_server_factory: Factory,
) -> None:
    server = nats_server_factory(max_subscriptions=2)
    with Wire(server.port) as wire:
        wire.connect()
        answer = wire.ask(
            b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nPUB c 0\r\n\r\nUNSUB 1\r\nSUB c 3\r\nPUB c 0\r\n\r\n"
        )
        assert answer == b"-ERR 'maximum subscriptions exceeded'\r\nMSG c 3 0\r\n\r\n"


def test_limits_of_the_options_hold(nats_server_factory: Factory) -> None:
    server = nats_server_factory(max_payload=10, max_control_line=100)
    with Wire(server.port) as wire:
        wire.connect()
        assert wire.ask(b"SUB a 1\r\nPUB a 10\r\n0123456789\r\n") == b"MSG a 1 10\r\n0123456789\r\n"
        wire.send(b"PUB a 11\r\n")
        assert wire.rest() == b"-ERR 'Maximum Payload Violation'\r\n"
    assert refused(server, b"SUB " + b"a" * 200) == b"-ERR 'maximum control line exceeded'\r\n"
    assert reasons(server) == ["Maximum Message Payload Exceeded", "Maximum Control Line Exceeded"]


def test_a_client_that_answers_no_ping_is_stale(nats_server_factory: Factory) -> None:
    server = nats_server_factory(ping_interval_ns=SECOND_NS // 20, ping_max=2)
    with Wire(server.port) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\n')
        assert wire.rest() == b"PING\r\n" * 2 + b"-ERR 'Stale Connection'\r\n"
    assert reasons(server) == ["Stale Connection"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_early_ping_waits_for_connect(kind: str, tmp_path: Path) -> None:
    """Two seconds after CONNECT; connections without one get none. The first PING of one tells the time for
    the others."""
    with (
        running_conf(kind, "", tmp_path) as port,
        Wire(port) as silent,
        Wire(port) as late,
        Wire(port).connect() as clock,
    ):
        clock.until(b"PING\r\n")
        assert silent.ask(b"") == late.ask(b"") == b""
        late.connect()
        with Wire(port).connect() as clock_again:
            clock_again.until(b"PING\r\n")
        late.until(b"PING\r\n")
        assert silent.ask(b"") == b""


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_publishes_stays_though_it_answers_no_ping(kind: str, tmp_path: Path) -> None:
    """As programs do that write to one connection and read from another. It is pinged once."""
    with running_conf(kind, 'ping_interval: "200ms"\nping_max: 3', tmp_path) as port, Wire(port) as wire:
        wire.connect()
        pings, end = 0, time.monotonic() + 1.5
        while time.monotonic() < end:
            pings += wire.ask(b"PUB a 1\r\nx\r\n").count(b"PING\r\n")
        assert pings <= 1


def test_a_client_that_answers_stays_and_its_round_trip_is_known(nats_server_factory: Factory) -> None:
    server = nats_server_factory(ping_interval_ns=SECOND_NS // 50, ping_max=1)
    with Wire(server.port) as wire:
        wire.send(b'CONNECT {"verbose":false}\r\n')
        for _ in range(4):
            wire.until(b"PING\r\n")
            wire.send(b"PONG\r\n")

        async def round_trips() -> list[int]:
            return [session.rtt_ns for session in server.server.sessions.values()]

        assert all(rtt_ns > 0 for rtt_ns in server.run(round_trips()))


def publish_until(wire: Wire, condition: Callable[[], bool], *, bytes_max: int = 256 << 20) -> None:
    """Publishes until the condition holds; far more than any buffer takes ends the test."""
    chunk = (b"PUB slow 65536\r\n" + b"x" * 65536 + b"\r\n") * 4
    for _ in range(bytes_max // len(chunk)):
        wire.send(chunk)
        wire.ask(b"")
        if condition():
            return
    raise AssertionError(f"published {bytes_max} bytes and nothing happened")


def test_a_receiver_with_too_much_pending_is_closed_and_no_other(nats_server_factory: Factory) -> None:
    server = nats_server_factory(max_pending=2 << 20, max_payload=1 << 20)
    with Wire(server.port, receive_buffer=4096) as slow, Wire(server.port) as publisher:
        slow.connect()
        slow.ask(b"SUB slow 1\r\n")
        publisher.connect()
        publish_until(publisher, lambda: "Slow Consumer (Pending Bytes)" in reasons(server))
        assert publisher.ask(b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"
        assert b"-ERR" not in slow.rest()

    async def slow_consumers() -> int:
        return server.server.sessions.totals.slow_consumers

    assert server.run(slow_consumers()) == 1


def test_a_receiver_that_takes_nothing_for_the_write_deadline_is_closed(nats_server_factory: Factory) -> None:
    server = nats_server_factory(write_deadline_ns=SECOND_NS // 5)
    with Wire(server.port, receive_buffer=4096) as slow, Wire(server.port) as publisher:
        slow.connect()
        slow.ask(b"SUB slow 1\r\n")
        publisher.connect()
        publisher.send((b"PUB slow 65536\r\n" + b"x" * 65536 + b"\r\n") * 128)
        publisher.ask(b"")
        wait_until(
            lambda: reasons(server) == ["Slow Consumer (Write Deadline)"], "the slow receiver to be closed"
        )


def test_a_fast_publisher_does_not_run_a_slower_receiver_into_max_pending(
    nats_server_factory: Factory,
) -> None:
    """It reads all the time, but less than could be sent: the publisher is slowed down instead."""
    server = nats_server_factory(max_pending=16 << 20)
    messages, size = 400, 131072
    frame = b"PUB slow %d\r\n%s\r\n" % (size, b"x" * size)
    delivered = len(b"MSG slow 1 %d\r\n" % size) + size + 2
    with Wire(server.port, receive_buffer=65536) as receiver, Wire(server.port) as publisher:
        receiver.connect()
        receiver.ask(b"SUB slow 1\r\n")
        publisher.connect()
        publisher.sock.setblocking(False)
        unsent, got = memoryview(frame * messages), 0
        while got < messages * delivered:
            if unsent:
                with suppress(BlockingIOError):
                    unsent = unsent[publisher.sock.send(unsent) :]
            got += len(receiver.sock.recv(65536))

    async def stalled() -> int:
        return server.server.stalled_clients

    assert server.run(stalled()) > 0
    assert "Slow Consumer (Pending Bytes)" not in reasons(server)


def test_connections_that_go_leave_no_subscription_behind(nats_server_factory: Factory) -> None:
    server = nats_server_factory()

    async def subscriptions() -> int:
        return server.server.accounts["$G"].index.count

    before = server.run(subscriptions())
    wires = [Wire(server.port) for _ in range(200)]
    for sid, wire in enumerate(wires):
        wire.connect()
        wire.ask(b"SUB all %d\r\n" % sid)
    assert wires[0].ask(b"PUB all 0\r\n\r\n") == b"MSG all 0 0\r\n\r\n"
    for sid, wire in enumerate(wires[1:], 1):
        assert wire.until(b"\r\n\r\n") == b"MSG all %d 0\r\n\r\n" % sid
    for wire in wires:
        wire.close()
    wait_until(lambda: len(reasons(server)) == 200, "all connections to be gone")
    assert server.run(subscriptions()) == before
