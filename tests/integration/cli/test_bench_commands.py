"""`penstock bench ...` against both servers, with few messages: that it measures, not how much."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.benchmarks.bench_results import percentile
from penstock.cli.benchmarks.bench_workers import shares
from tests.support.command_line import CommandLine
from tests.support.nats_cli import run_nats

pytestmark = pytest.mark.feature("cli.bench")


def test_core_publishes_are_measured(run: CommandLine, tmp_path: Path) -> None:
    found = run("bench", "pub", "b", "--msgs", "1000", "--size", "1K", "--json").json
    assert (found["messages"], found["bytes"], found["clients"]) == (1000, 1_024_000, 1)
    assert found["messages_per_second"] > 0
    ran = run("bench", "pub", "b", "--msgs", "1000", "--clients", "2", "--csv", str(tmp_path / "out.csv"))
    assert "NATS pub stats:" in ran.out and "[2]" in ran.out and "stddev" in ran.out
    assert (tmp_path / "out.csv").read_text().count("\n") == 3
    paced = run("bench", "pub", "b", "--throughput", "2000", "--duration", "100ms", "--json").json
    assert paced["messages"] == 200 and paced["messages_per_second"] < 4000


def test_both_command_lines_create_the_same_stream(run: CommandLine) -> None:
    words = ("bench", "js", "pub", "async", "b", "--create", "--msgs", "10")
    run(*words)
    assert "msgs/sec" in run_nats(run.url, *words, "--no-progress")
    run(*words)


@pytest.mark.parametrize("kind", ["sync", "async", "atomic", "fast"])
def test_publishes_to_streams_are_measured_and_stored(run: CommandLine, kind: str) -> None:
    words = ("bench", "js", "pub", kind, "b", "--create", "--purge", "--msgs", "700", "--json")
    found = run(*words).json
    assert found["messages"] == 700
    assert ("latency_s" in found) == (kind == "sync")
    state = run("stream", "info", "benchstream", "--json").json["state"]
    assert state["messages"] == 700
    many = run(*words, "--multisubject", "--multisubjectmax", "10", "--clients", "2").json
    assert many["clients"] == 2
    state = run("stream", "info", "benchstream", "--json").json["state"]
    assert (state["messages"], state["num_subjects"]) == (700, 10)


def test_reads_of_streams_are_measured(run: CommandLine) -> None:
    run("bench", "js", "pub", "async", "b", "--create", "--purge", "--msgs", "1000")
    for words in (
        ["fetch"],
        ["fetch", "--purge", "--clients", "2", "--batch", "50"],
        ["consume", "--purge", "--acks", "none"],
        ["fetch", "--purge", "--doubleack"],
        ["ordered"],
        ["ordered", "--clients", "2"],
        ["get", "sync"],
        ["get", "batch"],
    ):
        found = run("bench", "js", *words, "--msgs", "1000", "--json").json
        assert found["messages"] == 1000 * (2 if words[0] == "ordered" and "2" in words else 1), words


def test_buckets_are_measured(run: CommandLine) -> None:
    found = run(
        "bench", "kv", "put", "--purge", "--msgs", "300", "--clients", "2", "--size", "10", "--json"
    ).json
    assert (found["messages"], found["bytes"], found["clients"]) == (300, 3000, 2)
    assert found["latency_s"]["p50"] > 0
    assert run("kv", "info", "benchbucket", "--json").json["values"] == 300
    found = run("bench", "kv", "get", "--msgs", "300", "--clients", "2", "--json").json
    assert (found["messages"], found["bytes"]) == (300, 3000)
    run("bench", "kv", "put", "--msgs", "50", "--randomize", "5", "--history", "3")
    assert run("kv", "info", "benchbucket", "--json").json["values"] == 300  # it is used as it is
    run("bench", "kv", "put", "--purge", "--msgs", "50", "--randomize", "5")
    assert run("kv", "info", "benchbucket", "--json").json["values"] <= 5
    assert "msgs/sec" in run_nats(
        run.url, "bench", "kv", "get", "--msgs", "5", "--randomize", "1", "--no-progress"
    )


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["js", "pub", "async", "b"], 1, "give --create"),
        (["js", "fetch"], 1, "fill it with"),
        (["js", "ordered", "--clients", "2"], 1, "client 1: stream not found"),
        (["pub", "b", "--duration", "1s"], 2, "--duration needs --throughput"),
        (["pub", "b", "--clients", "0"], 2, "not above 0"),
        (["pub"], 2, "subject is missing"),
        (["kv", "get", "--bucket", "MISSING"], 1, "fill it with"),
        (["kv", "put", "--bucket", "MISSING"], 1, "create it with"),
    ],
)
def test_what_fails_is_said(run: CommandLine, words: list[str], status: int, text: str) -> None:
    ran = run.run("bench", *words)
    assert (ran.status, ran.out) == (status, "")
    assert text in ran.err or "stream not found" in ran.err


def test_shares_and_percentiles() -> None:
    assert shares(10, 3) == [4, 3, 3]
    assert shares(2, 3) == [1, 1, 0]
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 99, 99.9)] == [50, 99, 100]
    assert percentile([7.0], 50) == 7
