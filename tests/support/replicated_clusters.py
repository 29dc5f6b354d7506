"""Clusters of three servers with JetStream, of penstock or the official server, for the same tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsPy
from nats.errors import Error as NatsError

from penstock.errors import ServerError
from penstock.testing import SyncProcessCluster, sync_cluster
from penstock.testing.clusters.server_process import PENSTOCK
from tests.support.meta_answers import SYSTEM, TAGS
from tests.support.nats_servers import official_binary, until
from tests.support.network_namespaces import NamespaceCluster, NamespaceNetwork

TIMEOUT_S = 15.0
FAILOVER_S = 30.0
REPAIRED_S = 60.0
CLOSED_S = 5.0


def _config(index: int) -> str:
    return f"""
server_tags: {json.dumps(list(TAGS.get("abcdefghi"[index], ())))}
accounts {{
    $SYS {{ users: [{{user: sys, password: sys}}] }}
    APP {{ jetstream: enabled, users: [{{user: app, password: app}}] }}
}}
no_auth_user: app
"""


def command_of(kind: str) -> tuple[str, ...]:
    """What starts a server of this kind. Skips the test where there is no official server."""
    return PENSTOCK if kind == "penstock" else (official_binary(),)


@contextmanager
def replicated_cluster(
    kind: str,
    directory: Path,
    jetstream: str = "",
    servers: int = 3,
    command: Sequence[str] = (),
    network: NamespaceNetwork | None = None,
    config: Callable[[int], str] | None = None,
) -> Iterator[SyncProcessCluster]:
    """Ready servers called a, b, c, ... with a system account; the first three have tags. command: starts a
    server, instead of the usual one of this kind. network: their hosts, instead of this one. config: of the
    server of a number, instead of tags and accounts."""
    names = "abcdefghi"[:servers]
    options: dict[str, Any] = {"config": config or _config, "names": names, "directory": directory}
    options |= {"command": command or command_of(kind), "jetstream": jetstream or True}
    if network is not None:
        made = SyncProcessCluster(NamespaceCluster(servers, network, **options))
    else:
        made = sync_cluster(servers, name="c", **options)
    try:
        made.start()
    except ServerError as error:
        if kind == "penstock" and "exclude each other" in str(error):
            pytest.skip("this penstock has no replicated JetStream: a cluster with it does not start")
        raise
    try:
        yield made
    finally:
        made.close()


class ClusterTalk:
    """Clients of a cluster's servers, and requests of its API, for one test."""

    def __init__(self, made: SyncProcessCluster) -> None:
        self.made = made
        self._clients: list[NatsPy] = []
        self._asking: dict[tuple[int, bool], NatsPy] = {}
        self._streams: list[str] = []

    async def client(self, server: int | None = None, **options: Any) -> NatsPy:
        """A nats-py client of a server, or of all."""
        urls = self.made.urls if server is None else [self.made.servers[server].url]
        settings = {"allow_reconnect": server is None, "error_cb": _ignore, "reconnect_time_wait": 0.1}
        settings |= {"max_reconnect_attempts": -1, "connect_timeout": 2, **options}
        client = await nats.connect(urls, **settings)
        self._clients.append(client)
        return client

    async def _asker(self, server: int, is_system: bool) -> NatsPy:
        known = self._asking.get((server, is_system))
        if known is None or not known.is_connected:
            login = {"user": "sys", "password": "sys"} if is_system else {}
            known = self._asking[server, is_system] = await self.client(server, **login)
        return known

    async def ask(
        self, subject: str, body: Any = None, *, server: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The answer to an API request without `$JS.API.`. server: that gets it; None = the first that runs.

        Raises what nats-py's request raises.
        """
        running = [i for i, one in enumerate(self.made.servers) if one.is_running and not one.is_paused]
        client = await self._asker(running[0] if server is None else server, subject.startswith(SYSTEM))
        return await api_request(client, subject, body, timeout_s=timeout_s)

    async def create(self, name: str, replicas: int = 3, **fields: Any) -> dict[str, Any]:
        """Creates a stream with subjects NAME.>; it goes with the test. Asserts that it is created."""
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, **fields}
        answer = await self.ask(f"STREAM.CREATE.{name}", config)
        assert "error" not in answer, answer
        self._streams.append(name)
        await self.whole(name)
        return answer

    async def info(self, stream: str, **options: Any) -> dict[str, Any]:
        return await self.ask(f"STREAM.INFO.{stream}", **options)

    async def leader(self, stream: str, *, but: int = -1, timeout_s: float = FAILOVER_S) -> int:
        """The server that leads a stream, when there is one that is not `but`."""
        found: list[int] = []

        async def is_led() -> bool:
            with suppress(ServerError):
                found[:] = [await asyncio.to_thread(self.made.leader_of, stream)]
                return found[0] != but
            return False

        await until(is_led, timeout_s)
        return found[0]

    async def whole(self, stream: str, timeout_s: float = 60.0) -> None:
        """Returns when all replicas of a stream are current."""
        last: dict[str, Any] = {}

        async def is_whole() -> bool:
            nonlocal last
            with suppress(NatsError):
                last = (await self.info(stream, timeout_s=2)).get("cluster") or {}
                others = last.get("replicas") or []
                return bool(last.get("leader")) and all(
                    one["current"] and not one.get("lag") for one in others
                )
            return False

        try:
            await until(is_whole, timeout_s)
        except TimeoutError:
            raise AssertionError(f"stream {stream} is not whole after {timeout_s:g} s: {last}") from None

    async def lead(self, stream: str, name: str, timeout_s: float = FAILOVER_S) -> None:
        """Makes a server lead a stream that is whole."""

        async def leads() -> bool:
            with suppress(NatsError):
                leader = (await self.info(stream, timeout_s=2)).get("cluster", {}).get("leader")
                if leader == name:
                    return True
                if leader:
                    wanted = {"placement": {"preferred": name}}
                    await self.ask(f"STREAM.LEADER.STEPDOWN.{stream}", wanted, timeout_s=2)
            await asyncio.sleep(0.1)
            return False

        await until(leads, timeout_s)

    async def do(self, fault: Callable[..., None], *arguments: Any) -> None:
        """A method of the cluster, off the event loop."""
        await asyncio.to_thread(fault, *arguments)

    async def do_page(self, server: int, name: str) -> dict[str, Any]:
        """A page of a server's monitoring port."""
        return await asyncio.to_thread(self.made.page, server, name)

    async def do_meta_leader(self) -> int:
        """The leader of the meta group."""
        found = await asyncio.to_thread(self.made.meta_leader)
        assert found is not None, "servers do not agree on a meta leader"
        return found

    async def close(self, *, repairs: bool = True) -> None:
        """Ends faults, deletes the test's streams, closes clients. repairs: starts servers that are down, and
        waits until all are well."""
        made = self.made
        made.heal()
        for index, one in enumerate(made.servers):
            if one.is_paused:
                one.resume()
            if repairs and not one.is_running:
                await self.do(made.start_server, index)
        if repairs:
            await asyncio.wait_for(self.do(made.wait_ready), REPAIRED_S)
        for name in self._streams:
            with suppress(NatsError):
                await self.ask(f"STREAM.DELETE.{name}", timeout_s=5)
        for client in self._clients:
            with suppress(Exception):
                await asyncio.wait_for(client.close(), CLOSED_S)


async def _ignore(error: Exception) -> None:
    """Connections to servers that a test kills."""


async def api_request(
    client: NatsPy, subject: str, body: Any = None, *, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """The answer to an API request without `$JS.API.`. Raises what nats-py's request raises."""
    data = b"" if body is None else json.dumps(body).encode()
    message = await client.request(f"$JS.API.{subject}", data, timeout=timeout_s)
    found: dict[str, Any] = json.loads(message.data)
    return found


async def publish_sure(
    client: NatsPy, subject: str, data: bytes, msg_id: str, timeout_s: float = 60.0
) -> dict[str, Any]:
    """Publishes until there is an ack, with the same message id each time. Returns the ack."""
    found: dict[str, Any] = {}

    async def is_acked() -> bool:
        with suppress(NatsError, OSError):
            answer = await client.request(subject, data, timeout=1, headers={"Nats-Msg-Id": msg_id})
            found.clear()
            found.update(json.loads(answer.data))
            return "error" not in found
        await asyncio.sleep(0.05)
        return False

    await until(is_acked, timeout_s)
    return found
