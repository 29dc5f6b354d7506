"""Killing what a Spark read depends on: its Python workers and the server, at random moments."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.nats_servers import free_port
from tests.support.processes import ENVIRONMENT, command_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS_OF_KILL = ("worker", "server")
START_TIMEOUT_S = 60.0


def kills_wanted(default: int) -> int:
    """How many of each kind: `make spark-kills KILLS=30` says more than a run of the whole suite does."""
    return int(os.environ.get("SPARK_KILLS", default))


class KillableServer:
    """A server of a kind of KINDS as a process that keeps its port and its store over kills."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.port = free_port()
        self._command = [
            *command_of(kind), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(directory)
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory.with_suffix(".log")

    @property
    def address(self) -> str:
        """For option `servers`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=ENVIRONMENT, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.02)
        raise TimeoutError(f"no listener within {START_TIMEOUT_S} s: {self._log.read_text()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent's pid, command line) of every process."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # gone meanwhile
        yield int(folder.name), int(stat.rpartition(")")[2].split()[1]), command


def task_workers(ancestor: int) -> list[int]:
    """The forks of Spark's Python daemons below a process: what runs the tasks of Python."""
    found = list(processes())
    parents = {pid: parent for pid, parent, _ in found}
    daemons = {pid for pid, _, command in found if "pyspark.daemon" in command}

    def is_ours(pid: int) -> bool:
        while pid > 1:
            if pid == ancestor:
                return True
            pid = parents.get(pid, 0)
        return False

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


def kill_one_worker(chance: random.Random) -> bool:
    """SIGKILL for a Python worker of this process's Spark; False when there is none just now."""
    workers = task_workers(os.getpid())
    if not workers:
        return False
    try:
        os.kill(chance.choice(workers), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def slowly(frame: DataFrame) -> DataFrame:
    """The same rows, held up in Python workers, so that a kill finds the read in progress."""

    def hold_up(batches: Any) -> Any:
        import time

        for batch in batches:
            time.sleep(0.02)
            yield batch

    return frame.mapInArrow(hold_up, frame.schema)
