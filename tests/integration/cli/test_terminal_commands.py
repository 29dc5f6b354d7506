"""Commands at a terminal: questions, an editor, live screens; small terminals, Ctrl-C, and no terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.terminals import Terminal, at_terminal

pytestmark = pytest.mark.feature("cli.commands")

CONF = """
server_name: s1
system_account: SYS
accounts {
  SYS { users: [{user: admin, password: pw}] }
  APP { jetstream: enabled, users: [{user: app, password: pw}] }
}
"""
EDITOR = """
import pathlib, sys
path = pathlib.Path(sys.argv[-1])
text = path.read_text()
old, new = sys.argv[1:3]
assert old in text, text
path.write_text(text.replace(old, new))
"""
LEAVE_SCREEN, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"


@pytest.fixture
def run(port: int) -> Iterator[CommandLine]:
    command_line = CommandLine(f"nats://app:pw@127.0.0.1:{port}")
    yield command_line
    for name in command_line("stream", "ls", "-n", "--json", "--all").json:
        command_line("stream", "rm", name, "-f")


@pytest.fixture
def filled(run: CommandLine) -> CommandLine:
    """With a stream S of three messages and a consumer C."""
    run("stream", "add", "S", "--subjects", "s.>", "--storage", "memory", "--defaults")
    run("consumer", "add", "S", "C", "--pull", "--defaults")
    run("pub", "s.x", "{{Count}}", "--count", "3")
    return run


def terminal(
    run: CommandLine, *words: str, columns: int = 160, rows: int = 50, **variables: str
) -> AbstractContextManager[Terminal]:
    url = run.url.replace("app:", "admin:") if words[0] in ("top", "server") else run.url
    return at_terminal([*words, "--server", url, "--no-context"], columns=columns, rows=rows, **variables)


def config(run: CommandLine, *words: str) -> dict[str, object]:
    found: dict[str, object] = run(*words, "--json").json["config"]
    return found


# --- questions -----------------------------------------------------------------------------------


def test_a_stream_is_created_from_answers_and_wrong_ones_are_asked_again(run: CommandLine) -> None:
    with terminal(run, "stream", "add", "--storage", "memory") as screen:
        screen.answer("Stream name:", "ORDERS")
        screen.answer("Subjects", "orders.new, orders.old")
        screen.answer("Replication", "many")
        screen.expect("'many' is not a whole number")
        screen.answer("Replication", "")
        screen.answer("Retention Policy", "Forever")
        screen.expect("it is one of limits, interest, work")
        screen.answer("Retention Policy", "Work")
        for question in ("Discard Policy", "Stream Messages Limit", "Per Subject Messages Limit",
                         "Total Stream Size"):  # fmt: skip
            screen.answer(question, "")
        screen.answer("Message TTL", "1h")
        for question in ("Max Message Size", "Duplicate tracking time window", "Allow message Roll-ups"):
            screen.answer(question, "")
        screen.answer("Allow message deletion", "No")
        screen.answer("Allow purging subjects or the entire stream", "")
        assert screen.end() == 0
    made = config(run, "stream", "info", "ORDERS")
    expected = {"subjects": ["orders.new", "orders.old"], "storage": "memory", "retention": "workqueue",
                "max_age": 3_600 * 10**9, "num_replicas": 1, "max_msgs": -1}  # fmt: skip
    assert expected.items() <= made.items()
    assert (made.get("deny_delete"), made.get("deny_purge", False)) == (True, False)


def test_a_consumer_is_created_from_answers(filled: CommandLine) -> None:
    run = filled
    with terminal(run, "consumer", "add", "--pull") as screen:
        screen.answer("Consumer name:", "WORK")
        screen.answer("Start policy", "sometimes")
        for question in ("Acknowledgment policy", "Replay policy", "Filter Stream by subjects",
                         "Maximum Allowed Deliveries", "Maximum Acknowledgments Pending",
                         "Deliver headers only without bodies"):  # fmt: skip
            screen.answer(question, "")
        screen.answer("Add a Retry Backoff Policy", "No")
        assert screen.end() == 2
        assert "--deliver is 'sometimes'" in screen.shown
    with terminal(run, "consumer", "add", "--pull", "--deliver", "new") as screen:
        screen.answer("Consumer name:", "WORK")
        screen.answer("Acknowledgment policy", "ALL")
        for question in ("Replay policy", "Filter Stream by subjects"):
            screen.answer(question, "")
        screen.answer("Maximum Allowed Deliveries", "12")
        for question in ("Maximum Acknowledgments Pending", "Deliver headers only without bodies"):
            screen.answer(question, "")
        screen.answer("Add a Retry Backoff Policy", "Yes")
        screen.answer("Select a Stream", "1")
        assert screen.end() == 0
    made = config(run, "consumer", "info", "S", "WORK")
    assert {"deliver_policy": "new", "ack_policy": "all", "max_deliver": 12}.items() <= made.items()
    backoff = made["backoff"]
    assert isinstance(backoff, list)
    assert len(backoff) == 10


@pytest.mark.parametrize(("key", "status", "says"), [("\x03", 130, ""), ("\x04", 1, "no answer")])
def test_ctrl_c_and_the_end_of_input_leave_questions(
    run: CommandLine, key: str, status: int, says: str
) -> None:
    with terminal(run, "stream", "add", "ORDERS") as screen:
        screen.expect("Subjects")
        screen.press(key)
        assert screen.end() == status
        assert says in screen.shown
        assert "Traceback" not in screen.shown
    assert run("stream", "ls", "-n", "--json").json == []


def test_what_can_not_be_undone_is_done_after_a_yes_only(filled: CommandLine) -> None:
    with terminal(filled, "stream", "purge", "S") as screen:
        screen.answer("Really purge stream S?", "")
        assert screen.end() == 1
    assert filled("stream", "info", "S", "--json").json["state"]["messages"] == 3
    with terminal(filled, "stream", "purge", "S") as screen:
        screen.answer("Really purge stream S?", "y")
        assert screen.end() == 0
    assert filled("stream", "info", "S", "--json").json["state"]["messages"] == 0


# --- an editor -----------------------------------------------------------------------------------


@pytest.fixture
def editor(tmp_path: Path) -> Path:
    path = tmp_path / "edit.py"
    path.write_text(EDITOR)
    return path


def editing(editor: Path, old: str, new: str) -> dict[str, str]:
    return {
        "EDITOR": f"{sys.executable} {editor} '{old}' '{new}'",
        "VISUAL": "",
        "TMPDIR": str(editor.parent),
    }


def test_a_stream_is_changed_in_an_editor(filled: CommandLine, editor: Path) -> None:
    variables = editing(editor, '"max_msgs": -1', '"max_msgs": 7')
    with terminal(filled, "stream", "edit", "S", "--interactive", **variables) as screen:
        screen.expect("max_msgs is 7, was -1")
        screen.answer("Really edit stream S?", "y")
        assert screen.end() == 0
    assert config(filled, "stream", "info", "S")["max_msgs"] == 7
    assert list(editor.parent.glob("penstock-*")) == []


def test_a_consumer_is_changed_in_an_editor(filled: CommandLine, editor: Path) -> None:
    variables = editing(editor, '"max_ack_pending": 1000', '"max_ack_pending": 9')
    with terminal(filled, "consumer", "edit", "S", "C", "-i", "--force", **variables) as screen:
        assert screen.end() == 0
    assert config(filled, "consumer", "info", "S", "C")["max_ack_pending"] == 9


@pytest.mark.parametrize(
    ("new", "says"),
    [('"max_msgs" -1', "is not a JSON object"), ('"max_massages": 1', "no setting 'max_massages'"),
     ('"max_msgs": "x"', "max_msgs")],
)  # fmt: skip
def test_a_wrong_edit_can_be_given_up_and_is_kept(
    filled: CommandLine, editor: Path, new: str, says: str
) -> None:
    variables = editing(editor, '"max_msgs": -1', new)
    with terminal(filled, "stream", "edit", "S", "--interactive", **variables) as screen:
        screen.answer("Edit again?", "n")
        assert screen.end() == 1
        assert says in screen.shown
    (kept,) = editor.parent.glob("penstock-S-*.json")
    assert new in kept.read_text()
    assert config(filled, "stream", "info", "S")["max_msgs"] == -1


def test_an_editor_that_fails_or_is_missing_changes_nothing(filled: CommandLine, editor: Path) -> None:
    for variables, status, says in (
        ({"EDITOR": "false", "VISUAL": "", "TMPDIR": str(editor.parent)}, 1, "'false' ended with 1"),
        ({"EDITOR": "", "VISUAL": ""}, 2, "neither $VISUAL nor $EDITOR is set"),
    ):
        with terminal(filled, "stream", "edit", "S", "--interactive", **variables) as screen:
            assert screen.end() == status
            assert says in screen.shown
    assert "this is no terminal" in filled.refused("stream", "edit", "S", "--interactive", status=2)


# --- live screens --------------------------------------------------------------------------------

SCREENS = {
    "stream graph": (("stream", "graph", "S"), "Messages: 3"),
    "consumer graph": (("consumer", "graph", "S", "C"), "Unprocessed Messages: 3"),
    "server graph": (("server", "graph", "s1"), "Server s1"),
    "top": (("top",), "Server: s1"),
}
WATCHES = {
    "servers": (("server", "watch", "servers", "--interval", "100ms"), "All servers"),
    "accounts": (("server", "watch", "accounts", "--interval", "100ms"), "Account"),
    "api requests": (("server", "watch", "api", "requests", "--interval", "100ms"), "Waiting for requests"),
    "report": (("server", "report", "connections", "--watch", "100ms"), "Connections of"),
}


@pytest.mark.parametrize("name", SCREENS)
def test_a_live_screen_is_drawn_until_ctrl_c(filled: CommandLine, name: str) -> None:
    words, says = SCREENS[name]
    with terminal(filled, *words, "--interval", "100ms") as screen:
        screen.expect(says)
        screen.expect(says.split(":")[0])  # drawn again
        screen.interrupt()
        assert screen.end() == 0
        assert "Traceback" not in screen.shown
        assert screen.raw.rindex(LEAVE_SCREEN) > 0
        assert SHOW_CURSOR in screen.raw


@pytest.mark.parametrize("name", SCREENS)
def test_a_live_screen_bears_any_size(filled: CommandLine, name: str) -> None:
    words, says = SCREENS[name]
    with terminal(filled, *words, "--interval", "100ms", columns=1, rows=1) as screen:
        for columns, rows in ((20, 4), (16, 50), (200, 3)):
            drawn = len(screen.raw)
            screen.wait_until(lambda _, drawn=drawn: len(screen.raw) > drawn, "screen")
            screen.resize(columns, rows)
        screen.resize(160, 50)
        screen.expect(says)  # once there is room
        screen.interrupt()
        assert screen.end() == 0


def test_a_graph_says_what_is_wrong_with_a_small_terminal(filled: CommandLine) -> None:
    with terminal(filled, "stream", "graph", "S", "--max-refresh", "1", columns=40, rows=2) as screen:
        screen.expect("The terminal is too small")
        assert screen.end() == 0


@pytest.mark.parametrize("name", SCREENS)
def test_without_a_terminal_a_live_screen_is_printed_once(filled: CommandLine, name: str) -> None:
    words, says = SCREENS[name]
    user = filled if words[0] in ("stream", "consumer") else CommandLine(filled.url.replace("app:", "admin:"))
    ran = user(*words)
    assert says in ran.out
    assert "\x1b" not in ran.out
    twice = user(*words, "--json", "--max-refresh", "2", "--interval", "100ms")
    assert len([json.loads(line) for line in twice.out.splitlines()]) == 2
    assert "at least 100ms" in user.refused(*words, "--interval", "1ms", status=2)


@pytest.mark.parametrize("name", WATCHES)
def test_a_watched_report_is_drawn_until_ctrl_c(run: CommandLine, name: str) -> None:
    words, says = WATCHES[name]
    with terminal(run, *words) as screen:
        screen.expect(says)
        screen.expect(says)  # drawn again
        screen.resize(20, 3)
        drawn = len(screen.raw)
        screen.wait_until(lambda _: len(screen.raw) > drawn, "screen")
        screen.interrupt()
        assert screen.end() == 0
        assert "Traceback" not in screen.shown
        assert screen.raw.rindex(LEAVE_SCREEN) > 0
        assert SHOW_CURSOR in screen.raw


def test_a_watched_report_shows_what_changes_and_ends_after_its_refreshes(filled: CommandLine) -> None:
    with terminal(filled, "server", "report", "jetstream", "--watch", "200ms") as screen:
        screen.expect("JetStream Summary")
        filled("stream", "add", "T", "--subjects", "t", "--storage", "memory", "--defaults")
        filled("pub", "t", "x", "--count", "7", "--jetstream")
        screen.wait_until(lambda shown: re.search(r"│ +10 │", shown) is not None, "ten messages")
        screen.interrupt()
        assert screen.end() == 0
    admin = CommandLine(filled.url.replace("app:", "admin:"))
    ran = admin("server", "report", "cpu", "--watch", "100ms", "--max-refresh", "3", "--json")
    assert [len(json.loads(line)) for line in ran.out.splitlines()] == [1, 1, 1]
    assert admin("server", "report", "mem", "--watch", "100ms", "-r", "2").out.count("Memory Usage") == 4
    assert "at least 100ms" in admin.refused("server", "report", "mem", "--watch", "1ms", status=2)
    assert "needs --watch" in admin.refused("server", "report", "mem", "--max-refresh", "1", status=2)


def test_a_watched_report_of_a_sick_server_goes_on(run: CommandLine) -> None:
    admin = CommandLine(run.url.replace("app:", "admin:"))
    words = ("server", "report", "health", "--account", "APP", "--stream", "MISSING")
    ran = admin(*words, "--watch", "100ms", "--max-refresh", "2")
    assert ran.out.count("not healthy: s1") == 2


def test_graphs_show_rates(filled: CommandLine) -> None:
    with terminal(filled, "stream", "graph", "S", "--interval", "200ms") as screen:
        screen.expect("Stored: 0/s")
        filled("pub", "s.x", "more", "--count", "100")
        screen.wait_until(lambda shown: "Messages: 103" in shown and "█" in shown, "graph of 103 messages")
        screen.interrupt()
        assert screen.end() == 0


def test_events_are_shown_until_ctrl_c(filled: CommandLine) -> None:
    with terminal(filled, "events", "--js-advisory", "--short") as screen:
        screen.expect("Listening for events on")
        filled("stream", "add", "T", "--subjects", "t", "--defaults")
        screen.expect("T")
        screen.interrupt()
        assert screen.end() == 0
        assert "Traceback" not in screen.shown


@pytest.mark.parametrize("words", [("stream", "report"), ("server", "ls"), ("consumer", "report", "S")])
@pytest.mark.parametrize(("columns", "rows"), [(40, 5), (10, 2)])
def test_a_report_fits_the_width_of_its_terminal(
    filled: CommandLine, words: tuple[str, ...], columns: int, rows: int
) -> None:
    with terminal(filled, *words, columns=columns, rows=rows) as screen:
        assert screen.end() == 0
        assert "Traceback" not in screen.shown
        tables = [line for line in screen.shown.splitlines() if line.startswith(("│", "╭", "├", "╰"))]
        assert tables
        assert max(map(len, tables)) <= columns
