"""Commands of `penstock` in a thread of the test's process: what they print and their exit status."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from penstock.cli.main import main


@dataclass(frozen=True)
class Ran:
    """status: exit status. out, err: what was printed."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The result of a command with --json."""
        return json.loads(self.out)

    @property
    def rows(self) -> dict[str, str]:
        """The names and values of a page."""
        pairs = (line.split(": ", 1) for line in self.out.splitlines() if ": " in line)
        return {name.strip(): value for name, value in pairs}


def run_words(words: list[str]) -> Ran:
    """Run a command as it is; variables of the environment say where its server is."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    return Ran(tuple(words), status, out.getvalue(), err.getvalue())


class CommandLine:
    """Runs commands against one server, without contexts. In async tests, run them in a thread."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *words: str) -> Ran:
        """Run a command that may fail."""
        ran = run_words([*words, "--server", self.url, "--no-context"])
        return Ran(words, ran.status, ran.out, ran.err)

    def __call__(self, *words: str) -> Ran:
        """Run a command that must succeed."""
        ran = self.run(*words)
        assert ran.status == 0, ran
        return ran

    def refused(self, *words: str, status: int = 1) -> str:
        """Run a command that must fail, with one line on stderr, and return the line."""
        ran = self.run(*words)
        assert (ran.status, ran.out) == (status, ""), ran
        assert ran.err.count("\n") == 1, ran
        assert ran.err.startswith("penstock "), ran
        return ran.err
