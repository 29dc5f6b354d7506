"""Rows "bystander": latency of one client's requests while other connections flood the server.

Each flood has three rows: the bystander's median and p99 (ms), and the rate of the flood, from the same runs.
floods.py defines the floods and their clients.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from floods import FLOODS
from load import LoadError
from rows import Scenario
from servers import ServerProcess, free_port

SECONDS = 2.0
WARM_UP_S = 0.3
TIMEOUT_S = 60
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
        ports = (str(server.port), str(self.servers.websocket_ports[server.name]))
        asking = _started("ask", str(server.port), str(self.seconds))
        assert asking.stdout is not None
        assert asking.stdin is not None
        asking.stdout.readline()  # it has connected: during a flood that could take long
        flood = _started("flood", self.flood, *ports)
        with suppress(subprocess.TimeoutExpired):  # still running, as expected
            flood.wait(WARM_UP_S)
        asking.stdin.write(b"go\n")
        asking.stdin.flush()
        return _figures(asking) | _figures(flood)


def _started(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _figures(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """The output of a process at its end. A flood ends now."""
    text, _ = process.communicate(timeout=TIMEOUT_S)  # closes the input first
    if process.returncode:
        raise LoadError(f"{' '.join(map(str, process.args))}: ended with {process.returncode}")  # type: ignore[arg-type]
    figures: dict[str, float] = json.loads(text)
    return figures


def scenarios(servers: Servers) -> list[Scenario]:
    rows = []
    for name in FLOODS:
        runs = Runs(name, servers)

        def figure_of(key: str, runs: Runs = runs) -> Callable[[ServerProcess], float]:
            return lambda server: runs.figure(server, key)

        for label, key in (("p50", "p50_ms"), ("p99", "p99_ms")):
            rows.append(
                Scenario(
                    f"bystander {label}: {name}",
                    "ms",
                    figure_of(key),
                    bigger_is_better=False,
                    goal=1.0,
                    instead=servers.of,
                )
            )
        rows.append(
            Scenario(
                f"bystander, the flood itself: {name}", "units/s", figure_of("per_s"), instead=servers.of
            )
        )
    return rows
