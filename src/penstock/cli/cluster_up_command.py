"""`penstock cluster up N`: a cluster of local servers, for development and tests of clients.

Each server is a process of `penstock serve`, as a user would start it by hand. They end with the command: it
ends them, waits for their files to be written, and kills what does not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, path, seconds
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.reports.system_requests import decode_page
from penstock.errors import MisuseError, ProtocolError

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from typing import BinaryIO

    from rich.table import Table

CLUSTER = CommandGroup("cluster", "Run a cluster of local servers.")
HOST = "127.0.0.1"
SERVERS_MAX = 9
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.2
TEXT_COLUMNS = ("Server", "State", "Pid", "URL", "Monitoring", "Meta")
COLUMNS = (*TEXT_COLUMNS, "Routes", "Streams", "Msgs", "Conns", "Subs", "In Msgs", "Mem")
LOG_LINES = 5


@dataclass(frozen=True)
class LocalServer:
    """One server of the cluster: its name, ports and files."""

    name: str
    port: int
    cluster_port: int
    http_port: int
    folder: Path
    has_jetstream: bool

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def words(self, cluster_name: str, routes: Sequence[str]) -> list[str]:
        """The flags of `penstock serve`."""
        words = ["-a", HOST, "-p", str(self.port), "-m", str(self.http_port), "-n", self.name]
        words += ["--cluster_name", cluster_name, "--cluster", f"nats://{HOST}:{self.cluster_port}"]
        words += ["--routes", ",".join(routes), "-l", str(self.log)]
        if self.has_jetstream:
            words += ["-js", "-sd", str(self.folder / self.name)]
        return words


def local_servers(number: int, run: CommandRun, folder: Path) -> list[LocalServer]:
    """The servers with consecutive ports. Raises MisuseError if the ports of one kind reach another's."""
    values = run.values
    port, cluster_port, http_port = (values.number(name) for name in ("port", "cluster-port", "http-port"))
    ports = [first + index for first in (port, cluster_port, http_port) for index in range(number)]
    if len(set(ports)) < len(ports) or max(ports) > 65535:
        raise MisuseError(f"--port, --cluster-port and --http-port leave no room for {number} servers each")
    name = values.text("name")
    has_jetstream = not values.flag("core")
    return [
        LocalServer(
            f"{name}-{index + 1}",
            port + index,
            cluster_port + index,
            http_port + index,
            folder,
            has_jetstream,
        )
        for index in range(number)
    ]


class _RunningServer:
    """A process of a server, and what its monitoring port said last."""

    def __init__(self, server: LocalServer, process: Process) -> None:
        self.server = server
        self.process = process
        self.varz: dict[str, Any] = {}
        self.jsz: dict[str, Any] = {}

    async def poll(self) -> None:
        """Ask for VARZ and JSZ; a server that does not answer has empty pages."""
        try:
            async with asyncio.timeout(1.0):
                self.varz = await _get(self.server.http_port, "/varz")
                self.jsz = await _get(self.server.http_port, "/jsz") if self.server.has_jetstream else {}
        except (OSError, TimeoutError, ProtocolError, asyncio.IncompleteReadError):
            self.varz, self.jsz = {}, {}

    def is_ready(self, number: int) -> bool:
        """Whether it has routes to all other servers of the cluster, and knows the meta leader."""
        if number == 1 or not self.varz:
            return bool(self.varz)
        is_led = bool(self.meta_leader) or not self.server.has_jetstream
        return is_led and int(self.varz.get("routes", 0)) >= number - 1

    @property
    def meta_leader(self) -> str:
        """The name of the server that it knows as leader of the meta group; "" = none."""
        return str((self.jsz.get("meta_cluster") or {}).get("leader") or "")

    def _role(self) -> str:
        if not self.server.has_jetstream:
            return "-"
        return (
            "leader" if self.meta_leader == self.server.name else "follower" if self.meta_leader else "none"
        )

    @property
    def state(self) -> str:
        if self.process.returncode is not None:
            return f"ended ({self.process.returncode})"
        return "running" if self.varz else "starting"

    def row(self) -> tuple[object, ...]:
        varz = self.varz
        return (
            self.server.name, self.state, self.process.pid, self.server.url,
            f"http://{HOST}:{self.server.http_port}", self._role(), varz.get("routes", 0),
            number_text(self.jsz.get("streams", 0)), number_text(self.jsz.get("messages", 0)),
            number_text(varz.get("connections", 0)), number_text(varz.get("subscriptions", 0)),
            number_text(varz.get("in_msgs", 0)), size_text(varz.get("mem", 0)),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.server.name, "state": self.state, "pid": self.process.pid, "url": self.server.url,
            "log": str(self.server.log), "varz": self.varz, "jsz": self.jsz,
        }  # fmt: skip

    async def stop(self) -> None:
        """End the process, and kill it if it does not."""
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def _get(port: int, target: str) -> dict[str, Any]:
    """A page of a monitoring port. Raises OSError, ProtocolError."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET {target} HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    return decode_page(answer.partition(b"\r\n\r\n")[2])


@asynccontextmanager
async def _running(run: CommandRun, servers: list[LocalServer]) -> AsyncIterator[list[_RunningServer]]:
    """The processes; they end with the block, however that ends."""
    routes = [f"nats://{HOST}:{server.cluster_port}" for server in servers]
    async with AsyncExitStack() as stack:
        running = []
        for server in servers:
            words = server.words(run.values.text("name"), routes)
            # Errors before the log is open go to the same file. In a session of its own the interrupt of a
            # terminal reaches this command only, which ends the servers.
            with _opened(server.log) as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "penstock", "serve", *words,
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            one = _RunningServer(server, process)
            stack.push_async_callback(one.stop)
            running.append(one)
        yield running


def _opened(log: Path) -> BinaryIO:
    return log.open("ab")


async def _poll_all(running: list[_RunningServer]) -> None:
    await asyncio.gather(*(one.poll() for one in running))


def _check_alive(running: list[_RunningServer]) -> None:
    """Raises CommandFailed with the last lines of its log if a server has ended."""
    for one in running:
        if one.process.returncode is None:
            continue
        lines = _last_lines(one.server.log)
        raise CommandFailed(f"server {one.server.name} ended with {one.process.returncode}:\n{lines}")


def _last_lines(log: Path) -> str:
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
    except OSError as error:
        return f"(its log can not be read: {error})"


def _are_ready(running: list[_RunningServer]) -> bool:
    """Whether every server has routes to all others, and all know the same meta leader."""
    leaders = {one.meta_leader for one in running}
    return all(one.is_ready(len(running)) for one in running) and len(leaders) == 1


async def _until_ready(running: list[_RunningServer]) -> None:
    """Wait until the servers are ready together. Raises CommandFailed."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not _are_ready(running):
                _check_alive(running)
                await _poll_all(running)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        late = [one.server.name for one in running if not one.is_ready(len(running))]
        text = f"not ready within {READY_TIMEOUT_S:g} s: {', '.join(late) or 'no common leader'}"
        raise CommandFailed(f"{text}; see {running[0].server.folder}") from None


@CLUSTER.command(
    "up",
    "Start a cluster of local servers, and end it with Ctrl-C.",
    arguments=(
        Argument(name="servers", help="Number of servers (default: 3)", required=False, convert=count),
    ),
    options=(
        Option(names=("--name",), default="local", help="Name of the cluster, and start of those of servers"),
        Option(names=("--port",), convert=count, default=4222, help="Client port of the first server"),
        Option(names=("--cluster-port",), convert=count, default=6222, help="Its port for routes"),
        Option(names=("--http-port",), convert=count, default=8222, help="Its monitoring port"),
        Option(names=("--dir",), convert=path,
               help="Directory of logs and streams (default: a temporary one, removed at the end)"),
        Option(names=("--core",), convert=bool, default=False, help="Without JetStream"),
        Option(names=("--interval",), convert=seconds, default=1.0, help="How often to refresh the table"),
        Option(names=("--duration",), convert=seconds, help="End after this time (default: never)"),
    ),
    connects=False,
    details="Servers get consecutive ports, and JetStream with up to as many replicas. With --dir the next "
    "run finds the streams again. On a terminal a table shows them; with --json each is one object "
    "a line, printed once when all are connected.",
    examples=("cluster up 3", "cluster up 5 --dir ~/cluster"),
)  # fmt: skip
async def up(run: CommandRun) -> None:
    """Start the servers, show them, and end them when interrupted."""
    number = run.values.number("servers", 3)
    if number > SERVERS_MAX:
        raise MisuseError(f"{number} servers; at most {SERVERS_MAX}")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop.set)
    with contextlib.ExitStack() as files:
        folder = run.values.path("dir")
        if folder is None:
            folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cluster-")))
        _make_folder(folder)
        async with _running(run, local_servers(number, run, folder)) as running:
            starting = asyncio.ensure_future(_until_ready(running))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                await starting
                await _show(run, running, stop)
            for task in (starting, stopping):
                task.cancel()
        run.output.note("The cluster has ended")


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


async def _show(run: CommandRun, running: list[_RunningServer], stop: asyncio.Event) -> None:
    """Show the servers until `stop`, or for --duration. Raises CommandFailed if one ends."""
    output = run.output
    if output.as_json:
        for one in running:
            output.json_line(one.as_json())
        output.flush()
    elif not output.is_terminal:
        output.table(COLUMNS, [one.row() for one in running], title=_title(running))
        output.flush()
    duration_s = run.values.seconds("duration") or None
    async with AsyncExitStack() as stack:
        live = None
        if output.is_terminal and not output.as_json:
            from rich.live import Live

            live = stack.enter_context(Live(_table(running), console=output.console(), auto_refresh=False))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                while not await _waited(stop, run.values.seconds("interval")):
                    await _poll_all(running)
                    if live is not None:
                        live.update(_table(running), refresh=True)
                    _check_alive(running)


async def _waited(stop: asyncio.Event, interval_s: float) -> bool:
    """Wait for an interval. Returns whether `stop` was set meanwhile."""
    ending = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait((ending,), timeout=interval_s)
        return bool(done)
    finally:
        ending.cancel()


def _title(running: list[_RunningServer]) -> str:
    urls = ",".join(one.server.url for one in running)
    return f"Cluster of {len(running)} servers: {urls}"


def _table(running: list[_RunningServer]) -> Table:
    from rich.table import Table

    table = Table(title=f"{_title(running)} (Ctrl-C ends it)")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in TEXT_COLUMNS else "right")
    for one in running:
        table.add_row(*(str(cell) for cell in one.row()))
    return table
