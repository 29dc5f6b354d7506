"""Reload: what a running server takes over, what it refuses, and what becomes of its clients."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.routing.mapping import SubjectMapping
from penstock.server import logs
from penstock.server.options import Options, User
from penstock.server.reload import changes, reload
from penstock.testing import EmbeddedServer
from tests.support.wire import Wire, wait_until

Factory = Callable[..., EmbeddedServer]
SECOND_NS = 1_000_000_000
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


class Reloading:
    """A server whose log is kept and whose options can be changed by a reload."""

    def __init__(self, factory: Factory, **settings: object) -> None:
        self.lines: list[str] = []
        log = logs.Log(lambda label, text: self.lines.append(f"[{label}] {text}"))
        self.embedded = factory(log=log, **settings)
        self.port = self.embedded.port

    @property
    def options(self) -> Options:
        return self.embedded.server.options

    def change(self, **settings: object) -> bool:
        """Reloads with these options changed; the log starts anew."""
        return self.load(lambda: replace(self.options, **settings))  # type: ignore[arg-type]

    def load(self, load: Callable[[], Options]) -> bool:
        async def run() -> bool:
            self.lines.clear()
            return reload(self.embedded.server, load)

        return self.embedded.run(run())


@pytest.fixture
def reloading(nats_server_factory: Factory) -> Callable[..., Reloading]:
    return lambda **settings: Reloading(nats_server_factory, **settings)


Make = Callable[..., Reloading]


# -- refused


def test_what_needs_a_restart_is_refused_by_name_and_nothing_changes(reloading: Make) -> None:
    server = reloading()
    before = server.options
    assert not server.change(server_name="other", ports_file_dir="/nowhere", max_payload=10)
    refusal = "[ERR] Failed to reload server configuration: config reload not supported for "
    assert server.lines == [
        refusal + "server_name: old=, new=other",
        refusal + "ports_file_dir: old=, new=/nowhere",
    ]
    assert server.options is before
    with Wire(server.port) as wire:
        assert wire.info["max_payload"] == before.max_payload


def test_a_configuration_with_a_fault_changes_nothing(reloading: Make) -> None:
    server = reloading()

    def load() -> Options:
        raise ConfigError('unknown field "colour"', file="nats.conf", line=3, column=1)

    before = server.options
    assert not server.load(load)
    assert server.options is before
    assert len(server.lines) == 1
    assert "nats.conf:3:1" in server.lines[0]
    assert 'unknown field "colour"' in server.lines[0]


def test_a_reload_without_changes_keeps_everybody(reloading: Make) -> None:
    server = reloading(user="a", password="b")
    with Wire(server.port) as wire:
        wire.connect(user="a", **{"pass": "b"})
        assert server.change()
        assert server.lines == ["[INF] Reloaded server configuration"]
        assert wire.ask(b"") == b""


# -- authorization


def test_clients_whose_credentials_are_no_longer_good_are_closed(reloading: Make) -> None:
    users = (User(name="a", password="1"), User(name="b", password="2"))
    server = reloading(users=users)
    with Wire(server.port) as stays, Wire(server.port) as goes:
        stays.connect(user="a", **{"pass": "1"})
        goes.connect(user="b", **{"pass": "2"})
        stays.ask(b"SUB x 1\r\n")
        assert server.change(users=(users[0], User(name="b", password="3")))
        assert goes.rest() == VIOLATION
        with Wire(server.port) as again:
            again.connect(user="b", **{"pass": "3"})
            again.ask(b"PUB x 2\r\nhi\r\n")
        assert stays.ask(b"") == b"MSG x 1 2\r\nhi\r\n"
    assert "[INF] Reloaded: authorization users" in server.lines
    assert "3" not in "".join(line for line in server.lines if "Reloaded" in line)


def test_authorization_that_is_new_closes_those_without_credentials(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as wire:
        assert "auth_required" not in wire.info
        wire.connect()
        assert server.change(token="s3cr3t")
        assert wire.rest() == VIOLATION
    with Wire(server.port) as wire:
        assert wire.info["auth_required"] is True
        wire.connect(auth_token="s3cr3t")


def test_authorization_that_is_gone_lets_those_in_who_wait_for_it(reloading: Make) -> None:
    server = reloading(token="s3cr3t", auth_timeout_ns=3600 * SECOND_NS)
    with Wire(server.port) as wire:
        assert server.change(token="")
        assert wire.ask(b"SUB x 1\r\nPUB x 2\r\nhi\r\n").endswith(b"MSG x 1 2\r\nhi\r\n")


# -- limits


def test_a_lower_max_connections_closes_the_youngest(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as first, Wire(server.port) as second:
        first.connect()
        second.connect()
        assert server.change(max_connections=1)
        assert second.rest() == b"-ERR 'maximum connections exceeded'\r\n"
        assert first.ask(b"") == b""


def test_a_lower_max_payload_binds_connections_that_are_open(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as wire:
        wire.connect()
        assert server.change(max_payload=3)
        wire.ask(b"PUB x 3\r\nabc\r\n")
        wire.send(b"PUB x 4\r\nabcd\r\n")
        assert wire.rest() == b"-ERR 'Maximum Payload Violation'\r\n"
    with Wire(server.port) as wire:
        assert wire.info["max_payload"] == 3
    assert server.lines[:2] == ["[INF] Reloaded: max_payload = 3", "[INF] Reloaded server configuration"]


def test_limits_of_subscriptions_and_lines_bind_connections_that_are_open(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as wire:
        wire.connect()
        wire.ask(b"SUB a 1\r\n")
        assert server.change(max_subscriptions=1, max_control_line=20)
        assert wire.ask(b"SUB b 2\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"
        wire.send(b"SUB " + b"x" * 40 + b" 3\r\n")
        assert wire.rest() == b"-ERR 'maximum control line exceeded'\r\n"


def test_a_shorter_write_deadline_binds_a_receiver_that_is_behind(reloading: Make) -> None:
    server = reloading(write_deadline_ns=3600 * SECOND_NS)
    with Wire(server.port, receive_buffer=4096) as slow, Wire(server.port) as wire:
        slow.connect()
        slow.ask(b"SUB x 1\r\n")
        wire.connect()
        wire.ask(b"PUB x 1000000\r\n" + bytes(1_000_000) + b"\r\n" + b"PUB y 0\r\n\r\n")
        for _ in range(20):
            wire.ask(b"PUB x 1000000\r\n" + bytes(1_000_000) + b"\r\n")
        assert server.change(write_deadline_ns=SECOND_NS // 20)
        wait_until(lambda: server.embedded.server.totals.slow_consumers == 1, "the slow consumer")


def test_clients_are_told_a_new_address(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as wire:
        wire.connect(protocol=1)
        wire.ask(b"")
        assert server.change(client_advertise="nats.example:4222")
        assert b'"connect_urls":["nats.example:4222"]' in wire.until(b"\r\n")


# -- mappings


def test_mappings_change_for_connections_that_are_open(reloading: Make) -> None:
    server = reloading(mappings=(SubjectMapping.to("a", "b"),))
    publish = b"PUB a 1\r\nx\r\n"
    with Wire(server.port) as wire:
        wire.connect()
        wire.ask(b"SUB * 1\r\n")
        assert wire.ask(publish) == b"MSG b 1 1\r\nx\r\n"
        assert server.change(mappings=(SubjectMapping.to("a", "c"),))
        assert wire.ask(publish) == b"MSG c 1 1\r\nx\r\n"
        assert server.change(mappings=())
        assert wire.ask(publish) == b"MSG a 1 1\r\nx\r\n"


# -- logging


def test_tracing_begins_and_ends(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port) as wire:
        wire.connect()
        assert server.change(trace=True)
        wire.ask(b"SUB on 1\r\n")
        assert any(line.endswith("[SUB on 1]") for line in server.lines)
        assert server.change(trace=False)
        wire.ask(b"SUB off 2\r\n")
    assert not any("SUB off" in line for line in server.lines)


def test_every_option_that_differs_is_seen() -> None:
    assert changes(Options(), Options()) == []
    assert changes(Options(), Options(port=1, trace=True)) == ["port", "trace"]


# -- as a process


def test_hangup_reads_the_file_again_and_flags_still_win(tmp_path: Path) -> None:
    config, first, second = tmp_path / "nats.conf", tmp_path / "first.log", tmp_path / "second.log"
    config.write_text(f'log_file: "{first}"\nmax_payload: 100\nport: 1\n')
    command = [sys.executable, "-m", "penstock", "serve"]
    process = subprocess.Popen([*command, "-a", "127.0.0.1", "-p", "-1", "-c", str(config)])
    try:
        wait_until(lambda: first.exists() and "Server is ready" in first.read_text(), "the server")
        config.write_text(f'log_file: "{second}"\nmax_payload: 200\nport: 2\ndebug: true\n')
        subprocess.run([*command, "--signal", f"reload={process.pid}"], check=True)
        wait_until(lambda: second.exists() and "configuration\n" in second.read_text(), "the reload")
        told = second.read_text()
        assert "[INF] Reloaded: max_payload = 200\n" in told
        assert f"[INF] Reloaded: log_file = {second}\n" in told
        assert "[INF] Reloaded: debug = True\n" in told
        config.write_text("{")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "[ERR] Failed to reload" in second.read_text(), "the refusal")
        assert "Reloaded" not in first.read_text()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
