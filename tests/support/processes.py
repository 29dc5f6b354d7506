"""Servers of both kinds as processes, whose log lines a test reads: the official one and ours, same flags."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from tests.support.nats_servers import official_binary
from tests.support.wire import wait_until

TIMEOUT_S = 20.0
# The package may be used from the source tree without being installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
_LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")


def command_of(kind: str) -> list[str]:
    """What starts a server of a kind of KINDS. Skips the test when the official binary is missing."""
    if kind == "penstock":
        return [sys.executable, "-m", "penstock", "serve"]
    return [official_binary()]


class Served:
    """A running server; `log` is what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self.process = process
        self.log_path = log_path

    @property
    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    @property
    def port(self) -> int:
        found = _LISTENING.findall(self.log)
        assert found, self.log
        return int(found[-1])

    def wait_for(self, text: str) -> None:
        """Until the log has this text."""
        wait_until(
            lambda: text in self.log or self.process.poll() is not None, f"{text!r} in the log", TIMEOUT_S
        )
        assert text in self.log, self.log

    def lines(self, label: str) -> list[str]:
        """The texts of the log's lines of one label ("TRC")."""
        return [line.split(f"[{label}] ", 1)[1] for line in self.log.splitlines() if f"[{label}] " in line]


@contextmanager
def served(kind: str, directory: Path, conf: str, *flags: str, log: bool = True) -> Iterator[Served]:
    """A server of a kind of KINDS with this configuration, as a process with a log file in `directory`.

    Without `log` it writes where conf and flags say; the caller then waits for it.
    """
    directory.mkdir(exist_ok=True)
    path, log_path = directory / "nats.conf", directory / "server.log"
    path.write_text(conf, encoding="utf-8")
    logged = ["-l", str(log_path)] if log else []
    process = subprocess.Popen(
        [*command_of(kind), "-a", "127.0.0.1", "-p", "-1", "-c", str(path), *logged, *flags],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Served(process, log_path)
    try:
        if log:
            server.wait_for("Server is ready")
        yield server
    finally:
        process.kill()
        process.wait()
