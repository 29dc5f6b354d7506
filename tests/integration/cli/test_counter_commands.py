"""`penstock counter` on both servers, beside the official command line."""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine
from tests.support.nats_cli import run_nats

pytestmark = pytest.mark.feature("cli.commands")


@pytest.fixture
def counters(run: CommandLine) -> CommandLine:
    run("stream", "add", "HITS", "--subjects", "hits.>", "--allow-counter", "--allow-direct", "--defaults")
    return run


def test_counters_are_changed_read_and_listed(counters: CommandLine) -> None:
    run = counters
    assert run("counter", "increment", "hits.a", "5").out == "5\n"
    assert run("counter", "decrement", "hits.a", "7").out == "-2\n"
    assert run_nats(run.url, "counter", "get", "hits.a").strip() == "-2"
    run_nats(run.url, "counter", "increment", "hits.b", "9")
    assert run("counter", "get", "hits.b").out == "9\n"
    assert run("counter", "view", "hits.a").rows == {
        "Value": "-2", "Increment": "-7", "Subject": "hits.a", "Stream": "HITS"
    }  # fmt: skip
    found = run("counter", "list", "hits.>", "--json").json
    assert [(one["subject"], one["value"]) for one in found] == [("hits.a", "-2"), ("hits.b", "9")]
    assert "│ hits.b  │     9 │" in run("counter", "ls", "--stream", "HITS").out


def test_numbers_of_any_size_are_counted(counters: CommandLine) -> None:
    big = 10**40
    assert counters("counter", "increment", "hits.a", str(big)).out == f"{big}\n"
    assert counters("counter", "get", "hits.a", "--json").json["value"] == str(big)


def test_what_is_no_counter_is_refused(counters: CommandLine) -> None:
    run = counters
    assert "has no counter 'hits.none' yet" in run.refused("counter", "get", "hits.none")
    assert "no stream stores 'misses'" in run.refused("counter", "get", "misses")
    assert "it is a whole number" in run.refused("counter", "increment", "hits.a", "1.5", status=2)
    assert "subject is missing" in run.refused("counter", "list", status=2)
    run("stream", "add", "PLAIN", "--subjects", "plain", "--defaults")
    run("pub", "plain", "text")
    assert "is not that of a counter" in run.refused("counter", "get", "plain")
    assert run.run("counter", "increment", "plain", "1").status == 1
