"""Rows "bystander": latency of one client's requests while other connections flood the server.

Each flood has three rows: the bystander's median and p99 (ms), and the rate of the flood, from the same runs.
floods.py defines the floods and their clients. Rows "bystander of replicas" have clusters of three servers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from floods import FLOODS, STREAM
from load import LoadError, wire
from replicas import DEFAULT, SIZE, Clusters
from rows import Scenario, itself
from servers import ServerProcess, free_port

SECONDS = 2.0
WARM_UP_S = 0.3
TIMEOUT_S = 60
API_S = 1.0
REPLICATED = (
    "acked publishes, 128 B",
    "acked publishes, 16 KiB",
    "STREAM.INFO requests",
    "consumer creates",
    "pulls without messages",
    "direct gets",
)
PROGRAM = Path(__file__).with_name("floods.py")
CONF = """
websocket { host: 127.0.0.1, port: %d, no_tls: true }
"""


@dataclass
class Servers:
    """The two servers for these rows: like the default ones, with a WebSocket listener."""

    folder: Path
    started: dict[str, ServerProcess] = field(default_factory=dict)
    websocket_ports: dict[str, int] = field(default_factory=dict)

    def of(self, server: ServerProcess) -> ServerProcess:
        found = self.started.get(server.name)
        if found is None:
            port = self.websocket_ports[server.name] = free_port()
            conf = self.folder / f"{server.name}-bystander.conf"
            conf.write_text(CONF % port)
            store = self.folder / f"{server.name}-bystander"
            found = replace(server, store_dir=store, more=("-c", str(conf)), port=0, process=None)
            found.start()
            self.started[server.name] = found
        return found

    def stop(self) -> None:
        for server in self.started.values():
            server.stop()


@dataclass
class Runs:
    """Runs of one flood; each has the figures of several rows."""

    flood: str
    servers: Servers
    seconds: float = SECONDS
    done: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    read: dict[tuple[str, str], int] = field(default_factory=dict)

    def figure(self, server: ServerProcess, key: str) -> float:
        """The next run's figure: of a run that another row has measured, else of a new one."""
        runs = self.done.setdefault(server.name, [])
        number = self.read.get((server.name, key), 0)
        self.read[server.name, key] = number + 1
        if number == len(runs):
            runs.append(self._run(server))
        return runs[number][key]

    def _run(self, server: ServerProcess) -> dict[str, float]:
        FLOODS[self.flood].prepare(server.port)
        return self._measure(server.port, server.port, self.servers.websocket_ports[server.name])

    def _measure(self, asked: int, flooded: int, websocket: int = 0) -> dict[str, float]:
        """The figures of a bystander at one port beside the flood at another one."""
        ports = (str(flooded), str(websocket))
        asking = _started("ask", str(asked), str(self.seconds))
        assert asking.stdout is not None
        assert asking.stdin is not None
        asking.stdout.readline()  # it has connected: during a flood that could take long
        flood = _started("flood", self.flood, *ports)
        with suppress(subprocess.TimeoutExpired):  # still running, as expected
            flood.wait(WARM_UP_S)
        asking.stdin.write(b"go\n")
        asking.stdin.flush()
        figures = _figures(asking) | _figures(flood)
        _await_api(flooded)
        return figures


@dataclass
class ReplicaRuns(Runs):
    """The same beside a flood at the server that leads a stream with three replicas. at_leader: whether the
    bystander is a client of that server, or of another one of the cluster."""

    clusters: Clusters = field(kw_only=True)
    at_leader: bool = field(kw_only=True)

    def _run(self, server: ServerProcess) -> dict[str, float]:
        cluster = self.clusters.of(server, DEFAULT)
        FLOODS[self.flood].prepare(cluster.port, SIZE)
        leader = cluster.leader_port(STREAM)
        asked = leader if self.at_leader else cluster.follower(STREAM).process.port
        return self._measure(asked, leader)


def _started(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _await_api(port: int) -> None:
    """Waits until a server serves API requests again: servers of both kinds drop all that wait when a flood
    makes too many."""
    deadline = time.perf_counter() + TIMEOUT_S
    while True:
        with wire(port) as control:
            control.sock.settimeout(API_S)
            try:
                control.request("$JS.API.STREAM.NAMES")
                return
            except TimeoutError:
                if time.perf_counter() > deadline:
                    raise


def _figures(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """The output of a process at its end. A flood ends now."""
    text, _ = process.communicate(timeout=TIMEOUT_S)  # closes the input first
    if process.returncode:
        raise LoadError(f"{' '.join(map(str, process.args))}: ended with {process.returncode}")  # type: ignore[arg-type]
    figures: dict[str, float] = json.loads(text)
    return figures


def scenarios(servers: Servers) -> list[Scenario]:
    """One server of each kind."""
    return [row for name in FLOODS for row in _rows("bystander", name, Runs(name, servers), servers.of)]


def replica_scenarios(servers: Servers, clusters: Clusters) -> list[Scenario]:
    """Three servers of each kind; the flood meets a stream with three replicas."""
    return [
        row
        for name in REPLICATED
        for place, at_leader in (("at the leader", True), ("elsewhere", False))
        for row in _rows(
            f"bystander of replicas {place}",
            name,
            ReplicaRuns(name, servers, clusters=clusters, at_leader=at_leader),
        )
    ]


def _rows(
    title: str, flood: str, runs: Runs, instead: Callable[[ServerProcess], ServerProcess] = itself
) -> list[Scenario]:
    def figure_of(key: str) -> Callable[[ServerProcess], float]:
        return lambda server: runs.figure(server, key)

    return [
        *(
            Scenario(
                f"{title} {label}: {flood}",
                "ms",
                figure_of(key),
                bigger_is_better=False,
                goal=1.0,
                instead=instead,
            )
            for label, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
        ),
        Scenario(f"{title}, the flood itself: {flood}", "units/s", figure_of("per_s"), instead=instead),
    ]
