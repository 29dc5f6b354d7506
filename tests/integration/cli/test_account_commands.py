"""`penstock account`, `events`, `top`, `trace` and `latency` on both servers."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.cli.test_server_commands import CONF, Shells
from tests.support.command_runs import CommandShell
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("cli.account")


@pytest.fixture(params=KINDS)
def shells(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shells]:
    with running_conf(request.param, CONF, tmp_path / "server") as port:
        url = f"nats://127.0.0.1:{port}"
        made = [
            CommandShell(tmp_path, url, ("--user", user, "--password", "pw")) for user in ("admin", "app")
        ]
        yield Shells(*made, port)


# --- account ---------------------------------------------------------------------------------------


def test_an_account_is_shown_with_its_use_of_jetstream(shells: Shells) -> None:
    shells.app.ok("kv", "add", "B")
    page = shells.app.json("account", "info")
    assert (page["user"]["user"], page["user"]["account"]) == ("app", "APP")
    assert page["jetstream"]["streams"] == 1
    text = shells.app.ok("account", "info").text
    assert "Account: APP" in text
    assert "Streams: 1 of unlimited" in text
    assert "not enabled for this account" in shells.admin.ok("account", "info", "--timeout", "1s").text


def test_connections_and_traffic_of_the_own_account_are_reported(shells: Shells) -> None:
    client = RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})
    with closing(client):
        found = {one["name"] for one in shells.app.json("account", "report", "connections")}
        assert "mine" in found
        assert "of the account" in shells.app.ok("account", "report", "conns", "--sort", "cid").text
        (stats,) = shells.app.json("account", "report", "statistics")
        assert (stats["acc"], stats["server"]) == ("APP", "s1")
        assert "Account Statistics" in shells.app.ok("account", "report", "stats").text


def test_all_streams_are_backed_up_and_restored(shells: Shells, tmp_path: Path) -> None:
    app, target = shells.app, tmp_path / "backup"
    for name in ("A", "B"):
        app.ok("kv", "add", name)
        app.ok("kv", "put", name, "k", f"value of {name}")
    written = app.json("account", "backup", str(target), "--force")
    assert [one["stream"] for one in written["streams"]] == ["KV_A", "KV_B"]
    again = app.run("account", "backup", str(target), "--force")
    assert (again.status, "has a backup already" in again.err) == (1, True)
    app.ok("kv", "rm", "A", "--force")
    part = app.run("account", "restore", str(target))
    assert (part.status, "not restored: KV_B" in part.err) == (1, True), part.err
    assert app.json("kv", "get", "A", "k")["value"] == "value of A"
    app.ok("kv", "rm", "A", "--force")
    restored = app.json("account", "restore", str(target), "--skip-existing")
    assert [one["stream"] for one in restored["streams"]] == ["KV_A"]
    empty = app.run("account", "restore", str(tmp_path))
    assert (empty.status, "no backups of streams" in empty.err) == (1, True)


# --- events ----------------------------------------------------------------------------------------


def _listening(shell: CommandShell, *words: str) -> subprocess.Popen[bytes]:
    process = shell.start("events", *words)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert b"Listening for events" in line, line + process.stderr.read()
    return process


def test_advisories_are_shown_as_they_come(shells: Shells) -> None:
    words = ("--js-advisory", "--no-srv-advisory", "--filter", "stream_action", "--count", "1")
    listening = [_listening(shells.app, *words, *form) for form in ((), ("--short",), ("--cloudevent",))]
    shells.app.ok("kv", "add", "B")
    full, short, page = (process.communicate(timeout=20)[0].decode() for process in listening)
    assert "create of stream KV_B" in short
    assert len(short.splitlines()) == 1
    assert "action: create" in full
    assert json.loads(page)["data"]["stream"] == "KV_B"


def test_events_of_servers_need_the_system_account(shells: Shells) -> None:
    listening = _listening(shells.admin, "--short", "--count", "1", "--filter", "mine")
    with closing(RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})):
        pass
    assert b"mine of account APP" in listening.communicate(timeout=20)[0]


def test_stored_events_are_read_from_a_stream(shells: Shells) -> None:
    client = RawNats(shells.port, user="app", **{"pass": "pw"})
    with closing(client):
        config = {"name": "EVENTS", "subjects": ["$JS.EVENT.ADVISORY.STREAM.>"]}
        assert "error" not in client.request("$JS.API.STREAM.CREATE.EVENTS", config)
    shells.app.ok("kv", "add", "B")
    words = ("events", "--stream", "EVENTS", "--filter", "KV_B", "--count", "1")
    assert shells.app.ok(*words, "--json").json["stream"] == "KV_B"
    event = shells.app.ok(*words, "--cloudevent", "--since", "1h").json
    assert (event["specversion"], event["data"]["stream"]) == ("1.0", "KV_B")


def test_wrong_options_of_events_are_refused(shells: Shells) -> None:
    none = shells.app.run("events", "--no-srv-advisory")
    assert (none.status, "no events are asked for" in none.err) == (2, True)
    bad = shells.app.run("events", "--filter", "(")
    assert (bad.status, "not a regular expression" in bad.err) == (2, True)


# --- top, trace, latency ---------------------------------------------------------------------------


def test_top_shows_connections_and_rates(shells: Shells) -> None:
    client = RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})
    with closing(client):
        text = shells.admin.ok("top").text
        assert "Server: s1" in text
        assert "mine" in text
        samples = shells.admin.ok(
            "top", "s1", "--json", "--max-refresh", "2", "--interval", "100ms"
        ).json_lines
        assert len(samples) == 2
        assert samples[0]["rates"]["in_msgs"] == 0
        assert samples[1]["rates"]["in_msgs"] > 0
    assert shells.admin.run("top", "--interval", "1ms").status == 2


def test_top_writes_files_and_shows_subscriptions_and_names_of_hosts(shells: Shells, tmp_path: Path) -> None:
    client = RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})
    with closing(client):
        client.subscribe("orders.new", 1)
        client.flush()
        saved = tmp_path / "top.txt"
        ran = shells.admin.ok("top", "--output", str(saved), "--subs")
        assert (ran.text, str(saved) in ran.err) == ("", True)
        assert "Server: s1" in saved.read_text()
        assert "orders.new" in saved.read_text()
        rows = list(csv.DictReader(shells.admin.ok("top", "--delimiter", ",", "--subs").text.splitlines()))
        (row,) = [one for one in rows if one["Name"] == "mine"]
        assert (row["Account"], row["Subs"], row["Subscriptions"]) == ("APP", "1", "orders.new")
        assert row["Host"].startswith("127.0.0.1:")
        (named,) = csv.DictReader(shells.admin.ok("top", "--delimiter", "\\t", "--lookup", "-n", "1").text
                                  .splitlines(), delimiter="\t")  # fmt: skip
        assert not named["Host"].startswith("127.0.0.1:")
    wrong = shells.admin.run("top", "--delimiter", ", ")
    assert (wrong.status, "one character" in wrong.err) == (2, True)


def test_a_message_is_traced_to_subscriptions_and_streams(shells: Shells) -> None:
    client = RawNats(shells.port, user="app", name="mine", **{"pass": "pw"})
    with closing(client):
        config = {"name": "ORDERS", "subjects": ["orders.*"]}
        assert "error" not in client.request("$JS.API.STREAM.CREATE.ORDERS", config)
        client.subscribe("orders.new", 1)
        client.flush()
        text = shells.app.ok("trace", "orders.new", "hello").text
        assert "subject: orders.new server: s1" in text
        assert "JetStream stream: ORDERS" in text
        assert "1 deliveries, 1 streams, 1 servers" in text
        timed = shells.app.ok("trace", "orders.new", "hello", "--timestamp").text
        assert re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", timed, re.M), timed
        assert shells.app.json("kv", "ls") == []
        stored = client.request("$JS.API.STREAM.INFO.ORDERS")["state"]["messages"]
        assert stored == 0
        (report,) = shells.app.json("trace", "orders.new", "hello", "--deliver")
        assert {event["type"] for event in report["events"]} == {"in", "js", "eg"}
        assert client.request("$JS.API.STREAM.INFO.ORDERS")["state"]["messages"] == 1


def test_latency_is_measured_through_the_server(shells: Shells, tmp_path: Path) -> None:
    words = ("latency", "--duration", "200ms", "--rate", "500", "--size", "64")
    page = shells.app.json(*words, "--histogram", str(tmp_path / "times"))
    assert page["messages"] == page["received"] == 100
    assert 0 < page["percentiles_s"]["50"] <= page["percentiles_s"]["100"]
    assert len((tmp_path / "times").read_text().splitlines()) == 100
    assert "Percentiles" in shells.app.ok(*words).text
    assert shells.app.run("latency", "--size", "4").status == 2
