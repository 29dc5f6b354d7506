"""Leaf node links over WebSocket, in each pair of servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Certificates, make_certificates
from tests.support.leafs import PAIRS, Leafs, heard, linked
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("cluster.leaf-nodes")

PAIR = pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
MANY = 200


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class WebsocketHub:
    """Settings of a hub that listens for WebSocket, and of its leaf node."""

    def __init__(self, leafs: Leafs, kinds: tuple[str, str]) -> None:
        self.leafs, self.kinds = leafs, kinds

    async def pair(self, websocket: str = "no_tls: true", *, top: str = "", **leaf: Any) -> tuple[Any, Any]:
        hub = await self.hub(websocket, top=top)
        spoke = await self.leafs.add(
            self.kinds[1], "leaf", **{"to": (hub,), "listens": False, "scheme": "ws", **leaf}
        )
        return hub, spoke

    async def hub(self, websocket: str = "no_tls: true", *, top: str = "", **more: Any) -> Any:
        hub = await self.leafs.add(self.kinds[0], "hub", **more)
        await hub.stop()
        block = f'websocket {{ listen: "127.0.0.1:{hub.websocket_port}", {websocket} }}'
        hub.write(top=f"{block}\n{top}")
        await hub.start()
        return hub


async def collect(leafs: Leafs, node: Any, subject: str) -> tuple[Any, list[Any]]:
    client, found = await leafs.client(node), []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, cb=note)
    await client.flush()
    return client, found


async def works(leafs: Leafs, hub: Any, leaf: Any) -> None:
    """Many messages, and large ones with headers, arrive in both directions and in order."""
    await linked(hub, leaf)
    for near, far in ((hub, leaf), (leaf, hub)):
        _, inbox = await collect(leafs, far, "to.me")
        publisher = await leafs.client(near)
        await heard(publisher, "to.me", inbox)
        inbox.clear()
        for number in range(MANY):
            await publisher.publish("to.me", b"%d " % number + b"x" * (number * 37 % 3000))
        body = bytes(range(256)) * 2000
        await publisher.publish("to.me", body, headers={"X": "y"})
        await until(lambda inbox=inbox: len(inbox) == MANY + 1)
        assert [int(one.data.split(b" ")[0]) for one in inbox[:MANY]] == list(range(MANY))
        assert (inbox[MANY].data, inbox[MANY].headers) == (body, {"X": "y"})


@PAIR
@pytest.mark.parametrize(
    ("of_hub", "remote"),
    [
        ("", ""),
        ("", "ws_compression: true"),
        (", compression: true", "ws_compression: true"),
        (", compression: true", "compression: s2_fast"),
        ("", "compression: off\nws_no_masking: true"),
    ],
    ids=["auto", "hub-has-no-deflate", "deflate", "s2_fast", "plain-unmasked"],
)
async def test_messages_pass_over_websocket(
    leafs: Leafs, kinds: tuple[str, str], of_hub: str, remote: str
) -> None:
    hub, leaf = await WebsocketHub(leafs, kinds).pair(f"no_tls: true{of_hub}", remote=remote)
    await works(leafs, hub, leaf)
    for node, kind in zip((hub, leaf), kinds, strict=True):
        (link,) = await node.leafs()
        if kind == "penstock":
            assert link["websocket"] is True
            assert link["compression"] in ("off", "not supported")


@PAIR
async def test_wss_checks_the_certificate_of_the_hub(
    leafs: Leafs, kinds: tuple[str, str], certificates: Certificates
) -> None:
    tls = f'tls {{ cert_file: "{certificates.cert}", key_file: "{certificates.key}" }}'
    hub, leaf = await WebsocketHub(leafs, kinds).pair(
        tls, scheme="wss", remote=f'tls {{ ca_file: "{certificates.ca}" }}'
    )
    await works(leafs, hub, leaf)


@PAIR
async def test_a_websocket_leaf_node_connects_again(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await WebsocketHub(leafs, kinds).pair()
    await linked(hub, leaf)
    await hub.stop()
    await linked(leaf, count=0)
    await hub.start()
    await works(leafs, hub, leaf)


@PAIR
async def test_a_connection_type_admits_leaf_nodes_over_websocket_alone(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    users = "authorization { users: [{user: w, password: w, allowed_connection_types: [LEAFNODE_WS]}] }"
    hub = await WebsocketHub(leafs, kinds).hub(top=users)
    plain = await leafs.add(kinds[1], "plain", to=(hub,), listens=False, user="w:w@")
    leaf = await leafs.add(kinds[1], "leaf", to=(hub,), listens=False, user="w:w@", scheme="ws")
    await linked(leaf)
    await until(lambda: "authentication error" in hub.log())
    assert [one["name"] for one in await hub.leafs()] == ["leaf"]
    assert not await plain.leafs()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP status 404"),
        (b"INFO {}\r\n", "does not speak WebSocket"),
        (b"", "closed the connection|connection closed"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000, "does not speak WebSocket"),
    ],
    ids=["refused", "no-http", "closed", "endless"],
)
async def test_a_failed_websocket_handshake_is_logged_and_tried_again(
    leafs: Leafs, tmp_path: Path, answer: bytes, text: str
) -> None:
    requests: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    leaf = await leafs.add("penstock", "leaf", listens=False, block="port: -1")
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        remote = f'remotes: [{{ url: "ws://127.0.0.1:{port}/behind/proxy" }}]'
        leaf.write(block=f"port: -1\nreconnect: 50ms\n{remote}")
        await leaf.stop()
        await leaf.start()
        await until(lambda: len(requests) >= 2)
    assert requests[0].startswith(b"GET /behind/proxy/leafnode HTTP/1.1\r\n")
    assert any(one in leaf.log() for one in text.split("|"))
