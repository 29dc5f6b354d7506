"""`penstock consumer ...` against both servers."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("cli.commands")


@pytest.fixture(autouse=True)
def orders(run: CommandLine) -> None:
    run("stream", "add", "ORDERS", "--subjects", "ORDERS.*", "--defaults")


def test_consumers_are_created_as_in_the_documents(run: CommandLine) -> None:
    new = run(
        *("consumer", "add", "ORDERS", "NEW", "--filter", "ORDERS.received", "--ack", "explicit"),
        *("--pull", "--deliver", "all", "--max-deliver=-1", "--sample", "100"),
    )
    assert new.rows["Filter Subject"] == "ORDERS.received"
    assert new.rows["Sampling Rate"] == "100"
    assert (new.rows["Pull Mode"], new.rows["Deliver Policy"], new.rows["Ack Policy"]) == (
        "true",
        "All",
        "Explicit",
    )
    monitor = run(
        *("con", "add", "ORDERS", "MONITOR", "--filter", "", "--ack", "none"),
        *("--target", "monitor.ORDERS", "--deliver", "last", "--replay", "instant"),
    )
    assert monitor.rows["Delivery Subject"] == "monitor.ORDERS"
    assert "Filter Subject" not in monitor.rows
    assert run("consumer", "ls", "ORDERS", "-n").out == "MONITOR\nNEW\n"


def test_every_option_reaches_the_server(run: CommandLine) -> None:
    made = run(
        *("consumer", "add", "ORDERS", "P", "--json", "--description", "d", "--headers-only", "--memory"),
        *("--max-deliver", "20", "--max-pending", "7", "--max-waiting", "9", "--max-pull-batch", "5"),
        *("--max-pull-expire", "10s", "--max-pull-bytes", "1MB", "--wait", "5s", "--metadata", "a=b"),
        *("--inactive-threshold", "1h", "--filter", "ORDERS.a,ORDERS.b", "--backoff", "linear"),
        *("--backoff-steps", "3", "--backoff-min", "1s", "--backoff-max", "5s", "--pause", "1h"),
    ).json
    config = made["config"]
    wanted = {
        "description": "d",
        "headers_only": True,
        "mem_storage": True,
        "max_deliver": 20,
        "max_ack_pending": 7,
        "max_waiting": 9,
        "max_batch": 5,
        "max_expires": 10_000_000_000,
        "max_bytes": 1 << 20,
        "inactive_threshold": 3_600_000_000_000,
        "filter_subjects": ["ORDERS.a", "ORDERS.b"],
        "backoff": [1_000_000_000, 3_000_000_000, 5_000_000_000],
    }
    assert {key: config[key] for key in wanted} == wanted
    assert config["metadata"]["a"] == "b"
    assert made["paused"] is True
    push = run(
        *("consumer", "add", "ORDERS", "Q", "--target", "q", "--deliver-group", "g", "--heartbeat", "5s"),
        *("--flow-control", "--bps", "100000", "--json"),
    ).json["config"]
    assert (push["deliver_group"], push["idle_heartbeat"], push["flow_control"]) == ("g", 5_000_000_000, True)
    pinned = run(
        "consumer", "add", "ORDERS", "R", "--pinned-groups", "a", "--pinned-ttl", "1m", "--json"
    ).json
    assert (pinned["config"]["priority_groups"], pinned["config"]["priority_policy"]) == (
        ["a"],
        "pinned_client",
    )


@pytest.mark.feature("cli.commands")
def test_the_counters_are_those_of_the_walk_through(run: CommandLine) -> None:
    """The official documents show the sequence to deliver next; servers of today say the last delivered
    one."""
    run(
        "consumer", "add", "ORDERS", "DISPATCH", "--filter", "ORDERS.processed", "--ack", "explicit", "--pull"
    )

    def state() -> tuple[str, str, str, str]:
        rows = run("con", "info", "ORDERS", "DISPATCH").rows
        names = ("Last Delivered Message", "Acknowledgment Floor", "Outstanding Acks", "Redelivered Messages")
        return tuple(rows[name].split(" Last ")[0].split(" out of ")[0] for name in names)  # type: ignore[return-value]

    def sequences(consumer: int, stream: int) -> str:
        return f"Consumer sequence: {consumer} Stream sequence: {stream}"

    run("pub", "ORDERS.processed", "order 4")
    got = run("con", "next", "ORDERS", "DISPATCH")
    assert "subj: ORDERS.processed / tries: 1 / cons seq: 1 / str seq: 1 / pending: 0" in got.out
    assert "order 4" in got.out and "Acknowledged message" in got.out
    assert state() == (sequences(1, 1), sequences(1, 1), "0", "0")
    run("pub", "ORDERS.processed", "order 5")
    assert "Acknowledged" not in run("consumer", "next", "ORDERS", "DISPATCH", "--no-ack").out
    assert state() == (sequences(2, 2), sequences(1, 1), "1", "0")


def test_a_message_is_delivered_again_until_it_is_acked(run: CommandLine) -> None:
    run("consumer", "add", "ORDERS", "D")
    run("pub", "ORDERS.x", "1")
    assert "tries: 1" in run("consumer", "next", "ORDERS", "D", "--nak").out
    assert "tries: 2" in run("consumer", "next", "ORDERS", "D", "--nak").out
    assert "tries: 3" in run("consumer", "next", "ORDERS", "D", "--term").out
    error = run.refused("consumer", "next", "ORDERS", "D", "--wait", "200ms")
    assert "had no message within 0.2 s" in error
    run("pub", "ORDERS.x", "m{{Count}}", "--count", "5", "-H", "A:1")
    assert run("consumer", "next", "ORDERS", "D", "--raw", "--count", "2").out == "m1\nm2\n"
    lines = run("consumer", "next", "ORDERS", "D", "--json", "--count", "2").out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [4, 5]
    assert json.loads(lines[0])["headers"] == {"A": ["1"]}
    assert run("consumer", "sub", "ORDERS", "D", "--raw", "--count", "1").out == "m5\n"


@pytest.mark.parametrize(
    ("deliver", "expected"), [("all", "m1"), ("last", "m3"), ("2", "m2"), ("1h", "m1"), ("subject", "m3")]
)
def test_a_consumer_begins_where_it_should(run: CommandLine, deliver: str, expected: str) -> None:
    run("pub", "ORDERS.x", "m{{Count}}", "--count", "3")
    run("consumer", "add", "ORDERS", "C", "--ack", "none", "--deliver", deliver, "--filter", "ORDERS.x")
    assert run("consumer", "next", "ORDERS", "C", "--raw").out == f"{expected}\n"


def test_consumers_are_edited_copied_and_removed(run: CommandLine) -> None:
    run("consumer", "add", "ORDERS", "A", "--max-pending", "5")
    assert (
        "max_ack_pending is 9, was 5"
        in run("consumer", "edit", "ORDERS", "A", "--max-pending", "9", "--dry-run").err
    )
    assert run("consumer", "info", "ORDERS", "A", "--json").json["config"]["max_ack_pending"] == 5
    run("consumer", "edit", "ORDERS", "A", "--max-pending", "9", "--filter", "ORDERS.x", "-f")
    config = run("consumer", "info", "ORDERS", "A", "--json").json["config"]
    assert (config["max_ack_pending"], config["filter_subject"]) == (9, "ORDERS.x")
    assert "nothing differs" in run("consumer", "edit", "ORDERS", "A", "--max-pending", "9", "-f").err
    run("consumer", "copy", "ORDERS", "A", "B", "--description", "copied")
    config = run("consumer", "info", "ORDERS", "B", "--json").json["config"]
    assert (config["max_ack_pending"], config["description"]) == (9, "copied")
    run("consumer", "rm", "ORDERS", "A", "-f")
    assert run("consumer", "ls", "ORDERS", "--json", "-n").json == ["B"]


def test_a_consumer_is_paused_resumed_and_reset(run: CommandLine) -> None:
    run("consumer", "add", "ORDERS", "A")
    assert "Paused ORDERS > A until" in run("consumer", "pause", "ORDERS", "A", "1h", "-f").out
    assert run("consumer", "info", "ORDERS", "A", "--json").json["paused"] is True
    assert "Resumed" in run("consumer", "resume", "ORDERS", "A", "-f").out
    assert "is not paused" in run.refused("consumer", "resume", "ORDERS", "A", "-f")
    run("pub", "ORDERS.x", "m{{Count}}", "--count", "3")
    run("consumer", "next", "ORDERS", "A", "--count", "3")
    assert "sequence 2" in run("consumer", "reset", "ORDERS", "A", "--sequence", "2", "-f").out
    assert run("consumer", "next", "ORDERS", "A", "--raw").out == "m2\n"


def test_reports_list_consumers(run: CommandLine) -> None:
    run("consumer", "add", "ORDERS", "A")
    run("consumer", "add", "ORDERS", "B", "--target", "b", "--ack", "none")
    run("pub", "ORDERS.x", "1")
    report = run("consumer", "report", "ORDERS").out
    assert "│ A        │ Pull │ Explicit   │" in report
    assert run("consumer", "find", "ORDERS", "--push", "-n").out == "B\n"
    assert run("consumer", "find", "ORDERS", "--push", "--invert", "-n").out == "A\n"
    assert run("consumer", "find", "ORDERS", "--pending", "1", "-n").out == ""
    assert run("consumer", "state", "ORDERS", "A").rows["Unprocessed Messages"] == "1"
    assert [one["name"] for one in run("consumer", "ls", "ORDERS", "--json").json] == ["A", "B"]
    assert "│ A " in run("consumer", "ls", "ORDERS").out


def test_a_push_consumer_delivers_to_its_subscriber(run: CommandLine) -> None:
    run("pub", "ORDERS.x", "m{{Count}}", "--count", "2")
    run("consumer", "add", "ORDERS", "P", "--target", "p", "--ack", "explicit")
    assert run("consumer", "sub", "ORDERS", "P", "--raw", "--count", "2").out == "m1\nm2\n"
    assert run("consumer", "info", "ORDERS", "P", "--json").json["ack_floor"]["stream_seq"] == 2


def test_an_ephemeral_consumer_has_a_name_of_its_own(run: CommandLine) -> None:
    made = run(
        "consumer", "add", "ORDERS", "--ephemeral", "--ack", "none", "--target", "my.monitor", "--json"
    ).json
    assert "durable_name" not in made["config"]
    assert made["name"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["info", "ORDERS", "NONE"], 1, "consumer not found"),
        (["info", "NONE", "NONE"], 1, "stream not found"),
        (["rm", "ORDERS", "NONE", "-f"], 1, "consumer not found"),
        (["add", "ORDERS"], 2, "consumer is missing"),
        (["add", "ORDERS", "A", "--deliver", "frist"], 2, "--deliver is 'frist'"),
        (["add", "ORDERS", "A", "--ack", "maybe"], 2, "one of none, all, explicit"),
        (["add", "ORDERS", "A", "--pull", "--target", "x"], 2, "--pull and --target"),
        (["add", "ORDERS", "A", "--filter", "a..b"], 2, "a..b"),
        (["next", "ORDERS", "NONE"], 1, "consumer not found"),
        (["next", "ORDERS", "A", "--nak", "--term"], 2, "--nak and --term"),
        (["pause", "ORDERS", "A", "-1h", "-f"], 2, "in the past"),
        (["unpin", "ORDERS", "A", "-f"], 1, "no priority groups"),
        (["cluster", "step-down", "ORDERS", "A"], 1, "one replica"),
        (["edit", "ORDERS", "A", "--ack", "none"], 2, "unknown option --ack"),
        (["nxet", "ORDERS", "A"], 2, "did you mean 'next'"),
    ],
)
def test_what_fails_is_said_in_one_line(run: CommandLine, words: list[str], status: int, text: str) -> None:
    if words[0] in ("pause", "unpin", "cluster"):
        run("consumer", "add", "ORDERS", "A")
    assert text in run.refused("consumer", *words, status=status)
