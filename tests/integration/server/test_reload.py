"""Reload: what a running server takes over, what it refuses, and what becomes of its clients."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import penstock
from penstock.errors import ConfigError
from penstock.routing.mapping import SubjectMapping
from penstock.server.config.server_options import (
    AccountJetStream,
    AccountOptions,
    ServerOptions,
    User,
    WebsocketOptions,
)
from penstock.server.logging import logs
from penstock.server.reload import apply_reload, changes
from penstock.server.server import Server
from penstock.testing import EmbeddedServer
from tests.support.certificates import Certificates, make_certificates
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.rawnats import RawNats
from tests.support.reloads import reload
from tests.support.wire import Wire, wait_until

pytestmark = pytest.mark.feature("operations.reload")

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
    def options(self) -> ServerOptions:
        return self.embedded.server.options

    def change(self, **settings: object) -> bool:
        """Reloads with these options changed; the log starts again."""
        return self.load(lambda: replace(self.options, **settings))  # type: ignore[arg-type]

    def load(self, load: Callable[[], ServerOptions]) -> bool:
        async def run() -> bool:
            self.lines.clear()
            return await reload(self.embedded.server, load)

        return self.embedded.run(run())


@pytest.fixture
def reloading(nats_server_factory: Factory) -> Callable[..., Reloading]:
    return lambda **settings: Reloading(nats_server_factory, **settings)


Make = Callable[..., Reloading]


# -- refused


def test_what_needs_a_restart_is_refused_by_name_and_nothing_changes(reloading: Make) -> None:
    server = reloading()
    before = server.options
    assert not server.change(server_name="other", http_base_path="/nowhere", max_payload=10)
    refusal = "[ERR] Failed to reload server configuration: config reload not supported for "
    assert server.lines == [
        refusal + "server_name: old=, new=other",
        refusal + "http_base_path: old=, new=/nowhere",
    ]
    assert server.options is before
    with Wire(server.port) as wire:
        assert wire.info["max_payload"] == before.max_payload


def test_a_configuration_with_a_fault_changes_nothing(reloading: Make) -> None:
    server = reloading()

    def load() -> ServerOptions:
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
        wait_until(lambda: server.embedded.server.sessions.totals.slow_consumers == 1, "the slow consumer")


def test_clients_receive_a_new_address(reloading: Make) -> None:
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


# -- accounts


def account(name: str, **settings: object) -> AccountOptions:
    """An account with one user, named as it is in small letters."""
    user = User(name=name.lower(), password=name.lower(), account=name)
    return AccountOptions(name=name, users=(user,), **settings)  # type: ignore[arg-type]


def login(wire: Wire, user: str) -> None:
    wire.connect(user=user, **{"pass": user})


def test_accounts_come_and_go(reloading: Make) -> None:
    """Clients of an account that stays notice nothing, those of one that is gone are closed."""
    server = reloading(accounts=(account("A"), account("B")))
    with Wire(server.port) as stays, Wire(server.port) as goes:
        login(stays, "a")
        login(goes, "b")
        stays.ask(b"SUB x 1\r\n")
        assert server.change(accounts=(account("A"), account("C")))
        assert goes.rest() == VIOLATION
        assert "B" not in server.embedded.server.accounts
        with Wire(server.port) as new:
            login(new, "c")
            assert new.ask(b"SUB x 1\r\nPUB x 1\r\nc\r\n") == b"MSG x 1 1\r\nc\r\n"
        assert stays.ask(b"PUB x 1\r\na\r\n") == b"MSG x 1 1\r\na\r\n"
    assert "[INF] Reloaded: authorization accounts" in server.lines


def test_limits_and_mappings_of_an_account_change_for_open_connections(reloading: Make) -> None:
    server = reloading(accounts=(account("A"),))
    with Wire(server.port) as wire:
        login(wire, "a")
        wire.ask(b"SUB * 1\r\n")
        mapped = account("A", mappings=(SubjectMapping.to("x", "y"),), max_subscriptions=1)
        assert server.change(accounts=(mapped,))
        assert wire.ask(b"PUB x 1\r\na\r\n") == b"MSG y 1 1\r\na\r\n"
        assert wire.ask(b"SUB z 2\r\n") == b"-ERR 'maximum subscriptions exceeded'\r\n"


def test_a_user_who_changes_accounts_is_closed(reloading: Make) -> None:
    server = reloading(accounts=(account("A"), account("B")))
    moved = replace(account("A").users[0], account="B")
    with Wire(server.port) as wire:
        login(wire, "a")
        both = (replace(account("A"), users=()), replace(account("B"), users=(*account("B").users, moved)))
        assert server.change(accounts=both)
        assert wire.rest() == VIOLATION


def test_jetstream_of_an_account_comes_goes_and_keeps_its_streams(reloading: Make, tmp_path: Path) -> None:
    server = reloading(jetstream=True, store_dir=tmp_path, accounts=(account("A"),))

    def ask(subject: str, body: object = None) -> dict[str, Any]:
        nats = RawNats(server.port, user="a", **{"pass": "a"})
        try:
            return nats.request(subject, body)
        finally:
            nats.close()

    assert ask("$JS.API.INFO")["error"]["err_code"] == 10039
    limited = account("A", jetstream=AccountJetStream(max_streams=1))
    assert server.change(accounts=(limited,))
    assert ask("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})["config"]["name"] == "S"
    assert ask("s")["seq"] == 1
    assert ask("$JS.API.STREAM.CREATE.T", {"name": "T"})["error"]["err_code"] == 10027
    assert server.change(accounts=(account("A", jetstream=AccountJetStream()),))
    assert ask("$JS.API.STREAM.CREATE.T", {"name": "T"})["config"]["name"] == "T"
    assert server.change(accounts=(account("A"),))
    assert ask("$JS.API.INFO")["error"]["err_code"] == 10039
    assert server.change(accounts=(limited,))
    assert ask("s")["seq"] == 2


# -- files


def test_a_new_certificate_is_for_new_handshakes_and_old_ones_stay(reloading: Make, tmp_path: Path) -> None:
    """Also when the files have the same names as before."""
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    old, new = make_certificates(first), make_certificates(second)
    websocket = WebsocketOptions(port=-1, host="127.0.0.1", tls=old.options())
    server = reloading(tls=old.options(), websocket=websocket, https_port=-1)
    ports = [server.embedded.server.websockets.port, server.embedded.server.monitor.port]  # type: ignore[union-attr]
    with Wire(server.port) as wire:
        wire.encrypt(old.client_context())
        wire.connect()
        for name in ("ca.pem", "cert.pem", "key.pem"):  # as a renewal does
            (first / name).write_bytes((second / name).read_bytes())
        assert server.change()
        wait_until(lambda: shakes_hands(ports[0], new), "the new certificate")
        assert shakes_hands(ports[1], new)
        assert wire.ask(b"") == b""
    with Wire(server.port) as wire:
        wire.encrypt(new.client_context())
        wire.connect()


def shakes_hands(port: int, certificates: Certificates) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            certificates.client_context().wrap_socket(plain, server_hostname="localhost").close()
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_a_certificate_that_can_not_be_read_changes_nothing(reloading: Make, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    server = reloading(tls=certificates.options(), pid_file=str(tmp_path / "old.pid"))
    (tmp_path / "key.pem").write_text("nonsense")
    before, new = server.options, str(tmp_path / "new.pid")
    assert not server.change(pid_file=new, max_payload=7, log_file="/nowhere/x")
    assert server.options is before
    assert (tmp_path / "old.pid").exists()
    assert not (tmp_path / "new.pid").exists()
    with Wire(server.port) as wire:
        wire.encrypt(certificates.client_context())
        wire.connect()
        assert wire.info["max_payload"] == before.max_payload


def test_pid_and_ports_files_move(reloading: Make, tmp_path: Path) -> None:
    (tmp_path / "ports").mkdir()
    server = reloading(pid_file=str(tmp_path / "1.pid"))
    assert server.change(pid_file=str(tmp_path / "2.pid"), ports_file_dir=str(tmp_path / "ports"))
    assert not (tmp_path / "1.pid").exists()
    assert (tmp_path / "2.pid").read_text().isdigit()
    assert len(list((tmp_path / "ports").iterdir())) == 1
    assert not server.change(pid_file=str(tmp_path / "3.pid"), ports_file_dir=str(tmp_path / "no" / "such"))
    assert "can not write" in server.lines[0]
    assert not (tmp_path / "3.pid").exists()
    assert (tmp_path / "2.pid").exists()
    assert len(list((tmp_path / "ports").iterdir())) == 1


# -- other blocks


def test_origins_of_websocket_clients_change_and_its_port_does_not(reloading: Make) -> None:
    options = WebsocketOptions(port=-1, host="127.0.0.1", no_tls=True)
    server = reloading(websocket=options)
    port = server.embedded.server.websockets.port  # type: ignore[union-attr]

    def status(origin: str) -> str:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
            head = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            plain.sendall(f"{head}{key}Origin: {origin}\r\n\r\n".encode())
            return plain.recv(4096).split()[1].decode()

    assert status("http://evil.example") == "101"
    assert server.change(websocket=replace(options, allowed_origins=("http://good.example",)))
    assert (status("http://evil.example"), status("http://good.example")) == ("403", "101")
    assert not server.change(websocket=replace(options, port=1, host="127.0.0.2"))
    refusal = "[ERR] Failed to reload server configuration: config reload not supported for websocket."
    assert server.lines == [refusal + "host: old=127.0.0.1, new=127.0.0.2", refusal + "port: old=-1, new=1"]
    assert not server.change(websocket=None)


def test_jetstream_limits_change_and_its_directory_does_not(reloading: Make, tmp_path: Path) -> None:
    server = reloading(jetstream=True, store_dir=tmp_path)
    jetstream = server.options.jetstream
    assert jetstream is not None
    assert server.change(jetstream=replace(jetstream, max_file_bytes=1000))
    nats = RawNats(server.port)
    refused = nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "max_bytes": 2000})
    assert refused["error"]["err_code"] == 10047
    nats.close()
    assert not server.change(jetstream=replace(jetstream, store_dir="/elsewhere"))
    assert f"jetstream.store_dir: old={tmp_path}, new=/elsewhere" in server.lines[0]


def test_a_lower_max_pending_binds_receivers_that_are_connected(reloading: Make) -> None:
    server = reloading()
    with Wire(server.port, receive_buffer=4096) as slow, Wire(server.port) as wire:
        slow.connect()
        slow.ask(b"SUB x 1\r\n")
        wire.connect()
        assert server.change(max_pending=2_000_000, max_payload=1_000_000)
        for _ in range(20):
            wire.ask(b"PUB x 1000000\r\n" + bytes(1_000_000) + b"\r\n")
        wait_until(lambda: server.embedded.server.sessions.totals.slow_consumers == 1, "the slow consumer")


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
    assert changes(ServerOptions(), ServerOptions()) == []
    assert changes(ServerOptions(), ServerOptions(port=1, trace=True)) == ["port", "trace"]


# -- as a process


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_file_is_reported_with_its_place_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    """The official server tells the same place."""
    with served(kind, tmp_path, "max_payload: 100\n") as server:
        (tmp_path / "nats.conf").write_text("max_payload: 200\nauthorization {\n  colour: 1\n}\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("Failed to reload server configuration")
        assert f'{tmp_path}/nats.conf:3:3: unknown field "colour"' in server.log
        with Wire(server.port) as wire:
            assert wire.info["max_payload"] == 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_changes_are_taken_over_and_refused(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with served(kind, tmp_path, f'log_file: "{log}"\nmax_payload: 100\n', log=False) as server:
        server.wait_for("Server is ready")
        conf = f'log_file: "{log}"\nmax_payload: 200\ndebug: true\nping_interval: "10s"\nmax_connections: 5\n'
        (tmp_path / "nats.conf").write_text(conf + f'pid_file: "{tmp_path}/x.pid"\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("Reloaded server configuration")
        assert (tmp_path / "x.pid").read_text() == str(server.process.pid)
        for line in ("Reloaded: max_payload = 200", "Reloaded: max_connections = 5"):
            assert line in server.log
        with Wire(server.port) as wire:
            assert wire.info["max_payload"] == 200
        (tmp_path / "nats.conf").write_text(conf + "server_name: other\nmax_payload: 300\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("config reload not supported for")
        with Wire(server.port) as wire:
            assert wire.info["max_payload"] == 200


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
        reported = second.read_text()
        assert "[INF] Reloaded: max_payload = 200\n" in reported
        assert f"[INF] Reloaded: log_file = {second}\n" in reported
        assert "[INF] Reloaded: debug = True\n" in reported
        config.write_text("{")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "[ERR] Failed to reload" in second.read_text(), "the refusal")
        assert "Reloaded" not in first.read_text()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


async def test_clients_are_served_while_a_configuration_is_read() -> None:
    async with Server() as server:
        served = threading.Event()

        def load() -> ServerOptions:
            assert served.wait(30), "nothing was served while the configuration was read"
            return replace(server.options, max_payload=1000)

        first = asyncio.create_task(apply_reload(server, load))
        second = asyncio.create_task(apply_reload(server, lambda: replace(server.options, max_payload=2000)))
        async with await penstock.connect(server.url) as client:
            subscription = await client.subscribe("a")
            await client.publish("a", b"x")
            assert (await subscription.next(timeout=30)).data == b"x"
        assert server.options.max_payload > 2000
        served.set()
        await first
        assert server.options.max_payload == 1000
        await second  # it waited for the first
        assert server.options.max_payload == 2000
