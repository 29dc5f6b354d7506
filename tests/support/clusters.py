"""Servers of both kinds as members of one cluster, started from the same configuration text."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsPy

from penstock.server.config.directives import load
from penstock.server.logging import logs
from penstock.server.monitoring.pages.remote_servers import RemotesOptions, routez
from penstock.server.monitoring.pages.varz import VarzOptions, varz
from penstock.server.reload import apply_reload
from penstock.server.server import Server
from tests.support.nats_servers import free_port, official_binary, until

# Who accepts the route, and who dials. The official server with itself shows nothing about ours.
PAIRS = (("penstock", "penstock"), ("penstock", "official"), ("official", "penstock"))


class Member:
    """A server of a cluster. `routes`: the members that it dials."""

    kind = ""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        routes: Sequence[Member] = (),
        cluster: str = "",
        top: str = "",
        cluster_name: str = "c",
        user: str = "",
    ) -> None:
        self.name = name
        self.port, self.route_port, self.http_port = free_port(), free_port(), free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log_path = directory / f"{name}.log"
        self.conf_path = directory / f"{name}.conf"
        self._routes = [f'"nats://{user}127.0.0.1:{one.route_port}"' for one in routes]
        self.configure(cluster=cluster, top=top, cluster_name=cluster_name)

    def configure(self, *, cluster: str = "", top: str = "", cluster_name: str = "c") -> None:
        """Writes the configuration file."""
        naming = f"name: {cluster_name}" if cluster_name else ""
        self.conf_path.write_text(f"""
            listen: "127.0.0.1:{self.port}"
            server_name: {self.name}
            {self._top()}
            {top}
            cluster {{
                {naming}
                listen: "127.0.0.1:{self.route_port}"
                routes: [{", ".join(self._routes)}]
                {cluster}
            }}
        """)

    def _top(self) -> str:
        return ""

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def page(self, name: str) -> dict[str, Any]:
        """routez or varz; a query may follow the name."""
        raise NotImplementedError

    async def reload(self) -> None:
        raise NotImplementedError

    async def lame_duck(self) -> None:
        raise NotImplementedError

    async def num_routes(self) -> int:
        return int((await self.page("routez"))["num_routes"])

    async def peers(self) -> set[str]:
        """The names of the servers that it has routes to."""
        return {one["remote_name"] for one in (await self.page("routez"))["routes"]}


class PenstockMember(Member):
    kind = "penstock"
    server: Server

    async def start(self) -> None:
        options = load(str(self.conf_path))
        self.server = Server(options=options, log=logs.Log(self._note, debug=True))
        await self.server.start()

    def _note(self, label: str, text: str) -> None:
        with self.log_path.open("a") as file:
            file.write(f"[{label}] {text}\n")

    async def stop(self) -> None:
        await self.server.stop()

    async def page(self, name: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        page, _, query = name.partition("?")
        if page == "varz":
            return varz(self.server, VarzOptions(), {})
        asked = dict(part.split("=") for part in query.split("&") if part)
        return routez(self.server, RemotesOptions.from_query(asked))

    async def reload(self) -> None:
        await apply_reload(self.server, lambda: load(str(self.conf_path)))

    async def lame_duck(self) -> None:
        self._leaving = asyncio.get_running_loop().create_task(self.server.lame_duck())


class OfficialMember(Member):
    kind = "official"
    _process: subprocess.Popen[bytes] | None = None

    def _top(self) -> str:
        return f'http: "127.0.0.1:{self.http_port}"\ndebug: true\nlog_file: "{self.log_path}"'

    async def start(self) -> None:
        self.log_path.write_text("")
        self._process = await asyncio.to_thread(
            subprocess.Popen,
            [official_binary(), "-c", str(self.conf_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await until(lambda: "Server is ready" in self.log())
        if re.search(r"cluster \{[^}]*listen", self.conf_path.read_text()):  # it is ready before it listens
            await until(lambda: "Listening for route connections" in self.log())

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def page(self, name: str) -> dict[str, Any]:
        def get() -> dict[str, Any]:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{name}") as answer:
                found: dict[str, Any] = json.load(answer)
                return found

        return await asyncio.to_thread(get)

    async def reload(self) -> None:
        await self._signal("reload")

    async def lame_duck(self) -> None:
        await self._signal("ldm")

    async def _signal(self, name: str) -> None:
        assert self._process is not None
        command = [official_binary(), "--signal", f"{name}={self._process.pid}"]
        await asyncio.to_thread(subprocess.run, command, check=True)


_KINDS = {"penstock": PenstockMember, "official": OfficialMember}


class Cluster:
    """Makes and starts members; all of them stop, and all clients close, at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self.members: list[Member] = []

    async def add(self, kind: str, name: str, **settings: Any) -> Any:
        """Starts a member."""
        member = _KINDS[kind](self._directory, name, **settings)
        await member.start()
        self._stack.push_async_callback(member.stop)
        self.members.append(member)
        return member

    async def pair(self, kinds: tuple[str, str], **settings: Any) -> tuple[Any, Any]:
        """Two connected members: the accepting and the dialling one."""
        first = await self.add(kinds[0], "A", **settings)
        second = await self.add(kinds[1], "B", routes=[first], **settings)
        await connected(first, second)
        return first, second

    async def client(self, member: Member, **options: Any) -> NatsPy:
        """A client of a member."""
        settings = {"allow_reconnect": False, **options}
        client = await nats.connect(member.url, **settings)
        self._stack.push_async_callback(client.close)
        return client

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def clusters(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster without members."""
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        await cluster.close()


async def connected(*members: Member) -> None:
    """Returns when every member has a full pool of routes to every other one: by default three and the one of
    the system account."""
    names = {member.name for member in members}
    for member in members:
        wanted = 4 * (len(names) - 1)

        async def is_connected(member: Member = member, wanted: int = wanted) -> bool:
            return await member.num_routes() == wanted

        await until(is_connected)


async def heard(publisher: NatsPy, subject: str, inbox: list[Any]) -> None:
    """Returns when messages of the publisher arrive: its server knows of the subscription."""

    async def arrives() -> bool:
        await publisher.publish(subject, b"probe")
        await publisher.flush()
        await asyncio.sleep(0.005)
        return bool(inbox)

    await until(arrives)
    await asyncio.sleep(0.05)
    inbox.clear()
