"""Servers of both kinds in several clusters, started from the same configuration text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsPy

from penstock.server.monitoring.pages.gatewayz import gatewayz
from penstock.server.monitoring.pages.remote_servers import RemotesOptions
from tests.support.clusters import Member, OfficialMember, PenstockMember
from tests.support.nats_servers import free_port, until

# The cluster that is dialled, and the one that dials. Official ones alone would show nothing about ours.
PAIRS = (("penstock", "penstock"), ("penstock", "official"), ("official", "penstock"))


class _GatewayMember(Member):
    """A server of a cluster. `to`: servers of other clusters that it dials; `routes`: those of its own."""

    def __init__(
        self,
        directory: Path,
        name: str,
        cluster: str,
        *,
        to: Sequence[_GatewayMember] = (),
        routes: Sequence[Member] = (),
        gateway: str = "",
        top: str = "",
        user: str = "",
    ) -> None:
        self.cluster_name = cluster
        self.gateway_port, self.leaf_port = free_port(), free_port()
        self._to, self._user = list(to), user
        self._gateway, self._in_cluster = gateway, bool(routes)
        super().__init__(directory, name, routes=routes, top=top)

    def configure(self, *, cluster: str = "", top: str = "", cluster_name: str = "c") -> None:
        self.write(top=top)

    def write(self, *, top: str = "", gateway: str | None = None) -> None:
        """Writes the configuration file; None = as before."""
        self._gateway = self._gateway if gateway is None else gateway
        entries = [
            f'{{ name: {one.cluster_name}, url: "nats://{self._user}127.0.0.1:{one.gateway_port}" }}'
            for one in self._to
        ]
        self.conf_path.write_text(f"""
            listen: "127.0.0.1:{self.port}"
            server_name: {self.name}
            {self._top()}
            {top}
            cluster {{
                name: {self.cluster_name}
                listen: "127.0.0.1:{self.route_port}"
                routes: [{", ".join(self._routes)}]
            }}
            gateway {{
                name: {self.cluster_name}
                listen: "127.0.0.1:{self.gateway_port}"
                gateways: [{", ".join(entries)}]
                {self._gateway}
            }}
        """)

    async def outbound(self) -> dict[str, Any]:
        """The clusters that it has a connection to."""
        found: dict[str, Any] = (await self.page("gatewayz"))["outbound_gateways"]
        return found

    async def inbound(self) -> dict[str, Any]:
        """The connections of other clusters."""
        found: dict[str, Any] = (await self.page("gatewayz"))["inbound_gateways"]
        return found


class PenstockGateway(_GatewayMember, PenstockMember):
    """A penstock server."""

    async def page(self, name: str) -> dict[str, Any]:
        if not name.startswith("gatewayz"):
            return await PenstockMember.page(self, name)
        await asyncio.sleep(0)
        query = dict(part.split("=") for part in name.partition("?")[2].split("&") if part)
        return gatewayz(self.server, RemotesOptions.from_query(query))


class OfficialGateway(_GatewayMember, OfficialMember):
    """An official server."""


_KINDS: dict[str, type[_GatewayMember]] = {"penstock": PenstockGateway, "official": OfficialGateway}


class SuperCluster:
    """Makes and starts servers; all of them stop, and all clients close, at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = AsyncExitStack()

    async def add(self, kind: str, name: str, cluster: str, **settings: Any) -> Any:
        """Starts a server."""
        member = _KINDS[kind](self.directory, name, cluster, **settings)
        await member.start()
        self._stack.push_async_callback(member.stop)
        return member

    async def pair(self, kinds: tuple[str, str], **settings: Any) -> tuple[Any, Any]:
        """Two clusters of one server each, connected both ways: the dialled and the dialling one."""
        first = await self.add(kinds[0], "A1", "A", **settings)
        second = await self.add(kinds[1], "B1", "B", to=[first], **settings)
        await joined(first, second)
        return first, second

    async def client(self, member: Member, **options: Any) -> NatsPy:
        """A client of a server."""
        client = await nats.connect(member.url, **{"allow_reconnect": False, **options})
        self._stack.push_async_callback(client.close)
        return client

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def super_clusters(directory: Path) -> AsyncIterator[SuperCluster]:
    """No servers yet."""
    made = SuperCluster(directory)
    try:
        yield made
    finally:
        await made.close()


async def joined(*members: Any) -> None:
    """Returns when every server has a connection to every other cluster."""
    names = {member.cluster_name for member in members}
    for member in members:

        async def is_joined(member: Any = member) -> bool:
            return set(await member.outbound()) == names - {member.cluster_name}

        await until(is_joined)
