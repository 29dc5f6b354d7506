"""The server inside a program: in a running loop, in a thread of its own, as a pytest fixture."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
import penstock.testing
from penstock.errors import ConfigError, ServerError
from penstock.testing import EmbeddedServer
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("embedding.server", "embedding.pytest")


async def asked(server: penstock.Server, data: bytes) -> bytes:
    """What a raw client in the same loop gets for it."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    await reader.readuntil(b"\r\n")
    writer.write(b'CONNECT {"verbose":false}\r\n' + data + b"PING\r\n")
    answer = await reader.readuntil(b"PONG\r\n")
    writer.close()
    await writer.wait_closed()
    return answer.removesuffix(b"PONG\r\n")


async def test_it_runs_in_the_loop_that_starts_it() -> None:
    async with penstock.Server() as server:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert await asked(server, b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"


async def test_stopping_closes_connections_and_frees_the_port() -> None:
    server = penstock.Server()
    await server.start()
    port = server.port
    reader, writer = await asyncio.open_connection(server.host, port)
    await reader.readuntil(b"\r\n")
    await server.stop()
    await server.stop()  # nothing more happens
    assert await reader.read() == b""
    writer.close()
    async with penstock.Server(port=port) as second:
        assert second.port == port


async def test_two_servers_share_nothing() -> None:
    async with penstock.Server() as one, penstock.Server() as two:
        assert one.port != two.port
        assert one.server_id != two.server_id
        assert await asked(two, b"SUB a 1\r\n") == b""
        assert await asked(one, b"PUB a 0\r\n\r\n") == b""


async def test_a_port_in_use_is_a_server_error_that_says_so() -> None:
    async with penstock.Server() as server:
        with pytest.raises(ServerError, match=f"Error listening on port: 127.0.0.1:{server.port}"):
            await penstock.Server(port=server.port).start()


async def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    async with penstock.Server() as server:
        failing = penstock.Server(port=server.port, jetstream=True, store_dir=tmp_path)
        with pytest.raises(ServerError):
            await failing.start()
    async with penstock.Server(jetstream=True, store_dir=tmp_path):  # the store is free again
        pass


async def test_a_server_starts_once() -> None:
    async with penstock.Server() as server:
        with pytest.raises(ServerError, match="started before"):
            await server.start()


def test_a_bad_option_is_an_error_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="max_payload"):
        penstock.Server(max_payload=0)


def test_a_thread_of_its_own_serves_blocking_code() -> None:
    with penstock.testing.server() as server:
        assert any(thread.name == "penstock-server" for thread in threading.enumerate())
        with Wire(server.port) as wire:
            wire.connect()
            assert wire.ask(b"SUB a 1\r\nPUB a 0\r\n\r\n") == b"MSG a 1 0\r\n\r\n"
    assert not any(thread.name == "penstock-server" for thread in threading.enumerate())
    server.stop()  # nothing more happens


def test_what_goes_wrong_at_the_start_comes_out_of_the_with() -> None:
    with penstock.testing.server() as server, pytest.raises(ServerError, match="Error listening on port"):
        penstock.testing.server(port=server.port).start()


def test_without_a_directory_streams_live_as_long_as_the_server(tmp_path: Path) -> None:
    with penstock.testing.server(jetstream=True) as server:
        nats = RawNats(server.port)
        created = nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        assert created["config"]["storage"] == "file"
        assert nats.request("s", 1) == {"stream": "S", "seq": 1}
        nats.close()


def test_with_a_directory_streams_outlive_the_server(tmp_path: Path) -> None:
    with penstock.testing.server(jetstream=True, store_dir=tmp_path) as server:
        nats = RawNats(server.port)
        nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        nats.request("s", 1)
        nats.close()
    with penstock.testing.server(jetstream=True, store_dir=tmp_path) as server:
        nats = RawNats(server.port)
        assert nats.request("$JS.API.STREAM.INFO.S")["state"]["messages"] == 1
        nats.close()


def test_without_jetstream_its_api_has_no_responders() -> None:
    with penstock.testing.server() as server, Wire(server.port) as wire:
        wire.connect()
        assert "jetstream" not in wire.info
        assert b"NATS/1.0 503" in wire.ask(b"SUB r 1\r\nPUB $JS.API.INFO r 0\r\n\r\n")


def test_the_fixture_is_a_fresh_server_with_jetstream(nats_server: EmbeddedServer) -> None:
    nats = RawNats(nats_server.port)
    assert nats.request("$JS.API.INFO")["streams"] == 0
    assert nats_server.url == f"nats://127.0.0.1:{nats_server.port}"
    nats.close()


def test_the_factory_starts_many(nats_server_factory: Callable[..., EmbeddedServer]) -> None:
    servers = [nats_server_factory(server_name=name) for name in ("one", "two")]
    for server, name in zip(servers, ("one", "two"), strict=True):
        with Wire(server.port) as wire:
            assert wire.info["server_name"] == name


def test_the_plugin_imports_next_to_nothing() -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import penstock.testing.plugin\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new), any(name.startswith('penstock.server') for name in sys.modules))\n"
    )
    source = str(Path(penstock.__file__).parent.parent)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert ended.stdout.strip() == "['penstock'] False"


def test_a_name_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nope"):
        _ = penstock.nope


def test_it_works_on_the_loop_of_asyncio() -> None:
    async def main() -> None:
        async with penstock.Server(jetstream=True) as server:
            assert (
                await asked(server, b"SUB a 1\r\n" + b"PUB a 0\r\n\r\n" * 1000) == b"MSG a 1 0\r\n\r\n" * 1000
            )

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


async def test_a_server_whose_engine_can_not_write_acks_nothing_and_serves_the_rest(
    noted_faults: list[BaseException],
) -> None:
    server = penstock.Server(jetstream=True)
    await server.start()
    assert server.jetstream is not None

    def fail() -> None:
        raise OSError(28, "no space left on device")

    reader, writer = await asyncio.open_connection(server.host, server.port)
    await reader.readuntil(b"\r\n")
    body = b'{"name":"S","subjects":["s"]}'
    writer.write(b'CONNECT {"verbose":false}\r\nSUB r 1\r\nSUB core 2\r\n')
    writer.write(b"PUB $JS.API.STREAM.CREATE.S %d\r\n%s\r\nPUB s r 1\r\nx\r\n" % (len(body), body))
    assert b'"seq":1' in await reader.readuntil(b"}\r\n")
    server.jetstream.engines["$G"].tick.write = fail  # type: ignore[method-assign]
    writer.write(b"PUB s r 1\r\nx\r\nPUB core 1\r\ny\r\nPING\r\n")
    answers = await reader.readuntil(b"PONG\r\n")
    assert b"MSG core 2 1\r\ny\r\n" in answers
    writer.write(b"PING\r\n")
    answers += await reader.readuntil(b"PONG\r\n")
    assert b'"seq"' not in answers
    assert not server.failed
    assert {type(fault) for fault in noted_faults} == {OSError}
    noted_faults.clear()
    del server.jetstream.engines["$G"].tick.write
    writer.close()
    await server.stop()
