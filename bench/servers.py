"""Starts and stops the compared servers, each with its own port and store."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from load import LoadError, wire

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # for tools

from tools.go_programs import NATS_SERVER, GoProgramError, found  # noqa: E402

START_TIMEOUT_S = 60.0
LOG_LINES = 20  # shown when a server does not start
PORTS = iter(random.sample(range(20_000, 32_000), 12_000))
BEFORE = "before"  # the name of a penstock server of another checkout


def official_binary() -> Path | None:
    """`nats-server` as the tests find it, else built by `go`; None without either."""
    try:
        return found(NATS_SERVER)
    except GoProgramError as error:
        print(f"no official server: {error}", file=sys.stderr)
        return None


def free_port() -> int:
    """A port that nothing listens on. Servers of clusters start and stop while others are measured, so it is
    below those that systems give to outgoing connections."""
    for port in PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise LoadError("no free port from 20000 to 32000")


def _as_installed() -> dict[str, str]:
    """The environment with cached bytecode, as an installed package has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process and its threads have used, in user and kernel mode, to the nanosecond.

    /proc/PID/stat counts ticks of 10 ms, which is a fifth of what a short row takes. Raises OSError for a
    process that does not exist.
    """
    clock = ~pid << 3 | 2  # as clock_getcpuclockid() makes it: 2 = precise, of the whole process
    return time.clock_gettime(clock)


def last_lines(log: Path) -> str:
    """The end of a server's log, for an error: the log's folder is deleted with the benchmark."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(f"    {line}" for line in lines or ["(it wrote nothing)"])


@dataclass
class ServerProcess:
    """One server process; `start` returns the time until it greeted a connection."""

    name: str
    command: list[str]
    store_dir: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    more: tuple[str, ...] = ()  # arguments of the next start
    has_jetstream: bool = True
    source: Path | None = None  # a folder to import penstock from, instead of the installed package

    @property
    def is_penstock(self) -> bool:
        """Whether it is a penstock server, of this checkout or of another."""
        return self.name in ("penstock", BEFORE)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> float:
        self.port = self.port or free_port()
        jetstream = ("-js", "-sd", str(self.store_dir)) if self.has_jetstream else ()
        arguments = ["-a", "127.0.0.1", "-p", str(self.port), *jetstream, *self.more]
        log_path = self.store_dir.parent / f"{self.name}.log"
        log = log_path.open("ab")
        environment = _as_installed()
        if self.source is not None:
            environment["PYTHONPATH"] = str(self.source)
        started = time.perf_counter()
        with log:
            self.process = subprocess.Popen(
                [*self.command, *arguments], stdout=log, stderr=log, env=environment
            )
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                    if probe.recv(4) == b"INFO":
                        return time.perf_counter() - started
            except OSError:
                pass
            if self.process.poll() is not None:
                raise LoadError(f"{self.name} ended with {self.process.returncode}:\n{last_lines(log_path)}")
            if time.perf_counter() - started > START_TIMEOUT_S:
                raise LoadError(
                    f"{self.name} did not listen within {START_TIMEOUT_S:.0f} s:\n{last_lines(log_path)}"
                )
            time.sleep(0.002)

    def until_jetstream_answers(self, stream: str, messages: int) -> None:
        """Polls STREAM.INFO until the stream has all its messages."""
        deadline = time.perf_counter() + START_TIMEOUT_S
        while time.perf_counter() < deadline:
            try:
                with wire(self.port) as control:
                    info = control.request(f"$JS.API.STREAM.INFO.{stream}")
            except (LoadError, OSError, ValueError, KeyError):
                time.sleep(0.005)
                continue
            state = info["state"]
            if isinstance(state, dict) and state["messages"] == messages:
                return
        raise LoadError(f"{self.name}: stream {stream} did not come back with {messages} messages")

    def resident_mib(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise LoadError("no VmRSS in /proc: memory can be measured on Linux only")

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(sig)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def penstock_server(folder: Path) -> ServerProcess:
    script = Path(sys.executable).with_name("penstock")
    return ServerProcess("penstock", [str(script), "serve"], folder / "penstock-store")


def official_server(folder: Path) -> ServerProcess | None:
    binary = official_binary()
    return None if binary is None else ServerProcess("nats-server", [str(binary)], folder / "official-store")


def two_checkouts(folder: Path, before: Path) -> list[ServerProcess]:
    """penstock of this checkout, and of the checkout `before`, whose kernels are built.

    Raises LoadError if `before` has no package.
    """
    servers = []
    for name, checkout in (("penstock", ROOT), (BEFORE, before.resolve())):
        source = checkout / "src"
        if not (source / "penstock" / "__main__.py").exists():
            raise LoadError(f"--before {before}: no penstock package in {source}; name a built checkout")
        command = [sys.executable, "-m", "penstock", "serve"]
        servers.append(ServerProcess(name, command, folder / f"{name}-store", source=source))
    return servers
