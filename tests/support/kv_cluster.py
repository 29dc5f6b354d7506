"""Servers with a replicated key-value store (`replicated_kv`), as processes that a test kills and stops."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsPy

from tests.support.nats_servers import free_port, until

ROOT = Path(__file__).resolve().parents[2]
CLOSED_S = 2.0
CONNECT_S = 1
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


class KeyValueMember:
    """One server."""

    def __init__(self, directory: Path, name: str, size: int, flags: tuple[str, ...]) -> None:
        self.name = name
        self._flags = flags
        self.port, self.route_port = free_port(), free_port()
        self.data = directory / f"{name}-data"
        self._conf = directory / f"{name}.conf"
        self._log = directory / f"{name}.log"
        self._size = size
        self._process: subprocess.Popen[bytes] | None = None
        self._client: NatsPy | None = None

    def configure(self, members: list[KeyValueMember], cluster: str) -> None:
        routes = ", ".join(f'"nats://127.0.0.1:{one.route_port}"' for one in members if one is not self)
        self._conf.write_text(f"""
            listen: "127.0.0.1:{self.port}"
            server_name: {self.name}
            cluster {{ name: c, listen: "127.0.0.1:{self.route_port}", routes: [{routes}], {cluster} }}
        """)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *flags: str) -> None:
        command = [sys.executable, "-m", "tests.support.replicated_kv", str(self._conf), str(self.data)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._size), *self._flags, *flags],
                env=ENVIRONMENT,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> None:
        """Until the process has ended."""
        assert self._process is not None
        await asyncio.to_thread(self._process.wait, 20)
        await self.forget_client()

    async def forget_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):  # nats-py waits for its flusher task for ever when that has ended
                await asyncio.wait_for(client.close(), CLOSED_S)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()

    def wipe(self) -> None:
        shutil.rmtree(self.data)

    async def ask(self, name: str, payload: str = "", timeout_s: float = 1.0) -> str:
        """A request to this server; "" = no answer. Starts with + when it succeeded."""
        try:
            async with asyncio.timeout(timeout_s + CONNECT_S):
                if self._client is None:
                    self._client = await self._connect()
                subject = f"KV.{self.name}.{name}"
                answer = await self._client.request(subject, payload.encode(), timeout=timeout_s)
                return answer.data.decode()
        except Exception:  # noqa: BLE001 (a server that is down, or stopped)
            await self.forget_client()
            return ""

    async def _connect(self) -> NatsPy:
        # nats-py tries an address that refuses it for two minutes, whatever these options say.
        url = f"nats://127.0.0.1:{self.port}"
        return await nats.connect(url, allow_reconnect=False, connect_timeout=CONNECT_S, error_cb=_ignore)

    async def state(self) -> dict[str, Any]:
        answer = await self.ask("state")
        found: dict[str, Any] = json.loads(answer) if answer else {}
        return found


async def _ignore(error: Exception) -> None:
    """Connections to servers that a test kills."""


class KeyValueCluster:
    """Three servers. acked: the last acknowledged value of each key. flags: of every start."""

    def __init__(self, directory: Path, cluster: str = "", flags: tuple[str, ...] = ()) -> None:
        self.members = [KeyValueMember(directory, f"s{i}", 3, flags) for i in range(3)]
        self.acked: dict[str, str] = {}
        self.longest_gap_s = 0.0
        for one in self.members:
            one.configure(self.members, cluster)

    async def leader(self, *, but: KeyValueMember | None = None) -> KeyValueMember:
        """The server that serves."""
        found: list[KeyValueMember] = []

        async def is_there() -> bool:
            states = {one: await one.state() for one in self.members if one is not but and one.is_running}
            leaders = [one for one, state in states.items() if state.get("role") == "leader"]
            found[:] = sorted(leaders, key=lambda one: states[one]["raftz"]["kv"]["term"])[-1:]
            return bool(found)

        await until(is_there, 30)
        return found[0]

    async def write_until(self, stop: asyncio.Event, prefix: str, pause_s: float = 0.002) -> None:
        """Puts one key after the other at whatever server leads."""
        number, at, last = 0, 0, time.monotonic()
        while not stop.is_set():
            key = f"{prefix}{number}"
            answer = await self.members[at].ask("put", f"{key} v{number}")
            if answer.startswith("+"):
                self.acked[key] = f"v{number}"
                number += 1
                now = time.monotonic()
                self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
                await asyncio.sleep(pause_s)
            else:
                at = (at + 1) % len(self.members)
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """All servers become equal, and have everything that was acknowledged."""
        leader = await self.leader()
        for key, value in self.acked.items():
            assert await leader.ask("get", key, 5.0) == f"+{value}", key
        states: list[dict[str, Any]] = []

        async def are_equal() -> bool:
            states[:] = [await one.state() for one in self.members]
            return len({(one.get("digest"), one.get("index")) for one in states}) == 1

        try:
            await until(are_equal, 30)
        except TimeoutError:
            raise AssertionError(f"the servers differ: {states}") from None

    async def close(self) -> None:
        for one in self.members:
            if one.is_running:
                one.signal(signal.SIGCONT)
                await one.kill()


@asynccontextmanager
async def key_values(
    directory: Path, cluster: str = "", flags: tuple[str, ...] = ()
) -> AsyncIterator[KeyValueCluster]:
    """Three running servers, linked, with a leader."""
    made = KeyValueCluster(directory, cluster, flags)
    try:
        for one in made.members:
            one.start()
        await made.leader()
        yield made
    finally:
        await made.close()
