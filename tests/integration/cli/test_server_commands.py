"""`penstock server` on both servers, with users of the system account and of another one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.command_runs import CommandShell
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("cli.server")

CONF = """
server_name: s1
accounts {
  $SYS { users: [{user: admin, password: pw}] }
  APP { jetstream: enabled, users: [{user: app, password: pw}] }
}
"""


class Shells(NamedTuple):
    """Shells of two users of one server."""

    admin: CommandShell
    app: CommandShell
    port: int


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shells(kind: str, tmp_path: Path) -> Iterator[Shells]:
    with running_conf(kind, CONF, tmp_path / "server") as port:
        url = f"nats://127.0.0.1:{port}"
        made = [
            CommandShell(tmp_path, url, ("--user", user, "--password", "pw")) for user in ("admin", "app")
        ]
        yield Shells(*made, port)


def test_servers_are_listed_pinged_and_shown(shells: Shells) -> None:
    admin = shells.admin
    (found,) = admin.json("server", "list")
    assert found["server"]["name"] == "s1"
    assert "Server Overview" in admin.ok("server", "list", "--sort", "conns").text
    assert "1 replies" in admin.ok("server", "ping").text
    few = admin.run("server", "ping", "2", "--timeout", "500ms")
    assert (few.status, "1 servers answered, 2 were expected" in few.err) == (1, True)
    assert admin.json("server", "info")["server_name"] == "s1"
    text = admin.ok("server", "info", "s1").text
    assert "Server information for s1" in text
    wrong = admin.run("server", "info", "s2")
    assert (wrong.status, "those that answered: s1" in wrong.err) == (1, True)


def test_users_of_other_accounts_are_refused_with_advice(shells: Shells) -> None:
    ran = shells.app.run("server", "list", "--timeout", "1s")
    assert (ran.status, "system account" in ran.err) == (1, True)


def test_pages_are_requested_with_their_options(shells: Shells) -> None:
    admin = shells.admin
    shells.app.ok("kv", "add", "B")
    (varz,) = admin.json("server", "request", "variables")
    assert varz["data"]["server_name"] == "s1"
    (jsz,) = admin.json("server", "request", "jetstream", "--account", "APP", "--streams")
    (account,) = jsz["data"]["account_details"]
    assert [one["name"] for one in account["stream_detail"]] == ["KV_B"]
    (accounts,) = admin.json("server", "request", "accounts")
    assert "APP" in accounts["data"]["accounts"]
    (health,) = admin.json("server", "request", "healthz")
    assert health["data"]["status"] == "ok"
    (subs,) = admin.json("server", "request", "subscriptions", "--limit", "1", "--detail")
    assert len(subs["data"]["subscriptions_list"]) == 1
    for page in ("gateways", "leafnodes", "routes", "raft", "ipqueue"):
        assert len(admin.json("server", "request", page, "1")) == 1
    other = admin.run("server", "request", "variables", "--name", "other", "--timeout", "500ms")
    assert other.status == 1


def test_profiles_are_those_of_go(shells: Shells, kind: str, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    ran = shells.admin.run("server", "request", "profile", "heap", str(tmp_path / "profiles"))
    files = list((tmp_path / "profiles").glob("heap-*-s1"))
    if kind == "official":
        (file,) = files
        assert (ran.status, file.read_bytes()[:2]) == (0, b"\x1f\x8b"), ran  # gzip, as pprof reads it
        assert str(file) in ran.text
    else:
        assert (ran.status, files) == (1, [])
        assert "py-spy record" in ran.err, ran.err


def test_jetstream_of_a_server_is_drawn(shells: Shells) -> None:
    shells.app.ok("kv", "add", "B")
    drawn = shells.admin.json("server", "graph", "s1", "--jetstream", "--max-refresh", "1")
    assert set(drawn["values"]) == {"Memory", "File", "API Requests", "API Errors", "Pending"}
    assert "JetStream of server s1" in shells.admin.ok("server", "graph", "s1", "--jetstream").text


def test_requests_to_the_api_are_counted(shells: Shells, kind: str) -> None:
    words = ("server", "watch", "api", "requests", "--interval", "300ms", "--max-refresh", "20", "--json")
    watching = shells.app.start(*words)
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline()) == []
    shells.app.ok("kv", "add", "B")
    shells.app.run("stream", "info", "MISSING")
    counted: dict[tuple[str, str], dict[str, Any]] = {}
    while ("STREAM.INFO", "MISSING") not in counted:
        rows = json.loads(watching.stdout.readline())
        counted = {(row["request"], row["asset"]): row for row in rows}
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=20)
    assert watching.returncode == 0
    row = counted["STREAM.CREATE", "KV_B"]
    assert (row["account"], row["count"], row["recent"]) == ("APP", 1, 1)


def test_connections_and_accounts_are_reported(shells: Shells) -> None:
    client = RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})
    with closing(client):
        client.subscribe("orders.*", 1)
        client.flush()
        found = shells.admin.json("server", "report", "connections", "--account", "APP")
        assert [(one["name"], one["account"], one["server_name"]) for one in found] == [("mine", "APP", "s1")]
        assert (
            "mine"
            in shells.admin.ok("server", "report", "conns", "--subject", "orders.1", "--account", "APP").text
        )
        totals = {one["account"]: one for one in shells.admin.json("server", "report", "accounts")}
        assert (totals["APP"]["connections"], totals["APP"]["subscriptions"]) == (1, 1)
        text = shells.admin.ok("server", "report", "accounts", "APP").text
        assert "Connections of account APP" in text
        cid = str(found[0]["cid"])
        shells.admin.ok("server", "request", "kick", cid, "s1")
        assert shells.admin.json("server", "report", "connections", "--account", "APP") == []
    closed = shells.admin.json("server", "report", "conns", "--state", "closed", "--closed-reason", "kick")
    assert [one["name"] for one in closed] == ["mine"]


def test_jetstream_health_and_load_are_reported(shells: Shells) -> None:
    shells.app.ok("kv", "add", "B")
    admin = shells.admin
    (jsz,) = admin.json("server", "report", "jetstream")
    assert jsz["data"]["streams"] == 1
    assert "JetStream Summary" in admin.ok("server", "report", "js", "--sort", "streams").text
    assert "ok (200)" in admin.ok("server", "report", "health").text
    sick = admin.run("server", "report", "health", "--account", "APP", "--stream", "MISSING")
    assert (sick.status, "not healthy: s1" in sick.err) == (1, True)
    assert admin.json("server", "report", "mem")[0]["server"] == "s1"
    assert "CPU Usage" in admin.ok("server", "report", "cpu").text
    assert admin.json("server", "report", "routes") == admin.json("server", "report", "leafnodes") == []
    assert "Route Report" in admin.ok("server", "report", "routes").text


def test_a_server_without_a_cluster_has_no_leader_to_step_down(shells: Shells) -> None:
    ran = shells.admin.run("server", "cluster", "step-down", "--force", "--timeout", "1s")
    assert ran.status == 1
    refused = shells.admin.run("server", "raft", "peer-remove", "s2")
    assert (refused.status, "give --force" in refused.err) == (2, True)


# --- checks ----------------------------------------------------------------------------------------


def test_checks_have_the_exit_codes_of_monitoring_plugins(shells: Shells) -> None:
    app = shells.app
    fine = app.run("server", "check", "connection")
    assert (fine.status, fine.text.startswith("OK Connection OK:connected to ")) == (0, True)
    slow = app.run("server", "check", "connection", "--rtt-critical", "1ns", "--rtt-warn", "1ns")
    assert (slow.status, "CRITICAL" in slow.text) == (2, True)
    warned = app.run("server", "check", "connection", "--rtt-warn", "1ns")
    assert (warned.status, "WARNING" in warned.text) == (1, True)
    away = CommandShell(app.home, "nats://127.0.0.1:1").run("server", "check", "connection")
    assert (away.status, away.text.startswith("CRITICAL")) == (2, True)
    metrics = app.run("server", "check", "connection", "--rtt-critical", "1ns", "--format", "prometheus")
    assert (metrics.status, 'status="CRITICAL"} 2' in metrics.text) == (0, True)
    assert app.json("server", "check", "connection")["status"] == "OK"


def test_streams_consumers_messages_and_buckets_are_checked(shells: Shells) -> None:
    app = shells.app
    app.ok("kv", "add", "B")
    app.ok("kv", "put", "B", "k", "17")
    assert app.run("server", "check", "stream", "--stream", "KV_B", "--msgs-critical", "1").status == 2
    assert app.run("server", "check", "stream", "--stream", "KV_B", "--msgs-warn", "1").status == 1
    assert app.ok("server", "check", "stream", "--stream", "KV_B").status == 0
    missing = app.run("server", "check", "stream", "--stream", "MISSING")
    assert (missing.status, "stream not found" in missing.text) == (2, True), missing
    message = ["server", "check", "message", "--stream", "KV_B", "--subject", "$KV.B.k"]
    assert app.ok(*message, "--content", "^1").status == 0
    assert app.run(*message, "--content", "^2").status == 2
    assert app.run(*message, "--body-timestamp", "--age-critical", "1h").status == 2
    assert app.ok("server", "check", "kv", "--bucket", "B", "--key", "k").status == 0
    assert app.run("server", "check", "kv", "--bucket", "B", "--key", "x").status == 2
    assert app.run("server", "check", "kv", "--bucket", "B", "--values-warn", "1").status == 1
    with closing(RawNats(shells.port, user="app", **{"pass": "pw"})) as client:
        config = {"durable_name": "C", "ack_policy": "explicit"}
        made = client.request(
            "$JS.API.CONSUMER.DURABLE.CREATE.KV_B.C", {"stream_name": "KV_B", "config": config}
        )
        assert "error" not in made
    consumer = ["server", "check", "consumer", "--stream", "KV_B", "--consumer", "C"]
    assert app.ok(*consumer).text.startswith("OK KV_B_C")
    assert app.run(*consumer, "--unprocessed-critical", "1").status == 2
    assert app.run(*consumer, "--last-ack-critical", "1s").status == 2
    needed = app.run("server", "check", "consumer", "--stream", "KV_B")
    assert (needed.status, "--consumer is missing" in needed.err) == (2, True)


def test_servers_and_jetstream_are_checked(shells: Shells, tmp_path: Path) -> None:
    admin, app = shells.admin, shells.app
    checked = admin.json("server", "check", "server", "--name", "s1", "--js-required", "--auth-required")
    assert checked["ok"] == ["JetStream enabled", "Authentication required"]
    assert admin.run("server", "check", "server", "--tls-required").status == 2
    assert admin.run("server", "check", "server", "--uptime-warn", "100d").status == 1
    assert admin.run("server", "check", "server", "--conn-critical", "5", "--conn-warn", "9").status == 2
    assert admin.run("server", "check", "meta").status == 2
    outfile = tmp_path / "result.txt"
    app.ok("server", "check", "jetstream", "--outfile", str(outfile))
    assert outfile.read_text().startswith("OK JetStream")


def test_a_request_is_checked_by_its_answer(shells: Shells) -> None:
    app = shells.app
    words = ["server", "check", "request", "--subject", "$JS.API.INFO"]
    assert app.ok(*words, "--match-payload", "account_info_response").status == 0
    assert app.run(*words, "--match-payload", "nothing like it").status == 2
    assert app.run("server", "check", "request", "--subject", "no.such.service").status == 2
    bad = app.run(*words, "--match-payload", "(")
    assert (bad.status, "regular expression" in bad.err) == (2, True)
