"""The client over WebSocket, with both servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.client
from penstock.errors import NoServersError
from tests.support.certificates import Certificates, make_certificates
from tests.support.client_fakes import ScriptedPeer, scripted_server
from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, free_port

pytestmark = pytest.mark.feature("client.websocket")

FAST: dict[str, Any] = {"reconnect_wait": 0.02, "reconnect_wait_max": 0.1}


@pytest.fixture(scope="module", params=KINDS)
def ws_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    conf = f'websocket {{ host: "127.0.0.1", port: {port}, no_tls: true, compression: true }}'
    with running_conf(request.param, conf, tmp_path_factory.mktemp(request.param)):
        yield f"ws://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=KINDS)
def wss_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[str]:
    port = free_port()
    tls = f'cert_file: "{certificates.cert}", key_file: "{certificates.key}"'
    conf = f'websocket {{ host: "127.0.0.1", port: {port}, tls {{ {tls} }} }}'
    with running_conf(request.param, conf, tmp_path_factory.mktemp(request.param)):
        yield f"wss://127.0.0.1:{port}"


@pytest.mark.parametrize("compression", [False, True])
async def test_messages_requests_and_streams_work_over_websocket(ws_url: str, compression: bool) -> None:
    async with penstock.connect(ws_url, websocket_compression=compression) as client:
        assert client.connected_url == ws_url
        big = bytes(range(256)) * 4000
        received = await client.subscribe("big.*")
        for _ in range(5):
            await client.publish("big.one", big, headers={"A": "b"})
        assert [(await received.next(10)).data == big for _ in range(5)] == [True] * 5
        await client.subscribe("echo", callback=lambda msg: msg.respond(msg.data))
        assert (await client.request("echo", b"hello")).data == b"hello"
        js = client.jetstream(timeout=10)
        stream = await js.create_stream("WS", subjects=["ws"], storage="memory")
        try:
            async with js.publisher(window=100) as publisher:
                for number in range(500):
                    await publisher.publish("ws", b"%d" % number)
            got = await (await stream.create_consumer()).fetch(500)
            assert [int(msg.data) for msg in got] == list(range(500))
        finally:
            await stream.delete()


async def test_a_websocket_is_encrypted_by_its_scheme(wss_url: str, certificates: Certificates) -> None:
    context = certificates.client_context()
    for url in (wss_url, wss_url.replace("wss:", "ws:")):  # tls= encrypts ws:// too
        async with penstock.connect(url, tls=context) as client:
            await client.flush()
            transport = client._session.connection._transport  # type: ignore[union-attr]
            assert transport is not None
            assert isinstance(transport.get_extra_info("ssl_object"), ssl.SSLObject)


async def test_an_unknown_certificate_is_refused(wss_url: str) -> None:
    with pytest.raises(NoServersError, match="certificate verify failed"):
        await penstock.connect(wss_url)


async def test_a_websocket_client_reconnects(ws_url: str) -> None:
    asked: list[int] = []

    def headers() -> dict[str, str]:
        asked.append(1)
        return {"X-Token": "t"}

    async with penstock.connect(ws_url, **FAST, websocket_headers=headers) as client:
        subscription = await client.subscribe("again")
        await client.force_reconnect()
        await client.wait_connected(20)
        await client.publish("again", b"after")
        assert (await subscription.next(5)).data == b"after"
    assert len(asked) == 2


async def test_a_server_that_never_answers_the_handshake_is_given_up() -> None:
    gone = asyncio.Event()

    async def script(peer: ScriptedPeer, number: int) -> None:
        while await peer.line():
            pass
        assert await peer.line() == b""  # the socket is closed, and not only forgotten
        gone.set()

    async with scripted_server(script) as url:
        with pytest.raises(NoServersError, match=r"within 0\.05 s"):
            await penstock.connect(url.replace("nats:", "ws:"), connect_timeout=0.05)
        async with asyncio.timeout(10):
            await asyncio.wait_for(gone.wait(), 10)


@pytest.mark.parametrize("kind", KINDS)
async def test_login_works_over_websocket(kind: str, tmp_path: Path) -> None:
    port = free_port()
    conf = (
        f'websocket {{ host: "127.0.0.1", port: {port}, no_tls: true }}\n'
        "authorization { user: joe, password: secret }"
    )
    with running_conf(kind, conf, tmp_path):
        async with penstock.connect(f"ws://joe:secret@127.0.0.1:{port}") as client:
            await client.flush()
