"""Running servers for client tests: ours, embedded, and the official one as a subprocess.

The same tests run against both, so that the client is never only right about our own server.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import subprocess
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.go_programs import NATS_SERVER, GoProgramError, found

from penstock.testing.clusters.reserved_ports import free_port

KINDS = [pytest.param("official", marks=pytest.mark.official), "penstock"]
START_TIMEOUT_S = 20.0


@functools.cache
def find_official_server() -> str | None:
    """Path of the official binary: $PENSTOCK_NATS_SERVER, on PATH, where Go installs it, or built into the
    user's cache by `go`. None where there is neither a binary nor `go`."""
    try:
        return str(found(NATS_SERVER))
    except GoProgramError as error:
        warnings.warn(f"tests against the official server are skipped: {error}", stacklevel=1)
        return None


class OfficialServer:
    """The official server; stop and start keep port and store, as a restart of a real one does."""

    def __init__(self, binary: str, directory: Path, arguments: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._command = [
            binary, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(directory), *arguments
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        self.stop()
        raise TimeoutError(f"{self._command[0]} did not listen within {START_TIMEOUT_S} s")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


class PenstockServer:
    """Ours, embedded in a thread, on a fixed port and directory so that it can be stopped and started."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        from penstock.testing import server

        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._make = lambda: server(jetstream=True, port=self.port, store_dir=directory, **settings)
        self._running = None

    def start(self) -> None:
        self._running = self._make().start()

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()


AnyServer = OfficialServer | PenstockServer


def official_binary() -> str:
    """Its path. Skips the test where there is none."""
    binary = find_official_server()
    if binary is None:
        pytest.skip("no official nats-server: put it on PATH or name it in PENSTOCK_NATS_SERVER")
    return binary


def make_server(kind: str, directory: Path, *, user: str = "", password: str = "") -> AnyServer:
    """A server of a kind of KINDS, not yet started. Skips the test when the official binary is missing."""
    if kind == "penstock":
        settings: dict[str, object] = {"user": user, "password": password} if user else {}
        return PenstockServer(directory, settings)
    arguments = ("--user", user, "--pass", password) if user else ()
    return OfficialServer(official_binary(), directory, arguments)


@contextmanager
def running_server(kind: str, directory: Path, *, user: str = "", password: str = "") -> Iterator[AnyServer]:
    """The same, started, and stopped at the end."""
    server = make_server(kind, directory, user=user, password=password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 20.0) -> None:
    """Returns when the condition holds; for what no event tells."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.002)
