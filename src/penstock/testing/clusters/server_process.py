"""One server of a cluster for tests: its configuration and files, and the process that serves.

The process is that of any NATS server which reads a configuration file with `-c`: `penstock serve`, or the
official `nats-server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.errors import MisuseError, ServerError
from penstock.testing.clusters.reserved_ports import free_port

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 20.0
PAGE_TIMEOUT_S = 2.0
LOG_LINES = 20
PENSTOCK = (sys.executable, "-m", "penstock", "serve")


class ServerProcess:
    """A server, made by `cluster`. ports: for clients, servers and monitoring (None = free ones).

    Attributes:
        name: server_name.
        host: where it listens.
        url: for clients.
        port, cluster_port, http_port: where it listens; they stay the same when it restarts.
        store_dir: directory of its streams.
        log_path: its log, all starts in one file.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        command: Sequence[str],
        host: str = HOST,
        ports: tuple[int, int, int] | None = None,
    ) -> None:
        self.name = name
        self.host = host
        self.port, self.cluster_port, self.http_port = ports or (free_port(), free_port(), free_port())
        self.url = f"nats://{host}:{self.port}"
        self.store_dir = directory / name
        self.log_path = directory / f"{name}.log"
        self._conf_path = directory / f"{name}.conf"
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False

    @property
    def pid(self) -> int:
        """Of the last process. Raises ServerError before the first start."""
        return self._started().pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        return self._is_paused and self.is_running

    @property
    def log(self) -> str:
        """What the server has logged so far, and written to stderr."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The last lines of the log, for error texts."""
        return "\n".join(self.log.splitlines()[-LOG_LINES:])

    def configure(self, text: str) -> None:
        """Writes the configuration file, which the next start reads."""
        self._conf_path.write_text(text)

    def launch(self, *flags: str) -> None:
        """Starts the process. flags: more of its command line. Raises MisuseError if it runs."""
        if self.is_running:
            raise MisuseError(f"server {self.name} runs already (process {self.pid})")
        # The package may be used from a source tree without being installed.
        source = str(Path(__file__).resolve().parents[3])
        found = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and one != source]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, *found])}
        with self.log_path.open("ab") as log:
            # In a session of its own, the interrupt of a terminal reaches the test only.
            self._process = subprocess.Popen(
                [*self._command, "-c", str(self._conf_path), *flags],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._is_paused = False

    async def wait_listening(self, timeout_s: float) -> str:
        """Waits until clients can connect. Returns the server id.

        Raises:
            ServerError: the process ended, or does not listen in time; with the end of its log.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if not self.is_running:
                        status = self._started().returncode
                        raise ServerError(
                            f"server {self.name} ended with status {status}:\n{self.log_tail()}"
                        )
                    with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                        return await self._server_id()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ServerError(
                f"server {self.name} does not listen at {self.url} after {timeout_s:g} s:\n{self.log_tail()}"
            ) from None

    async def _server_id(self) -> str:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            line = await reader.readuntil(b"\r\n")
            return str(json.loads(line.removeprefix(b"INFO "))["server_id"])
        finally:
            writer.close()

    async def page(self, name: str) -> dict[str, Any]:
        """A page of the monitoring port: `page("jsz?streams=true")`.

        Raises:
            ServerError: the server does not answer within 2 s, or not with JSON.
        """
        try:
            async with asyncio.timeout(PAGE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self.host, self.http_port)
                try:
                    writer.write(f"GET /{name} HTTP/1.0\r\nHost: {self.host}\r\n\r\n".encode())
                    answer = await reader.read()
                finally:
                    writer.close()
            found = json.loads(answer.partition(b"\r\n\r\n")[2])
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            reason = str(error) or "timeout"
            raise ServerError(f"server {self.name} does not answer /{name}: {reason}") from error
        if not isinstance(found, dict):
            raise ServerError(f"server {self.name} answers /{name} with {found!r} instead of an object")
        return found

    async def kill(self) -> None:
        """SIGKILL: the server loses what only its memory has. Does nothing if it does not run."""
        if self.is_running:
            self._signal(signal.SIGKILL)
            await asyncio.to_thread(self._started().wait)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to a process that does not end. Does nothing if it does not run.

        Raises:
            ServerError: it did not end within 20 s.
        """
        if not self.is_running:
            return
        if self._is_paused:
            self.resume()
        self._signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._started().wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            await self.kill()
            raise ServerError(
                f"server {self.name} did not stop within {STOP_TIMEOUT_S:g} s, and was killed"
            ) from None

    def pause(self) -> None:
        """SIGSTOP: it does nothing, and its connections stay open. Raises ServerError if it does not run."""
        self._signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """SIGCONT. Raises ServerError if it does not run."""
        self._signal(signal.SIGCONT)
        self._is_paused = False

    def lame_duck(self) -> None:
        """SIGUSR2: lame duck mode. Raises ServerError if it does not run."""
        self._signal(signal.SIGUSR2)

    def wipe(self) -> None:
        """Removes its store directory, as if the server had a new disk.

        Raises:
            MisuseError: it runs.
        """
        if self.is_running:
            raise MisuseError(f"server {self.name} runs: stop or kill it before its disk is wiped")
        shutil.rmtree(self.store_dir, ignore_errors=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError(f"server {self.name} was not started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        process = self._started()
        if process.poll() is not None:
            raise ServerError(
                f"server {self.name} does not run (status {process.returncode}); {number.name} not sent"
            )
        process.send_signal(number)
