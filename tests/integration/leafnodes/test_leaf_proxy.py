"""Leaf nodes that reach their hub through an HTTP proxy, with both kinds of hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.support.leafs import Leafs, heard, linked
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("cluster.leaf-nodes")

P, O = "penstock", "official"  # noqa: E741
HUBS = pytest.mark.parametrize("hub_kind", [P, pytest.param(O, marks=pytest.mark.official)])
TOKEN = b"Proxy-Authorization: Basic dTpw\r\n"  # u:p


@asynccontextmanager
async def http_proxy() -> AsyncIterator[tuple[int, list[bytes]]]:
    """An HTTP proxy that wants the user u with the password p: (its port, the requests)."""
    asked: list[bytes] = []
    running: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if TOKEN not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        host, _, port = head.split(b" ")[1].decode().partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.get_running_loop().create_task(copy(*pair))
            running.add(task)
            task.add_done_callback(running.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        for task in tuple(running):
            task.cancel()


async def passes(leafs: Leafs, hub: Any, leaf: Any) -> None:
    """A message arrives in each direction."""
    for near, far in ((hub, leaf), (leaf, hub)):
        subscriber, found = await leafs.client(far), []

        async def note(message: Any, found: list[Any] = found) -> None:
            found.append(message)

        await subscriber.subscribe("to.me", cb=note)
        await subscriber.flush()
        await heard(await leafs.client(near), "to.me", found)
        await subscriber.close()


@HUBS
@pytest.mark.parametrize("scheme", ["nats-leaf", "ws"])
async def test_a_leaf_node_reaches_its_hub_through_a_proxy(leafs: Leafs, hub_kind: str, scheme: str) -> None:
    hub = await leafs.add(hub_kind, "hub")
    if scheme == "ws":
        await hub.stop()
        hub.write(top=f'websocket {{ listen: "127.0.0.1:{hub.websocket_port}", no_tls: true }}')
        await hub.start()
    async with http_proxy() as (port, asked):
        proxy = f'proxy {{ url: "http://127.0.0.1:{port}", username: u, password: p, timeout: "5s" }}'
        leaf = await leafs.add(P, "leaf", to=(hub,), listens=False, scheme=scheme, remote=proxy)
        await linked(hub, leaf)
        await passes(leafs, hub, leaf)
        hub_port = hub.websocket_port if scheme == "ws" else hub.leaf_port
        assert asked[0].startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % hub_port)
        await leaf.stop()


async def test_a_proxy_that_refuses_is_in_the_log(leafs: Leafs) -> None:
    hub = await leafs.add(P, "hub")
    async with http_proxy() as (port, _):
        proxy = f'proxy {{ url: "http://127.0.0.1:{port}" }}'
        leaf = await leafs.add(P, "leaf", to=(hub,), listens=False, remote=proxy)
        text = f"proxy 127.0.0.1:{port}: CONNECT failed: '407 Proxy Authentication Required'"
        await until(lambda: text in leaf.log())
        assert await leaf.leafs() == []
        await leaf.stop()
