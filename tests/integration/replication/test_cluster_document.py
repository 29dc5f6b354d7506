"""docs/cluster.md: its configurations make a cluster, and its procedures keep every message."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.command_runs import CommandShell
from tests.support.nats_servers import free_port
from tests.support.processes import Served, served

pytestmark = pytest.mark.feature("cluster.raft", "cluster.catch-up")
TEXT = (Path(__file__).parents[3] / "docs/cluster.md").read_text()
BLOCKS = re.findall(r"^```\n(# n\d\.conf.*?)^```", TEXT, re.M | re.S)
SERVERS = ("n1", "n2", "n3")


class DocumentedCluster:
    """The three configurations with free ports and directories of the test."""

    def __init__(self, directory: Path) -> None:
        numbers = sorted(set(re.findall(r":(\d{4})\b", "".join(BLOCKS))))
        self._ports = {number: str(free_port()) for number in numbers}
        self._directory = directory

    def url(self, server: int) -> str:
        return f"nats://127.0.0.1:{self._ports[str(4222 + server)]}"

    def conf(self, server: int) -> str:
        text = re.sub(r"(?<=:)\d{4}\b", lambda found: self._ports[found[0]], BLOCKS[server])
        return text.replace("/var/lib/penstock", str(self._directory))

    @contextmanager
    def running(self, *servers: int) -> Iterator[list[Served]]:
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    served("penstock", self._directory / f"run-{one}", self.conf(one), "-p", self._port(one))
                )
                for one in servers
            ]

    def _port(self, server: int) -> str:
        return self._ports[str(4222 + server)]


def retried(shell: CommandShell, *words: str, timeout_s: float = 30.0) -> None:
    """Runs a command until it succeeds: a cluster that starts has no leader yet."""
    deadline = time.monotonic() + timeout_s
    while (ran := shell.run(*words)).status:
        assert time.monotonic() < deadline, ran


def until_whole(shell: CommandShell, stream: str, replicas: int, messages: int) -> None:
    """Until a stream has so many current replicas and messages."""
    deadline = time.monotonic() + 40
    while True:
        ran = shell.run("stream", "info", stream, "--json")
        info = shell.json("stream", "info", stream) if not ran.status else {}
        group = info.get("cluster", {})
        others = [one for one in group.get("replicas") or () if one["current"] and not one.get("lag")]
        state = info.get("state", {}).get("messages")
        is_settled = bool(group.get("leader")) and not group.get("desired")  # learners do not count yet
        if (is_settled, len(others), state) == (True, replicas - 1, messages):
            return
        assert time.monotonic() < deadline, (ran, info)


def test_a_stream_gets_replicas_and_survives_a_lost_disk(tmp_path: Path) -> None:
    assert len(BLOCKS) == 3
    made = DocumentedCluster(tmp_path)
    shell = CommandShell(tmp_path, made.url(1))
    with made.running(0, 1, 2):
        retried(shell, "stream", "add", "ORDERS", "--subjects", "orders.>", "--defaults")
        for number in range(5):
            shell.ok("pub", "--jetstream", f"orders.{number}", "kept")
        until_whole(shell, "ORDERS", 1, 5)
        shell.ok("stream", "edit", "ORDERS", "--replicas", "3", "--force")
        until_whole(shell, "ORDERS", 3, 5)
        shell.ok("pub", "--jetstream", "orders.5", "more")
        shell.ok("stream", "backup", "ORDERS", str(tmp_path / "backup"))
    (tmp_path / "n1").rename(tmp_path / "lost")
    with made.running(0, 1, 2) as servers:
        until_whole(shell, "ORDERS", 3, 6)
        text = "Replicated streams acknowledge what is on the disks of a majority"
        assert text in TEXT
        assert all(text in one.log for one in servers)
