"""TLS of client connections: what comes first, who is refused, both loops and both clients."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import nats
import pytest
import uvloop

import penstock
from penstock.errors import ConfigError, PenstockError
from penstock.net.reasons import CloseReason
from penstock.server.config.server_options import ServerOptions, TlsOptions
from penstock.server.monitoring.pages.connz import ConnzOptions, connz
from penstock.server.monitoring.pages.page_options import in_pieces
from penstock.server.server import Server
from tests.support.certificates import Certificates, make_certificates

pytestmark = pytest.mark.feature("connectivity.tls")

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
WAIT_S = 10.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def server_with(tls: TlsOptions, **settings: Any) -> Server:
    return Server(options=ServerOptions(host="127.0.0.1", port=-1, tls=tls, **settings))


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def closed_for(server: Server) -> CloseReason:
    """Why the first connection was closed, once it was."""
    async with asyncio.timeout(WAIT_S):
        while not server.sessions.closed:
            await asyncio.sleep(0)
    return server.sessions.closed[0].reason


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("handshake_first", [False, True])
def test_large_messages_pass_both_ways_on_both_loops(
    certificates: Certificates, new_loop: Any, handshake_first: bool
) -> None:
    payload = bytes(range(256)) * 3900

    async def talk() -> None:
        async with server_with(certificates.options(handshake_first=handshake_first)) as server:
            assert server.url.startswith("tls://")
            async with penstock.connect(
                server.url, tls=certificates.client_context(), tls_handshake_first=handshake_first
            ) as client:
                subscription = await client.subscribe("big")
                for _ in range(8):
                    await client.publish("big", payload)
                async with asyncio.timeout(WAIT_S):
                    for _ in range(8):
                        assert (await subscription.next()).data == payload

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


@pytest.mark.parametrize("handshake_first", [False, True])
async def test_nats_py_talks_tls(certificates: Certificates, handshake_first: bool) -> None:
    async with server_with(certificates.options(handshake_first=handshake_first)) as server:
        client = await nats.connect(
            server.url, tls=certificates.client_context(), tls_handshake_first=handshake_first
        )

        async def answer(message: Any) -> None:
            await message.respond(message.data[::-1])

        await client.subscribe("echo", cb=answer)
        reply = await client.request("echo", b"abc", timeout=WAIT_S)
        assert reply.data == b"cba"
        session = next(iter(server.sessions.values()))
        assert session.connection.tls()[0] == "1.3"
        (entry,) = (await in_pieces(connz(server, ConnzOptions())))["connections"]
        assert (entry["type"], entry["tls_version"]) == ("nats", "1.3")
        await client.close()


async def test_info_says_what_is_required(certificates: Certificates) -> None:
    async with server_with(certificates.options(verify=True)) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        info = await reader.readline()
        assert b'"tls_required":true' in info
        assert b'"tls_verify":true' in info
        writer.close()


async def test_a_client_that_distrusts_the_authority_gives_up(
    certificates: Certificates, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path)
    async with server_with(certificates.options()) as server:
        with pytest.raises((PenstockError, ssl.SSLError)):
            await penstock.connect(server.url, tls=stranger.client_context(), connect_timeout=WAIT_S)
        assert await closed_for(server) is CloseReason.TLS_HANDSHAKE_FAILURE


@pytest.mark.parametrize("whose", ["none", "a stranger's"])
async def test_with_verify_a_client_needs_a_certificate_of_the_authority(
    certificates: Certificates, tmp_path: Path, whose: str
) -> None:
    context = certificates.client_context()
    if whose != "none":
        stranger = make_certificates(tmp_path)
        context.load_cert_chain(stranger.client_cert, stranger.client_key)
    async with server_with(certificates.options(verify=True)) as server:
        with pytest.raises((PenstockError, ssl.SSLError, OSError)):
            await penstock.connect(server.url, tls=context, connect_timeout=WAIT_S)
        assert await closed_for(server) is CloseReason.TLS_HANDSHAKE_FAILURE
        async with penstock.connect(server.url, tls=certificates.client_context(certificate=True)) as client:
            await client.flush()


async def test_a_client_that_begins_no_handshake_in_time_gets_no_word_in_clear(
    certificates: Certificates,
) -> None:
    async with server_with(certificates.options(timeout_ns=50_000_000)) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        assert (await reader.readline()).startswith(b"INFO {")
        assert await read_all(reader) == b""
        assert await closed_for(server) is CloseReason.TLS_HANDSHAKE_FAILURE
        writer.close()


async def test_plain_protocol_is_no_handshake(certificates: Certificates) -> None:
    async with server_with(certificates.options()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"CONNECT {}\r\nPING\r\n")
        await reader.readline()
        assert b"PONG" not in await read_all(reader)
        assert await closed_for(server) is CloseReason.TLS_HANDSHAKE_FAILURE
        writer.close()


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_allow_non_tls_lets_the_client_choose(certificates: Certificates, new_loop: Any) -> None:
    async def talk() -> None:
        async with server_with(certificates.options(), allow_non_tls=True) as server:
            assert server.url.startswith("nats://")
            tls_url = server.url.replace("nats:", "tls:")
            async with (
                penstock.connect(server.url) as plain,
                penstock.connect(tls_url, tls=certificates.client_context()) as secure,
            ):
                subscription = await plain.subscribe("a")
                await plain.flush()
                payload = b"x" * 900_000
                await secure.publish("a", payload)
                async with asyncio.timeout(WAIT_S):
                    assert (await subscription.next()).data == payload
                versions = {session.connection.tls()[0] for session in server.sessions.values()}
                assert versions == {"", "1.3"}

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


async def test_a_plain_client_may_talk_before_info_comes(certificates: Certificates) -> None:
    options = certificates.options(handshake_first=True, handshake_first_wait_ns=60_000_000_000)
    async with server_with(options, allow_non_tls=True) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"CONNECT {}\r\nPING\r\n")
        async with asyncio.timeout(WAIT_S):
            assert (await reader.readline()).startswith(b"INFO {")
            assert await reader.readline() == b"+OK\r\n"
            assert await reader.readline() == b"PONG\r\n"
        writer.close()


async def test_auto_serves_clients_of_both_orders(certificates: Certificates) -> None:
    options = certificates.options(handshake_first=True, handshake_first_wait_ns=20_000_000)
    async with server_with(options) as server:
        for first in (True, False):
            async with penstock.connect(
                server.url, tls=certificates.client_context(), tls_handshake_first=first
            ) as client:
                await client.flush()


async def test_tls_split_at_every_byte_of_the_handshake(certificates: Certificates) -> None:
    """A client whose every byte is a read of its own."""
    async with server_with(certificates.options()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        await reader.readline()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

        async def send() -> None:
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)

        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await send()
                    incoming.write(await reader.read(65536))
            client.write(b"CONNECT {}\r\nPING\r\n")
            await send()
            got = b""
            while b"PONG" not in got:
                try:
                    got += client.read(65536)
                except ssl.SSLWantReadError:
                    incoming.write(await reader.read(65536))
        assert got == b"+OK\r\nPONG\r\n"
        writer.close()


async def test_a_certificate_that_is_not_there_is_a_configuration_error(certificates: Certificates) -> None:
    server = server_with(TlsOptions(cert_file="/nowhere.pem", key_file=certificates.key))
    with pytest.raises(ConfigError, match=r"/nowhere\.pem"):
        await server.start()


async def test_the_chosen_cipher_suite_and_version_are_used(certificates: Certificates) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    async with server_with(certificates.options(cipher_suites=(suite,))) as server:
        context = certificates.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with penstock.connect(server.url, tls=context) as client:
            await client.flush()
            assert next(iter(server.sessions.values())).connection.tls() == ("1.2", suite)


async def test_an_unknown_cipher_suite_is_refused(certificates: Certificates) -> None:
    server = server_with(certificates.options(cipher_suites=("TLS_NOTHING",)))
    with pytest.raises(ConfigError, match="TLS_NOTHING"):
        await server.start()
