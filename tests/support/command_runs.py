"""Running commands of `penstock` in this process, as a shell would: words in, output and exit status out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from penstock.cli.main import main
from tests.support.nats_cli import nats_cli


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandShell:
    """Runs commands with a home directory of its own. server: URL for `--server`, "" for commands without.

    words: options that stand behind every command. variables: of the environment.
    """

    def __init__(self, home: Path, server: str = "", words: tuple[str, ...] = (), **variables: str) -> None:
        self.home = home
        self.variables = variables
        self._words = (*(("--server", server) if server else ()), *words)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the commands: those of this process, with another home and without NATS's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "XDG_"))}
        # The official command line takes the home directory from the system, not from $HOME.
        folders = {
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local/share"),
        }
        return kept | folders | {"HOME": str(self.home), "NO_COLOR": "1"} | self.variables

    def run(self, *words: str, stdin: bytes = b"") -> Ran:
        """Run a command in this process."""
        with _streams(stdin) as (out, err), mock.patch.dict(os.environ, self.environment, clear=True):
            status = main([*words, *self._words])
        return Ran(status, out.getvalue(), err.getvalue().decode())

    def ok(self, *words: str, stdin: bytes = b"") -> Ran:
        """Run a command that must succeed."""
        ran = self.run(*words, stdin=stdin)
        assert ran.status == 0, f"penstock {' '.join(words)} ended with {ran.status}: {ran.err}{ran.text}"
        return ran

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        """The JSON that a command prints."""
        return self.ok(*words, "--json", stdin=stdin).json

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command as a process of its own, for those that run until they are interrupted."""
        command = [sys.executable, "-m", "penstock", *words, *self._words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment)

    def official(self, *words: str, stdin: bytes | None = None) -> str:
        """Run the official command line with the same home and server. Its output; it must succeed."""
        done = subprocess.run(
            [nats_cli(), *words, *self._words],
            env=self.environment, input=stdin, capture_output=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )  # fmt: skip
        text = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"nats {' '.join(words)} ended with {done.returncode}:\n{text}"
        return text


@contextmanager
def _streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    replaced = {
        "stdin": io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"),
        "stdout": io.TextIOWrapper(out, encoding="utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, encoding="utf-8", write_through=True),
    }
    with mock.patch.multiple(sys, **replaced):
        yield out, err
        for name in ("stdout", "stderr"):
            replaced[name].detach()  # its buffer outlives it
