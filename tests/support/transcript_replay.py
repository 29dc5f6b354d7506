"""Transcripts of the command line, typed with `penstock`; tests/integration/cli/transcripts/README.md has
their form.

Values are compared, not layout: names and numbers of rows, texts and subjects of messages.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.command_line import run_words
from tests.support.terminals import Terminal, at_terminal

SLEEP_S = 0.15
"""In place of each `sleep`."""

_ROW = re.compile(r"[A-Za-z][A-Za-z -]*: ")
_TIME = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ")
_NAMES = {"firstseq": "first sequence", "lastseq": "last sequence", "statistics": "state",
          "pending messages": "outstanding acks", "--- received on": "subj"}  # fmt: skip
_DOCKER = re.compile(r"docker run .* -e NATS_URL=(\S+)@nats:4222 .*natsio/nats-box ")


@dataclass
class TypedCommand:
    """A command of a transcript. answers: to questions. shown: lines that it must show. is_background: it
    runs on while others are typed, until `^C`. in_loop: what a loop shows is compared at its end."""

    line: str
    is_background: bool = False
    in_loop: bool = False
    answers: list[tuple[str, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


def parse_transcript(text: str) -> list[TypedCommand]:
    """The commands of a transcript in order; a loop of the shell is one for each turn."""
    found: list[TypedCommand] = []
    watching: TypedCommand | None = None
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        if line.startswith(("$ ", "& ")):
            found.append(TypedCommand(line[2:], is_background=line[0] == "&"))
            if line[0] == "&":
                watching = found[-1]
        elif line.startswith("for i in "):
            found += _loop(line, lines)
        elif line == "^C":
            assert watching is not None
            # What stands behind `^C` was shown by the command that it ends.
            found.append(TypedCommand("^C", shown=watching.shown))
        elif line.startswith("? "):
            found[-1].answers.append(_question(line[2:]))
        elif line.startswith("= "):
            found[-1].shown[-1] = re.sub(r" \([^()]*\)$", "", line[2:])
        elif line.strip(" .") and not line.endswith(":"):
            found[-1].shown.append(line.strip())
    return found


def _loop(head: str, lines: Iterator[str]) -> list[TypedCommand]:
    body: list[str] = []
    for line in lines:
        if line == "done":
            break
        if line != "do":
            body.append(line.strip())
    return [TypedCommand(one.replace("${i}", turn)) for turn in head.split(" in ")[1].split() for one in body]


_BLANK = ("Delivery target (empty for Pull Consumers)", "Filter Stream by subjects (blank for all)")


def _question(text: str) -> tuple[str, str]:
    """A question and its answer, which is its last word, if any."""
    if text in _BLANK:
        return text, ""
    question, _, answer = text.rpartition(" ")
    return question, answer


def shows(output: str, expected: str) -> bool:
    """Whether an output has the values of a line of a transcript."""
    line = _TIME.sub("", expected)
    if line.startswith("JSON: "):
        return all(f'"{name}"' in output or name in _words(output) for name in line[6:].split(", "))
    small = line.lower()
    for old, new in _NAMES.items():
        small = small.replace(old, new)
    wanted = _words(small)
    lines = output.splitlines()
    rows = [_words(one) for one in lines]
    if _ROW.match(line):
        return any(_contains(row, wanted) for row in rows)
    return any(_in_order(_words("\n".join(lines[at : at + 3])), wanted) for at in range(len(lines)))


def _words(text: str) -> list[str]:
    return re.sub(r"[\"'\[\]:,]+(?=\s|$)|[\"'\[\]/]", " ", text.lower()).split()


def _contains(row: list[str], wanted: list[str]) -> bool:
    return any(row[at : at + len(wanted)] == wanted for at in range(len(row)))


def _in_order(row: list[str], wanted: list[str]) -> bool:
    rest = iter(row)
    return all(word in rest for word in wanted)


class TranscriptReplay:
    """Types commands against one server, in a folder that is the home directory."""

    def __init__(self, url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._url = url
        self._sleeps: list[float] = []
        self._patch = monkeypatch
        monkeypatch.chdir(home)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        monkeypatch.setenv("NATS_URL", url)

    def play(self, commands: list[TypedCommand]) -> int:
        """Type the commands; assert what they show. The number of lines compared."""
        compared, gathered = 0, ""
        with ExitStack() as stack:
            background: Terminal | None = None
            for command in commands:
                if command.line == "^C":
                    assert background is not None
                    self._watch_end(background, command.shown)
                    compared += len(command.shown)
                    continue
                if command.line.startswith("sleep "):
                    self._sleep()
                    if not command.shown:
                        continue
                elif command.is_background:
                    background = stack.enter_context(self._terminal(command.line))
                    if " sub " in command.line:
                        background.expect("Subscribing")
                    continue
                elif command.answers:
                    gathered = self._asked(command)
                else:
                    gathered = (gathered if command.in_loop else "") + self._run(command.line)
                for expected in command.shown:
                    assert shows(gathered, expected), f"{expected!r} is not in {command.line}:\n{gathered}"
                compared += len(command.shown)
        return compared

    def _typed(self, line: str) -> list[str]:
        """The words behind `penstock`."""
        docker = _DOCKER.match(line)
        if docker:
            self._patch.setenv("NATS_URL", self._url.replace("nats://", f"{docker[1]}@"))
            line = "nats " + line[docker.end() :]
        else:
            self._patch.setenv("NATS_URL", self._url)
        name, *words = shlex.split(line)
        assert name == "nats", line
        if "--deliver" in words and words[words.index("--deliver") + 1].endswith("m"):
            at = words.index("--deliver") + 1
            # N minutes ago is after the publish before the last N sleeps and one more.
            ago_s = time.monotonic() - self._sleeps[-int(words[at][:-1]) - 1] - SLEEP_S / 2
            words[at] = f"{ago_s:.3f}s"
        return [str(Path(word).expanduser()) if word.startswith("~/") else word for word in words]

    def _terminal(self, line: str) -> AbstractContextManager[Terminal]:
        words = self._typed(line)
        return at_terminal(words, NATS_URL=os.environ["NATS_URL"])

    def _run(self, line: str) -> str:
        ran = run_words(self._typed(line))
        assert ran.status == 0, ran
        return ran.out + ran.err

    def _asked(self, command: TypedCommand) -> str:
        with self._terminal(command.line) as terminal:
            for question, answer in command.answers:
                terminal.answer(question, answer)
            status = terminal.end()
            assert status == 0, terminal.shown
            return terminal.shown

    def _sleep(self) -> None:
        self._sleeps.append(time.monotonic())
        time.sleep(SLEEP_S)  # the server's clock is the real one: replays and starts depend on it

    @staticmethod
    def _watch_end(terminal: Terminal, expected: list[str]) -> None:
        for line in expected:
            wanted = _words(_TIME.sub("", line))
            terminal.wait_until(lambda shown, line=line: shows(shown, line), " ".join(wanted))
        terminal.interrupt()
        terminal.end()
