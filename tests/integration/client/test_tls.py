"""TLS: asked for by the server, by the URL, by the options, and before the first byte."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

import penstock.client
from penstock.errors import NoServersError
from tests.support.client_fakes import INFO, ScriptedPeer, scripted_server
from tests.support.nats_servers import OfficialServer, official_binary

pytestmark = pytest.mark.feature("client.tls")

CERTIFICATE = Path(__file__).parents[2] / "support" / "tls.pem"  # for 127.0.0.1, self-signed, with its key


@pytest.fixture
def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.fixture
def trust() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


async def answer_pings(peer: ScriptedPeer) -> None:
    while line := await peer.line():
        if line == b"PING":
            peer.send(b"PONG\r\n")


@pytest.mark.parametrize("asked_by", ["server", "url", "options"])
async def test_the_connection_is_encrypted_right_after_info(
    server_context: ssl.SSLContext, trust: ssl.SSLContext, asked_by: str
) -> None:
    connects: list[dict[str, Any]] = []

    async def script(peer: ScriptedPeer, number: int) -> None:
        info = INFO.replace(b"{", b'{"tls_required":true,', 1) if asked_by == "server" else INFO
        peer.send(info)
        await peer.secure(server_context)
        connects.append(json.loads((await peer.line()).removeprefix(b"CONNECT ")))
        await answer_pings(peer)

    async with scripted_server(script) as url:
        secure = url.replace("nats://", "tls://") if asked_by == "url" else url
        async with penstock.client.connect(secure, tls=trust) as client:
            await client.publish("a", b"a line\n" * 30_000 + b"the end")
            await client.flush()
    assert len(connects) == 1


async def test_tls_can_come_before_info(server_context: ssl.SSLContext, trust: ssl.SSLContext) -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        await peer.handshake(INFO.replace(b"{", b'{"tls_required":true,', 1))
        await answer_pings(peer)

    async with (
        scripted_server(script, server_context) as url,
        penstock.client.connect(url, tls=trust, tls_handshake_first=True) as client,
    ):
        await client.flush()


async def test_a_certificate_of_no_known_authority_is_refused(server_context: ssl.SSLContext) -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        peer.send(INFO)
        await peer.secure(server_context)

    async with scripted_server(script) as url:
        with pytest.raises(NoServersError, match="certificate verify failed"):
            await penstock.client.connect(url, tls=True)


async def test_the_certificates_name_is_checked(
    server_context: ssl.SSLContext, trust: ssl.SSLContext
) -> None:
    async def script(peer: ScriptedPeer, number: int) -> None:
        peer.send(INFO)
        await peer.secure(server_context)
        await answer_pings(peer)

    async with scripted_server(script) as url:
        with pytest.raises(NoServersError, match=r"other\.example"):
            await penstock.client.connect(url, tls=trust, tls_hostname="other.example")


@pytest.mark.official
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_official_server_is_reached_by_tls(tmp_path: Path, trust: ssl.SSLContext, loop: str) -> None:
    binary = official_binary()
    pem = str(CERTIFICATE)
    server = OfficialServer(binary, tmp_path, ("--tls", "--tlscert", pem, "--tlskey", pem))

    async def roundtrip() -> None:
        async with penstock.client.connect(server.url, tls=trust) as client:
            subscription = await client.subscribe("a")
            for number in range(20):
                await client.publish("a", bytes([number]) * 100_000)
            for number in range(20):
                assert (await subscription.next(10)).data == bytes([number]) * 100_000

    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    server.start()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(roundtrip())
    finally:
        server.stop()
