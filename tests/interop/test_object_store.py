"""Object stores that our client shares with nats-py and the `nats` command line, on both servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.js.errors
import pytest
from nats.js import JetStreamContext, api

import penstock.client
from penstock.client import JetStream, ObjectLink
from penstock.errors import ObjectNotFoundError
from tests.support.nats_cli import nats_cli, run_nats
from tests.support.nats_servers import KINDS, running_server

pytestmark = [
    pytest.mark.feature("object-store.client"),
    pytest.mark.feature("connectivity.third-party-clients"),
]

DATA = random.Random(2).randbytes(500_001)


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        yield server.url


@pytest.fixture
async def ours(url: str) -> AsyncIterator[JetStream]:
    async with penstock.client.connect(url) as client:
        js = client.jetstream(timeout=10)
        yield js
        for name in await js.object_store_names():
            await js.delete_object_store(name)


@pytest.fixture
async def theirs(url: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(url, connect_timeout=5)
    yield client.jetstream()
    await client.close()


async def test_nats_py_reads_what_we_put(ours: JetStream, theirs: JetStreamContext) -> None:
    store = await ours.create_object_store("SHARED", storage="memory")
    other = await theirs.object_store("SHARED")
    info = await store.put("a/b.bin", DATA, description="random", headers={"Kind": "x"})
    result = await other.get("a/b.bin")
    assert result.data == DATA
    assert (result.info.size, result.info.chunks, result.info.digest) == (info.size, info.chunks, info.digest)
    assert (result.info.description, result.info.headers) == ("random", {"Kind": ["x"]})
    await store.add_link("link", info)
    assert (await other.get("link")).data == DATA
    assert sorted(one.name for one in await other.list()) == ["a/b.bin", "link"]
    await store.delete("a/b.bin")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await other.get("a/b.bin")
    assert (await other.status()).sealed is False


async def test_we_read_what_nats_py_puts(ours: JetStream, theirs: JetStreamContext) -> None:
    other = await theirs.create_object_store("SHARED", config=api.ObjectStoreConfig(description="theirs"))
    store = await ours.object_store("SHARED")
    assert store.config.description == "theirs"
    meta = api.ObjectMeta(name="x", description="random", headers={"Kind": ["x"]})
    put = await other.put("x", DATA, meta=meta)
    assert await store.get("x") == DATA
    assert await store.get("x", offset=131_000, length=1000) == DATA[131_000:132_000]
    info = await store.info("x")
    assert (info.nuid, info.size, info.chunks, info.digest) == (put.nuid, put.size, put.chunks, put.digest)
    assert (info.description, info.headers) == ("random", {"Kind": ["x"]})
    await store.update("x", description="changed")
    assert (await other.get_info("x")).description == "changed"
    await store.put("x", b"ours")
    assert (await other.get("x")).data == b"ours"
    await other.delete("x")
    with pytest.raises(ObjectNotFoundError, match="was deleted"):
        await store.get("x")
    async with store.watch() as watch:
        assert [(one.name, one.deleted) for one in await watch.initial()] == [("x", True)]


async def test_the_command_line_and_we_share_objects(url: str, ours: JetStream, tmp_path: Path) -> None:
    await asyncio.to_thread(nats_cli)

    async def run(*arguments: str) -> str:
        return await asyncio.to_thread(run_nats, url, "object", *arguments)

    await run("add", "CLI", "--description=made there")
    store = await ours.create_object_store("CLI", description="made there")
    path = tmp_path / "data.bin"
    path.write_bytes(DATA)
    await run("put", "CLI", str(path), "--name=theirs", "--description=random", "--no-progress", "--force")
    assert await store.get("theirs") == DATA
    assert (await store.info("theirs")).description == "random"
    await store.put("ours", path)
    target = tmp_path / "target.bin"
    await run("get", "CLI", "ours", f"--output={target}", "--no-progress", "--force")
    assert target.read_bytes() == DATA
    listed = await run("ls", "CLI")
    assert "ours" in listed
    assert "theirs" in listed
    await run("del", "CLI", "ours", "--force")
    with pytest.raises(ObjectNotFoundError, match="was deleted"):
        await store.get("ours")
    await store.delete("theirs")
    assert [info.name async for info in store.list()] == []
    linked = await store.add_bucket_link("other", "OTHER")
    assert linked.link == ObjectLink("OTHER")
    await run("seal", "CLI", "--force")
    assert (await store.status()).sealed
