"""Buckets that our client shares with nats-py and the `nats` command line, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.js.errors
import pytest
from nats.js import JetStreamContext

import penstock.client
from penstock.client import JetStream
from penstock.errors import BucketExistsError, KeyDeletedError
from tests.support.nats_cli import nats_cli, run_nats
from tests.support.nats_servers import KINDS, running_server

pytestmark = [
    pytest.mark.feature("key-value.client"),
    pytest.mark.feature("connectivity.third-party-clients"),
]


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        yield server.url


@pytest.fixture
async def ours(url: str) -> AsyncIterator[JetStream]:
    async with penstock.client.connect(url) as client:
        js = client.jetstream(timeout=10)
        yield js
        for name in await js.key_value_names():
            await js.delete_key_value(name)


@pytest.fixture
async def theirs(url: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(url, connect_timeout=5)
    yield client.jetstream()
    await client.close()


async def test_nats_py_reads_what_we_write(ours: JetStream, theirs: JetStreamContext) -> None:
    kv = await ours.create_key_value("SHARED", history=5, limit_marker_ttl=60)
    other = await theirs.key_value("SHARED")
    first = await kv.put("a", b"1")
    second = await kv.create("b", b"2", ttl=100)
    entry = await other.get("a")
    assert (entry.value, entry.revision) == (b"1", first)
    assert (await other.get("b")).revision == second
    await kv.delete("a")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await other.get("a")
    assert [(one.value, one.operation) for one in await other.history("a")] == [(b"1", None), (b"", "DEL")]
    await other.create("a", b"again")
    await kv.purge("b")
    assert await other.keys() == ["a"]
    status = await other.status()
    assert (status.history, status.marker_ttl) == (5, 60)


async def test_we_read_what_nats_py_writes(ours: JetStream, theirs: JetStreamContext) -> None:
    other = await theirs.create_key_value(bucket="SHARED", history=5, ttl=3600)
    kv = await ours.key_value("SHARED")
    assert (kv.config.history, kv.config.ttl, kv.config.max_bytes) == (5, 3600, -1)
    revision = await other.put("a", b"1")
    entry = await kv.get("a")
    assert (entry.value, entry.revision) == (b"1", revision)
    assert [one.value for one in (await kv.get_many(["a"])).values()] == [b"1"]
    async with kv.watch() as watch:
        assert [one.value for one in await watch.initial()] == [b"1"]
        await other.delete("a")
        update = await watch.__anext__()
        assert update is not None
        assert update.operation.value == "DEL"
    with pytest.raises(KeyDeletedError):
        await kv.get("a")
    await other.purge("a")
    assert [one.operation.value for one in await kv.history("a")] == ["PURGE"]
    with pytest.raises(BucketExistsError, match="history is 5, not 1"):
        await ours.create_key_value("SHARED")
    assert (await ours.update_key_value("SHARED", history=6)).config.history == 6


async def test_nats_py_watches_what_we_write(ours: JetStream, theirs: JetStreamContext) -> None:
    kv = await ours.create_key_value("SHARED", storage="memory")
    await kv.put("a", b"1")
    watcher = await (await theirs.key_value("SHARED")).watchall()
    assert (await watcher.updates(5)).value == b"1"
    assert await watcher.updates(5) is None
    await kv.purge("a")
    assert (await watcher.updates(5)).operation == "PURGE"
    await watcher.stop()


async def test_the_command_line_and_we_share_buckets(url: str, ours: JetStream, tmp_path: Path) -> None:
    await asyncio.to_thread(nats_cli)

    def run(*arguments: str) -> str:
        return run_nats(url, "kv", *arguments)

    await asyncio.to_thread(run, "add", "CLI", "--history=5", "--marker-ttl=60s", "--description=made there")
    kv = await ours.create_key_value("CLI", history=5, limit_marker_ttl=60, description="made there")
    await asyncio.to_thread(run, "put", "CLI", "theirs", "from the command line")
    assert (await kv.get("theirs")).value == b"from the command line"
    await kv.put("ours", b"from us")
    assert (await asyncio.to_thread(run, "get", "CLI", "ours", "--raw")).strip() == "from us"
    await asyncio.to_thread(run, "del", "CLI", "theirs", "--force")
    with pytest.raises(KeyDeletedError):
        await kv.get("theirs")
    await kv.purge("ours")
    history = await asyncio.to_thread(run, "history", "CLI", "ours")
    assert "PURGE" in history
    await asyncio.to_thread(run, "create", "CLI", "ours", "theirs now")
    assert [key async for key in kv.keys(">")] == ["ours"]
    listed = await asyncio.to_thread(run, "ls", "--names")
    assert "CLI" in listed.split()
