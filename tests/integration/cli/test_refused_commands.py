"""Permission violations and other errors of the server in the exit status, on both servers."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.command_line import CommandLine, Ran

pytestmark = pytest.mark.feature("cli.commands")
PROGRAM = [sys.executable, "-c", "import sys; from penstock.cli.main import main; sys.exit(main())"]
CONF = """
authorization {
  users: [
    {user: admin, password: p}
    {user: ann, password: p, permissions: {
      publish: {allow: ["ok.>", "$JS.API.>", "_INBOX.>"]}
      subscribe: {allow: ["ok.>", "_INBOX.>"]}
      allow_responses: false
    }}
  ]
}
"""


@pytest.fixture
def run(port: int) -> CommandLine:
    return CommandLine(f"nats://ann:p@127.0.0.1:{port}")


@pytest.fixture
def admin(port: int) -> CommandLine:
    return CommandLine(f"nats://admin:p@127.0.0.1:{port}")


def assert_refused(ran: Ran, what: str, out: str = "") -> None:
    assert (ran.status, ran.out) == (1, out), ran
    assert ran.err.count(f'Permissions Violation for {what}"') == 1, ran


@pytest.mark.parametrize(
    "words", [("--count", "3"), ("--reply", "ok.r"), ("-H", "a:b"), ("--quiet",), ("--json",)]
)
def test_a_refused_publish_fails(run: CommandLine, words: tuple[str, ...]) -> None:
    assert_refused(run.run("pub", "no.x", "hello", *words), 'Publish to "no.x')
    assert run("pub", "ok.x", "hello").err == ""


def test_each_refused_subject_is_named_once(run: CommandLine) -> None:
    ran = run.run("pub", "no.{{Count}}", "hello", "--count", "50")
    assert ran.status == 1
    assert ran.err.count("Permissions Violation") == 20


def test_a_refused_publish_to_a_stream_fails(run: CommandLine) -> None:
    assert_refused(run.run("pub", "no.x", "hello", "--jetstream"), 'Publish to "no.x')


@pytest.mark.parametrize(
    "words", [(), ("--wait", "100ms"), ("--wait", "1m"), ("--count", "1"), ("--queue", "q")]
)
def test_a_refused_subscription_fails_at_once(run: CommandLine, words: tuple[str, ...]) -> None:
    ran = run.run("sub", "no.x", *words)
    assert_refused(ran, 'Subscription to "no.x')


def test_a_subscription_goes_on_with_the_subjects_it_may_have(run: CommandLine) -> None:
    ran = run.run("sub", "no.x", "ok.x", "--wait", "100ms")
    assert_refused(ran, 'Subscription to "no.x')
    assert "Subscribing on no.x ok.x" in ran.err


@pytest.mark.parametrize("words", [(), ("--replies", "2"), ("--replies", "0", "--timeout", "300ms")])
def test_a_refused_request_fails(run: CommandLine, words: tuple[str, ...]) -> None:
    assert_refused(run.run("req", "no.x", "hello", *words), 'Publish to "no.x')


def test_a_refused_replier_fails(run: CommandLine) -> None:
    assert_refused(run.run("reply", "no.x", "hello"), 'Subscription to "no.x')


def test_a_replier_whose_reply_is_refused_fails(run: CommandLine, admin: CommandLine) -> None:
    command = [*PROGRAM, "reply", "ok.x", "hello", "--count", "1", "--server", run.url, "--no-context"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as replier:
        assert replier.stderr is not None
        assert "Listening" in replier.stderr.readline()
        admin("pub", "ok.x", "question", "--reply", "no.reply")
        _, err = replier.communicate(timeout=30)
    assert (replier.returncode, 'Publish to "no.reply"' in err) == (1, True), err


def test_an_interrupted_subscription_that_was_refused_a_subject_fails(run: CommandLine) -> None:
    command = [*PROGRAM, "sub", "no.x", "ok.x", "--server", run.url, "--no-context"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process as sub:
        assert sub.stderr is not None
        assert "Permissions Violation" in sub.stderr.readline()
        assert "Subscribing" in sub.stderr.readline()
        sub.send_signal(signal.SIGINT)
        sub.communicate(timeout=30)
    assert sub.returncode == 1


def test_a_refused_ack_fails(run: CommandLine, admin: CommandLine) -> None:
    admin("stream", "add", "S", "--subjects", "ok.s", "--storage", "memory", "--defaults")
    admin("consumer", "add", "S", "C", "--pull", "--defaults")
    admin("pub", "ok.s", "one")
    ran = run.run("consumer", "next", "S", "C")
    assert (ran.status, "one" in ran.out) == (1, True), ran
    assert 'Permissions Violation for Publish to "$JS.ACK.S.C' in ran.err
    admin("stream", "rm", "S", "-f")


@pytest.mark.parametrize("words", [("pub", "no.x"), ("js", "pub", "async", "no.x"), ("sub", "no.x")])
def test_a_benchmark_of_refused_messages_fails(
    run: CommandLine, words: tuple[str, ...], admin: CommandLine
) -> None:
    if words[0] == "js":
        admin("stream", "add", "benchstream", "--subjects", "no.x", "--storage", "memory", "--defaults")
    ran = run.run("bench", *words, "--msgs", "10")
    assert (ran.status, ran.out) == (1, ""), ran
    assert "Permissions Violation" in ran.err
    if words[0] == "js":
        admin("stream", "rm", "benchstream", "-f")
