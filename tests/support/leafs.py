"""Hubs and leaf nodes of both kinds, started from the same configuration text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsPy

from penstock.server.monitoring.pages.remote_servers import RemotesOptions, leafz
from tests.support.clusters import Member, OfficialMember, PenstockMember, heard
from tests.support.nats_servers import free_port, until

# Hub and leaf node. The official server with itself shows nothing about ours.
PAIRS = (("penstock", "penstock"), ("penstock", "official"), ("official", "penstock"))

__all__ = ["PAIRS", "Leafs", "heard", "leaf_servers", "linked"]


class _Node(Member):
    """A server with leaf nodes. `to`: the hubs that it dials."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        to: tuple[_Node, ...] = (),
        listens: bool = True,
        remote: str = "",
        user: str = "",
        scheme: str = "nats-leaf",
        block: str = "",
        top: str = "",
    ) -> None:
        self.leaf_port, self.websocket_port = free_port(), free_port()
        self._hubs, self._listens, self._user, self._scheme = to, listens, user, scheme
        self._remote, self._block = remote, block
        super().__init__(directory, name, top=top)

    def configure(self, *, cluster: str = "", top: str = "", cluster_name: str = "") -> None:
        """Writes the configuration file."""
        self.write(top=top)

    def write(
        self, *, top: str = "", block: str | None = None, remote: str | None = None, remotes: bool = True
    ) -> None:
        """Writes the configuration file; None = as before."""
        self._block = self._block if block is None else block
        self._remote = self._remote if remote is None else remote
        is_websocket = self._scheme.startswith("ws")
        entries = [
            f'{{ url: "{self._scheme}://{self._user}127.0.0.1:'
            f'{one.websocket_port if is_websocket else one.leaf_port}"\n{self._remote} }}'
            for one in self._hubs
        ]
        listen = f'listen: "127.0.0.1:{self.leaf_port}"' if self._listens else ""
        shown = f"remotes: [{', '.join(entries)}]" if entries and remotes else ""
        self.conf_path.write_text(f"""
            listen: "127.0.0.1:{self.port}"
            server_name: {self.name}
            {self._top()}
            {top}
            leafnodes {{
                {listen}
                {shown}
                {self._block}
            }}
        """)

    def own_lines(self) -> str:
        """What a configuration by hand needs for `log` and `page`."""
        return self._top()

    async def leafs(self) -> list[dict[str, Any]]:
        """The entries of leafz."""
        page = await self.page("leafz?subs=1")
        found: list[dict[str, Any]] = page.get("leafs") or []
        return found


class PenstockNode(_Node, PenstockMember):
    """A penstock server."""

    async def page(self, name: str) -> dict[str, Any]:
        if not name.startswith("leafz"):
            return await PenstockMember.page(self, name)
        await asyncio.sleep(0)
        return leafz(self.server, RemotesOptions.from_query({"subs": "1"}))


class OfficialNode(_Node, OfficialMember):
    """An official server."""


_KINDS = {"penstock": PenstockNode, "official": OfficialNode}


class Leafs:
    """Makes and starts servers; all of them stop, and all clients close, at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = AsyncExitStack()

    async def add(self, kind: str, name: str, **settings: Any) -> Any:
        """Starts a server."""
        node = _KINDS[kind](self.directory, name, **settings)
        await node.start()
        self._stack.push_async_callback(node.stop)
        return node

    async def pair(
        self, kinds: tuple[str, str], hub: dict[str, Any] | None = None, leaf: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """A hub and its leaf node, connected."""
        first = await self.add(kinds[0], "hub", **(hub or {}))
        second = await self.add(kinds[1], "leaf", to=(first,), listens=False, **(leaf or {}))
        await linked(first, second)
        return first, second

    async def client(self, node: Member, **options: Any) -> NatsPy:
        """A client of a server."""
        client = await nats.connect(node.url, **{"allow_reconnect": False, **options})
        self._stack.push_async_callback(client.close)
        return client

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def leaf_servers(directory: Path) -> AsyncIterator[Leafs]:
    """No servers yet."""
    made = Leafs(directory)
    try:
        yield made
    finally:
        await made.close()


async def linked(*nodes: Any, count: int = 1) -> None:
    """Returns when every server has this many links."""
    for node in nodes:

        async def is_linked(node: Any = node) -> bool:
            return len(await node.leafs()) == count

        await until(is_linked)
