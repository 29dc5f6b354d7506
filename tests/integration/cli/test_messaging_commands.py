"""`penstock sub|req|reply|rtt`, and further options of `pub`, against both servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.command_runs import CommandShell
from tests.support.nats_cli import run_nats

pytestmark = pytest.mark.feature("cli.commands")
PROGRAM = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())"]


@contextmanager
def heeding_interrupts() -> Iterator[None]:
    """A suite that a shell runs in the background ignores SIGINT, and so would what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Started:
    """A command in a process, of which lines are read until one says that it is ready."""

    def __init__(self, url: str, *words: str) -> None:
        command = [*PROGRAM, *words, "--server", url, "--no-context"]
        with heeding_interrupts():
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        assert self.process.stderr is not None
        self.greeting = self.process.stderr.readline()

    def end(self, *, interrupt: bool = False) -> str:
        """What it printed on stdout until its end, which must be a success."""
        if interrupt:
            self.process.send_signal(2)
        out, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, (self.process.returncode, self.greeting, out, err)
        return out


def test_a_subscription_prints_messages(run: CommandLine) -> None:
    sub = Started(run.url, "sub", "a.*", "b", "--count", "3", "-I", "a.ignored")
    assert "Subscribing on a.* b" in sub.greeting
    run("pub", "a.x", "hello", "-H", "N:1", "--reply", "answers")
    run("pub", "a.ignored", "nothing")
    run("pub", "b", "world")
    run("pub", "a.y", "")
    text = sub.end()
    assert '[#1] Received on "a.x" with reply "answers"\nN: 1\n\nhello\n' in text
    assert '[#2] Received on "b"\nworld\n' in text
    assert '[#3] Received on "a.y"' in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--raw"], "one\ntwo\n"),
        (["--subjects-only"], "a.x\na.x\n"),
        (["--translate", "tr a-z A-Z", "-r"], "ONE\nTWO\n"),
        (["--dump", "-"], "one\0two\0"),
    ],
)
def test_a_subscription_prints_what_is_asked_for(run: CommandLine, options: list[str], expected: str) -> None:
    sub = Started(run.url, "sub", "a.>", "--count", "2", *options)
    run("pub", "a.x", "one")
    run("pub", "a.x", "two")
    assert sub.end() == expected


def test_subjects_are_counted(run: CommandLine) -> None:
    sub = Started(run.url, "sub", ">", "--report-subjects", "--count", "4")
    run("pub", "a.x", "12345", "--count", "3")
    run("pub", "a.y", "1")
    assert "│ a.x     │        3 │  15 B │" in sub.end()


def test_an_interrupt_is_the_end_of_a_subscription(run: CommandLine) -> None:
    sub = Started(run.url, "sub", "a", "--raw")
    run("pub", "a", "1")
    assert sub.process.stdout is not None
    assert sub.process.stdout.readline() == "1\n"
    assert sub.end(interrupt=True) == ""


def test_a_subscription_reads_a_stream(run: CommandLine, tmp_path: Path) -> None:
    run("stream", "add", "S", "--subjects", "s.>", "--defaults")
    for number in range(6):
        run("pub", f"s.{number % 2}", f"m{number + 1}")

    def read(*words: str) -> list[str]:
        return run("sub", *words, "-T", "--raw").out.split()

    assert read("s.>", "--all") == ["m1", "m2", "m3", "m4", "m5", "m6"]
    assert read("--stream", "S") == ["m1", "m2", "m3", "m4", "m5", "m6"]
    assert read("s.1", "--all") == ["m2", "m4", "m6"]
    assert read("s.>", "--last") == ["m6"]
    assert read("s.>", "--last-per-subject") == ["m5", "m6"]
    assert read("s.>", "--start-sequence", "5") == ["m5", "m6"]
    assert read("s.>", "--since", "1h") == ["m1", "m2", "m3", "m4", "m5", "m6"]
    assert read("s.>", "--new") == []
    assert read("s.>", "--all", "--count", "2") == ["m1", "m2"]
    assert read("s.>", "--durable", "D", "--count", "4") == ["m1", "m2", "m3", "m4"]
    assert read("s.>", "--durable", "D") == ["m5", "m6"]
    first = json.loads(run("sub", "--stream", "S", "--json", "--count", "1").out)
    assert (first["seq"], first["subject"], first["data"]) == (1, "s.0", "m1")
    assert "stream: S seq 1" in run("sub", "--stream", "S", "--count", "1").out
    run("sub", "--stream", "S", "-T", "--dump", str(tmp_path / "dump"))
    assert (tmp_path / "dump" / "1-s.0").read_text() == "m1"
    assert run("stream", "info", "S", "--json").json["state"]["consumer_count"] == 1


def test_a_replier_answers_requests(run: CommandLine) -> None:
    reply = Started(run.url, "reply", "time.*", "{{Request}}: {{Count}}", "--count", "2", "-H", "A:1")
    assert "Listening on" in reply.greeting
    got = run("req", "time.x", "now")
    assert got.out == "A: 1\n\nnow: 1\n\n"
    assert "Sending request" in got.err and "Received with rtt" in got.err
    assert run("req", "time.x", "later", "--raw").out == "later: 2\n"
    assert 'Received on subject "time.x":' in reply.end()


def test_each_line_of_an_input_is_a_request(url: str, tmp_path: Path) -> None:
    shell = CommandShell(tmp_path, url)
    reply = Started(url, "reply", "lines", "--echo", "--count", "3")
    ran = shell.ok("req", "lines", "--send-on", "newline", "--raw", stdin=b"one\ntwo {{Count}}\n")
    assert ran.text == "one\ntwo {{Count}}\n"
    assert shell.ok("req", "lines", "--raw", stdin=b"one\ntwo").text == "one\ntwo\n"
    reply.end()


def test_a_replier_echoes_or_runs_a_command(run: CommandLine) -> None:
    echo = Started(run.url, "reply", "echo", "--echo", "--count", "1")
    answer = run("req", "echo", "x", "-H", "B:2", "--json").json
    assert (answer["data"], answer["headers"]["B"]) == ("x", ["2"])
    echo.end()
    command = Started(
        run.url, "reply", "w.*", "--command", "echo {{1}} $NATS_REQUEST_BODY; cat", "--count", "2"
    )
    assert run("req", "w.london", "hi", "--raw").out == "london hi\nhi\n"
    assert run("req", "w.$(id)", "", "--raw").out == "$(id)\n\n"
    command.end()


def test_requests_wait_for_several_replies(run: CommandLine) -> None:
    repliers = [Started(run.url, "reply", "all", f"r{n}", "-q", f"q{n}", "--count", "2") for n in range(3)]
    assert sorted(run("req", "all", "", "--replies", "3", "--raw").out.split()) == ["r0", "r1", "r2"]
    assert sorted(run("req", "all", "", "--replies", "0", "--raw", "--timeout", "1s").out.split()) == [
        "r0",
        "r1",
        "r2",
    ]
    for one in repliers:
        one.end()


def test_a_publish_to_a_stream_says_where_it_is_stored(run: CommandLine) -> None:
    run("stream", "add", "ORDERS", "--subjects", "ORDERS.*,later.>", "--allow-schedules", "--defaults")
    assert 'Published 7 bytes to "ORDERS.new"' in run("pub", "ORDERS.new", "order 1").out
    stored = run("pub", "ORDERS.new", "hello", "-J", "-H", "Nats-Msg-Id:1").out
    assert "Stored in Stream: ORDERS Sequence: 2" in stored
    assert "duplicate" in run("pub", "ORDERS.new", "hello", "-J", "-H", "Nats-Msg-Id:1").out
    assert run("req", "ORDERS.new", "hello", "-H", "Nats-Msg-Id:1", "--raw").out.startswith(
        '{"stream":"ORDERS"'
    )
    acks = run("pub", "ORDERS.new", "n {{Count}}", "--count", "5", "-J", "--json").json["acks"]
    assert [ack["seq"] for ack in acks] == [3, 4, 5, 6, 7]
    assert run("stream", "get", "ORDERS", "7", "--raw").out == "n 5"
    run("pub", "later.1", "x", "--schedule-after", "1h", "--schedule-dest", "ORDERS.new")
    headers = run("stream", "get", "ORDERS", "--last-for", "later.1", "--json").json["headers"]
    assert headers["Nats-Schedule-Target"] == ["ORDERS.new"]


def test_round_trips_are_measured(run: CommandLine) -> None:
    assert run.url in run("rtt").out
    measured = run("rtt", "3", "--json").json[0]
    assert 0 < measured["min_s"] <= measured["rtt_s"] <= measured["max_s"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["req", "nowhere", "x"], 1, "nowhere"),
        (["pub", "no stream", "x"], 2, "no stream"),
        (["pub", "nowhere", "x", "-J"], 1, "nowhere"),
        (["pub", "x", "{{Cuont}}"], 2, "unknown template {{Cuont}}"),
        (["pub", "x", "y", "--schedule-at", "1h"], 2, "needs --schedule-dest"),
        (["pub", "x", "y", "--schedule-dest", "a"], 2, "need --schedule-after"),
        (["reply", "x"], 2, "one of BODY, --echo and --command"),
        (["reply", "x", "y", "--echo"], 2, "one of BODY, --echo and --command"),
        (["sub"], 2, "subjects is missing"),
        (["sub", "x", "--all"], 1, "no stream has the subject"),
        (["sub", "x", "--all", "--new"], 2, "--all and --new"),
        (["sub", "--stream", "NONE"], 1, "stream not found"),
        (["sub", "a..b"], 2, "a..b"),
        (["rtt", "0"], 2, "not above 0"),
    ],
)
def test_what_fails_is_said_in_one_line(run: CommandLine, words: list[str], status: int, text: str) -> None:
    ran = run.run(*words)
    assert (ran.status, ran.out) == (status, ""), ran
    assert text in ran.err.splitlines()[-1], ran


@pytest.mark.official
def test_the_official_command_line_gets_what_ours_publishes(run: CommandLine) -> None:
    reply = Started(run.url, "reply", "q", "answer", "--count", "1")
    assert run_nats(run.url, "req", "q", "x", "--raw").strip() == "answer"
    reply.end()
