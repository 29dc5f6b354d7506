"""`penstock server` on a cluster of three official servers: step-down, peer-remove, and what reports show."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import OfficialServer, free_port, official_binary

pytestmark = [pytest.mark.feature("cli.server"), pytest.mark.official]

CONF = """
server_name: {name}
cluster {{ name: C, listen: "127.0.0.1:{port}", routes: [{routes}] }}
accounts {{
  $SYS {{ users: [{{user: admin, password: pw}}] }}
  APP {{ jetstream: enabled, users: [{{user: app, password: pw}}] }}
}}
"""
LOGIN = ("--password", "pw")


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandShell]:
    binary, home = official_binary(), tmp_path_factory.mktemp("cluster")
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = []
    for number, port in enumerate(ports, 1):
        conf = home / f"n{number}.conf"
        conf.write_text(CONF.format(name=f"n{number}", port=port, routes=routes))
        servers.append(OfficialServer(binary, home / f"n{number}", ("-c", str(conf))))
    try:
        for server in servers:
            server.start()
        shell = CommandShell(home, servers[0].url, ("--user", "admin", *LOGIN))
        until_led(shell, 3)
        yield shell
    finally:
        for server in servers:
            server.stop()


def until_led(shell: CommandShell, number: int) -> str:
    """The leader of the cluster, once so many servers are current."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ran = shell.run("server", "check", "meta", "--expect", str(number), "--json", "--timeout", "2s")
        if ran.out and ran.json["status"] == "OK":
            return str(ran.json["ok"][0]).rpartition(" ")[2]
    raise TimeoutError(ran)


def test_all_servers_are_listed_and_reported(admin: CommandShell, tmp_path: Path) -> None:
    assert {one["server"]["name"] for one in admin.json("server", "list", "3")} == {"n1", "n2", "n3"}
    assert "3 replies" in admin.ok("server", "ping", "3").text
    assert admin.json("server", "info", "n2")["server_name"] == "n2"
    text = admin.ok("server", "report", "jetstream", "3").text
    assert "RAFT Meta Group Information" in text
    routes = admin.json("server", "report", "routes", "3")
    assert {(one["server"], one["remote_name"]) for one in routes} == {
        (one, other) for one in ("n1", "n2", "n3") for other in ("n1", "n2", "n3") if one != other
    }


def test_the_leader_steps_down_and_a_server_is_removed(admin: CommandShell) -> None:
    before = until_led(admin, 3)
    admin.ok("server", "cluster", "step-down", "--force")
    deadline = time.monotonic() + 30
    while until_led(admin, 3) == before:
        assert time.monotonic() < deadline, "the leader stayed"
    missing = admin.run("server", "raft", "peer-remove", "other", "--force")
    assert (missing.status, "peer" in missing.err) == (1, True), missing


def test_replicas_of_streams_are_checked(admin: CommandShell) -> None:
    url = admin.json("account", "info")["connection"]["url"]
    app = CommandShell(admin.home, url, ("--user", "app", *LOGIN))
    app.ok("kv", "add", "B", "--replicas", "3")
    deadline = time.monotonic() + 20
    check = (
        "server",
        "check",
        "stream",
        "--stream",
        "KV_B",
        "--peer-expect",
        "3",
        "--peer-lag-critical",
        "5",
    )
    while (ran := app.run(*check)).status:
        assert time.monotonic() < deadline, ran
    assert "3 peers" in ran.text
    assert app.run("server", "check", "stream", "--stream", "KV_B", "--peer-expect", "5").status == 2
    assert app.ok("server", "check", "jetstream").text.startswith("OK JetStream")
    assert "Cluster Information" in app.ok("kv", "info", "B").text
