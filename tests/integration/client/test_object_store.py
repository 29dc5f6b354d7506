"""Object stores through our client, on both servers, with single publishes and with fast ingest."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.client
from penstock.client import Client, JetStream, ObjectInfo, ObjectLink, ObjectStore, ObjectWatcher
from penstock.client.objectstore.object_info import CHUNK_BYTES, digest_of
from penstock.errors import (
    BucketExistsError,
    BucketFullError,
    BucketNotFoundError,
    InvalidBucketError,
    MisuseError,
    ObjectChangedError,
    ObjectCorruptError,
    ObjectError,
    ObjectExistsError,
    ObjectLinkError,
    ObjectNotFoundError,
    ObjectStoreSealedError,
)
from tests.support.cutting_proxy import cutting_proxy
from tests.support.examples import examples
from tests.support.nats_servers import AnyServer, until

pytestmark = pytest.mark.feature("object-store.client")

FAST = {"reconnect_wait": 0.01, "reconnect_wait_max": 0.02, "on_error": lambda *_: None}
DATA = random.Random(1).randbytes(1_000_003)


@pytest.fixture
async def js(js: JetStream) -> AsyncIterator[JetStream]:
    yield js
    for name in await js.object_store_names():
        await js.delete_object_store(name)


@pytest.fixture(params=[False, True], ids=["single", "batched"])
async def store(request: pytest.FixtureRequest, js: JetStream) -> ObjectStore:
    return await js.create_object_store("S", storage="memory", allow_batched=request.param)


@pytest.fixture
async def plain(js: JetStream) -> ObjectStore:
    return await js.create_object_store("P", storage="memory")


async def chunk_counts(store: ObjectStore) -> dict[str, int]:
    """Stored chunks by the id of their object."""
    info = await store.stream.info(subjects_filter=store.chunk_subject(">"))
    return {subject.rpartition(".")[2]: count for subject, count in info.state.subjects.items()}


# --- stores ------------------------------------------------------------------------------------


async def test_a_store_is_a_stream_as_the_specification_has_it(js: JetStream) -> None:
    store = await js.create_object_store(
        "FILES", description="all of them", ttl=3600, max_bytes=10_000_000, storage="memory",
        compression=False, allow_batched=True, metadata={"owner": "joe"},
    )  # fmt: skip
    stream = store.stream.config
    assert (stream.name, stream.subjects) == ("OBJ_FILES", ["$O.FILES.C.>", "$O.FILES.M.>"])
    assert (stream.description, stream.max_age, stream.max_bytes) == ("all of them", 3600, 10_000_000)
    assert stream.allow_direct
    assert stream.allow_rollup_hdrs
    assert stream.allow_batched
    assert (stream.discard.value, stream.metadata["owner"]) == ("new", "joe")
    status = await store.status()
    assert (status.config, status.bucket, status.sealed, status.size) == (store.config, "FILES", False, 0)


async def test_stores_are_updated_opened_listed_and_deleted(js: JetStream) -> None:
    store = await js.create_object_store("A", description="one", compression=True)
    await store.put("x", b"1")
    await js.create_object_store("A", description="one", compression=True)
    with pytest.raises(BucketExistsError, match="description is 'one', not 'two'"):
        await js.create_object_store("A", description="two", compression=True)
    assert (await js.update_object_store("A", description="two")).config.compression
    assert (await js.create_or_update_object_store("A", ttl=100)).config.description == "two"
    await js.create_or_update_object_store("B")
    assert sorted(await js.object_store_names()) == ["A", "B"]
    assert {status.bucket: status.size > 0 async for status in js.object_store_statuses()} == {
        "A": True,
        "B": False,
    }
    opened = await js.object_store("A")
    assert await opened.get("x") == b"1"
    await js.delete_object_store("A")
    calls: list[Any] = [js.object_store("A"), js.delete_object_store("A"), js.update_object_store("A", ttl=1)]
    calls += [opened.get("x"), opened.put("x", b"1"), opened.info("x"), opened.delete("x"), opened.status()]
    calls += [opened.watch().initial(), opened.seal()]
    for call in calls:
        with pytest.raises(BucketNotFoundError, match="no bucket 'A'"):
            await call


async def test_invalid_names_and_settings_are_refused(js: JetStream, plain: ObjectStore) -> None:
    with pytest.raises(InvalidBucketError):
        await js.create_object_store("a.b")
    with pytest.raises(MisuseError, match="did you mean storage"):
        await js.create_object_store("A", storge="file")  # type: ignore[call-arg]
    with pytest.raises(MisuseError, match="ttl is negative"):
        await js.create_object_store("A", ttl=-1)
    for call in (plain.put("", b""), plain.get(""), plain.info(""), plain.delete("")):
        with pytest.raises(MisuseError, match="can not name an object"):
            await call
    for size in (0, -1, 2 * 1024 * 1024):
        with pytest.raises(MisuseError, match=r"chunk_size.*max_payload"):
            await plain.put("x", b"", chunk_size=size)
    with pytest.raises(TypeError, match="not <class 'int'>"):
        await plain.put("x", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pieces of bytes, not str"):
        await plain.put("x", ["text"])  # type: ignore[arg-type]
    assert await chunk_counts(plain) == {}


# --- put and get -------------------------------------------------------------------------------


@pytest.mark.feature("object-store.put-get", "object-store.digest")
async def test_an_object_is_stored_in_chunks_with_its_size_and_digest(store: ObjectStore) -> None:
    info = await store.put("a/b c.ä", DATA, description="random", headers={"Kind": "x"}, metadata={"m": "n"})
    assert (info.name, info.bucket, info.size, info.chunks) == ("a/b c.ä", "S", len(DATA), 8)
    assert info.digest == digest_of(hashlib.sha256(DATA))
    assert (info.description, info.headers, info.metadata) == ("random", {"Kind": ["x"]}, {"m": "n"})
    assert await chunk_counts(store) == {info.nuid: 8}
    assert await store.get("a/b c.ä") == DATA
    read = await store.info("a/b c.ä")
    assert read.modified_ns > 0
    assert read.modified.tzinfo is not None
    assert (read.revision, read.max_chunk_size) == (info.revision, CHUNK_BYTES)


@pytest.mark.feature("object-store.put-get")
async def test_objects_are_put_from_all_that_has_bytes(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(DATA), 77_777):
            yield DATA[start : start + 77_777]

    class Slow(io.RawIOBase):
        """A raw file that returns less than asked for."""

        at = 0

        def read(self, size: int = -1) -> bytes:
            piece = DATA[self.at : self.at + min(size, 300_001)]
            self.at += len(piece)
            return piece

    sources: list[Any] = [
        bytearray(DATA),
        memoryview(DATA),
        path,
        io.BytesIO(DATA),
        Slow(),
        pieces(),
        [DATA[:9], b"", DATA[9:]],
    ]
    for source in sources:
        assert (await store.put("x", source, chunk_size=100_000)).chunks == 11
        assert await store.get("x") == DATA
    assert (await store.put("x", "täxt")).size == 5
    assert await store.get("x") == "täxt".encode()
    with path.open("rb") as file:
        await store.put("x", file)
    assert await store.get("x") == DATA
    assert len(await chunk_counts(store)) == 1


@pytest.mark.feature("object-store.put-get")
async def test_an_empty_object_has_no_chunks(store: ObjectStore) -> None:
    info = await store.put("empty", b"")
    assert (info.size, info.chunks, info.digest) == (0, 0, digest_of(hashlib.sha256()))
    assert await store.get("empty") == b""
    assert await store.get("empty", length=5) == b""


@pytest.mark.feature("object-store.put-get")
async def test_an_object_is_read_as_a_stream_and_into_files(store: ObjectStore, tmp_path: Path) -> None:
    await store.put("x", DATA)
    async with store.open("x") as reader:
        assert reader.info.size == len(DATA)
        assert b"".join([chunk async for chunk in reader]) == DATA
    target = tmp_path / "target"
    info = await store.get_to_file("x", target)
    assert (info.size, target.read_bytes()) == (len(DATA), DATA)
    file = io.BytesIO()
    await store.get_to_file("x", file, offset=10, length=100)
    assert file.getvalue() == DATA[10:110]
    async with store.open("x") as reader:
        async for chunk in reader:
            assert DATA.startswith(chunk)
            break
    assert await store.stream.consumer_names() == []
    with pytest.raises(MisuseError, match="inside of"):
        store.open("x").__aiter__()
    with pytest.raises(MisuseError, match="inside of"):
        store.open("x").info  # noqa: B018


@pytest.mark.feature("object-store.put-get")
async def test_progress_is_reported_in_bytes(store: ObjectStore) -> None:
    sent: list[tuple[int, int | None]] = []
    await store.put("x", DATA, chunk_size=400_000, progress=lambda *done: sent.append(done))
    total = len(DATA)
    assert sent == [(400_000, total), (800_000, total), (total, total)]
    await store.put("x", [DATA], chunk_size=400_000, progress=lambda *done: sent.append(done))
    assert sent[3:] == [(400_000, None), (800_000, None), (total, None)]
    got: list[tuple[int, int | None]] = []
    await store.get("x", progress=lambda *done: got.append(done))
    assert got == sent[:3]
    got.clear()
    await store.get("x", offset=799_999, length=2, progress=lambda *done: got.append(done))
    assert got == [(1, 2), (2, 2)]


@pytest.mark.feature("object-store.put-get")
def test_any_range_of_an_object_is_that_part_of_its_content(url: str) -> None:
    """Of chunks of different sizes, as clients store them that read from sockets."""
    data = DATA[:10_000]
    with asyncio.Runner() as runner:
        client, store = runner.run(store_in_uneven_chunks(url, data))

        @settings(max_examples=examples(100))
        @given(st.integers(0, len(data)), st.one_of(st.none(), st.integers(0, len(data) + 1000)))
        def check(offset: int, length: int | None) -> None:
            end = len(data) if length is None else offset + length
            assert runner.run(store.get("x", offset=offset, length=length)) == data[offset:end]

        check()
        with pytest.raises(MisuseError, match="has 10000 bytes"):
            runner.run(store.get("x", offset=10_001))
        for offset, length in ((-1, 1), (1, -1)):
            with pytest.raises(MisuseError, match="negative"):
                runner.run(store.get("x", offset=offset, length=length))
        runner.run(store.js.delete_object_store("R"))
        runner.run(client.close())


async def store_in_uneven_chunks(url: str, data: bytes) -> tuple[Client, ObjectStore]:
    client = await penstock.client.connect(url)
    js = client.jetstream(timeout=10)
    store = await js.create_object_store("R", storage="memory")
    info = await store.put("x", data, chunk_size=4000)
    await store.stream.purge(store.chunk_subject(info.nuid))
    start = 0
    for size in (1, 999, 1000, 500, 3500, 1, 3999):
        await js.publish(store.chunk_subject(info.nuid), data[start : start + size])
        start += size
    assert start == len(data)
    return client, store


@pytest.mark.feature("object-store.digest")
async def test_a_changed_or_missing_chunk_is_an_error(
    store: ObjectStore, js: JetStream, tmp_path: Path
) -> None:
    info = await store.put("x", DATA)
    last = await store.stream.get_last_message(store.chunk_subject(info.nuid))
    await store.stream.delete_message(last.seq)
    with pytest.raises(ObjectCorruptError, match=r"'x' of store 'S'.*chunks of its 8 are missing"):
        await store.get("x")
    changed = bytes([last.data[0] ^ 1]) + last.data[1:]
    await js.publish(store.chunk_subject(info.nuid), changed)
    with pytest.raises(ObjectCorruptError, match="does not have the digest") as raised:
        await store.get_to_file("x", tmp_path / "x")
    assert (raised.value.bucket, raised.value.name) == ("S", "x")
    assert os.listdir(tmp_path) == []
    await store.put("x", DATA)
    assert await store.get("x") == DATA


async def test_chunks_that_a_replica_lacks_are_waited_for(
    store: ObjectStore, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer has delivered all that its replica has; the leader has more."""
    info = await store.put("x", DATA)
    subject = store.chunk_subject(info.nuid)
    last = await store.stream.get_last_message(subject)
    await store.stream.delete_message(last.seq)
    ask = type(store.stream).info

    async def info_of_leader(stream: Any, **options: Any) -> Any:
        found = await ask(stream, **options)
        found.state.subjects = {subject: info.chunks}
        await js.publish(subject, last.data)  # now the replica has it, too
        return found

    monkeypatch.setattr(type(store.stream), "info", info_of_leader)
    assert await store.get("x") == DATA


# --- replacing, deleting, links ----------------------------------------------------------------


@pytest.mark.feature("object-store.operations")
async def test_a_replaced_object_leaves_no_chunks(store: ObjectStore) -> None:
    await store.put("x", DATA)
    second = await store.put("x", b"small")
    assert await chunk_counts(store) == {second.nuid: 1}
    assert await store.get("x") == b"small"
    assert (await store.stream.info()).state.messages == 2


@pytest.mark.feature("object-store.operations")
async def test_of_many_writers_of_a_name_one_object_remains_whole(url: str, store: ObjectStore) -> None:
    contents = [random.Random(n).randbytes(300_000 + n) for n in range(8)]

    async def write(content: bytes) -> ObjectInfo:
        async with penstock.client.connect(url) as client:
            mine = await client.jetstream(timeout=10).object_store("S")
            return await mine.put("x", content, chunk_size=50_000)

    infos = await asyncio.gather(*(write(content) for content in contents))
    last = max(infos, key=lambda info: info.revision)
    assert await chunk_counts(store) == {last.nuid: last.chunks}
    assert await store.get("x") == contents[infos.index(last)]


@pytest.mark.feature("object-store.operations")
async def test_a_deleted_object_is_gone_with_its_chunks(store: ObjectStore) -> None:
    info = await store.put("x", DATA)
    await store.delete("x")
    assert await chunk_counts(store) == {}
    for call in (store.get("x"), store.info("x"), store.delete("x"), store.update("x", description="y")):
        with pytest.raises(ObjectNotFoundError, match="object 'x' of store 'S' was deleted") as raised:
            await call
        assert (raised.value.name, raised.value.is_deleted) == ("x", True)
    marker = await store.info("x", show_deleted=True)
    assert (marker.deleted, marker.size, marker.nuid, marker.digest) == (True, 0, info.nuid, "")
    with pytest.raises(ObjectNotFoundError, match="does not exist"):
        await store.get("never")
    await store.put("x", b"again")
    assert await store.get("x") == b"again"


@pytest.mark.feature("object-store.operations")
async def test_what_is_recorded_is_updated_and_objects_renamed(plain: ObjectStore) -> None:
    await plain.put("x", b"1", description="one", headers={"A": "b"})
    updated = await plain.update("x", description="two", metadata={"k": "v"})
    assert (updated.description, updated.headers, updated.metadata) == ("two", {"A": ["b"]}, {"k": "v"})
    assert (await plain.info("x")).description == "two"
    await plain.put("y", b"2")
    with pytest.raises(ObjectExistsError, match="store 'P' has an object 'y' already"):
        await plain.rename("x", "y")
    await plain.delete("y")
    renamed = await plain.rename("x", "y")
    assert (renamed.name, renamed.description) == ("y", "two")
    assert await plain.get("y") == b"1"
    with pytest.raises(ObjectNotFoundError):
        await plain.info("x")
    assert sorted([info.name async for info in plain.list(show_deleted=True)]) == ["y"]
    assert (await plain.rename("y", "y")).name == "y"


@pytest.mark.feature("object-store.operations")
async def test_a_rename_and_a_put_of_the_old_name_do_not_share_chunks(plain: ObjectStore) -> None:
    await plain.put("x", b"old")
    replace = plain._replace

    async def put_between(name: str, make: Any) -> Any:
        if name == "x":
            plain._replace = replace  # type: ignore[method-assign]
            await plain.put("x", b"new")
        return await replace(name, make)

    plain._replace = put_between  # type: ignore[method-assign]
    with pytest.raises(ObjectChangedError, match="object 'x' of store 'P' was replaced"):
        await plain.rename("x", "y")
    assert [info.name async for info in plain.list()] == ["x"]
    assert await plain.get("x") == b"new"
    await plain.rename("x", "y")
    await plain.put("x", b"another")
    assert (await plain.get("y"), await plain.get("x")) == (b"new", b"another")


@pytest.mark.feature("object-store.operations")
async def test_links_lead_to_objects_and_stores(js: JetStream, plain: ObjectStore) -> None:
    other = await js.create_object_store("O", storage="memory")
    here = await plain.put("here", b"1")
    there = await other.put("there", b"2")
    link = await plain.add_link("to-here", here)
    assert link.link == ObjectLink("P", "here")
    await plain.add_link("to-there", there)
    assert await plain.get("to-here") == b"1"
    assert await plain.get("to-there") == b"2"
    async with plain.open("to-there") as reader:
        assert (reader.info.name, reader.info.bucket) == ("there", "O")
    await plain.add_bucket_link("all", other)
    assert (await plain.info("all")).link == ObjectLink("O")
    with pytest.raises(ObjectLinkError, match="leads to the whole store 'O'"):
        await plain.get("all")
    await plain.add_bucket_link("all", "P")
    with pytest.raises(ObjectLinkError, match="is a link itself"):
        await plain.add_link("again", link)
    with pytest.raises(ObjectExistsError):
        await plain.add_link("here", there)
    await other.delete("there")
    with pytest.raises(ObjectLinkError, match="leads to object 'there' of store 'O', which does not exist"):
        await plain.get("to-there")
    with pytest.raises(ObjectLinkError, match="was deleted"):
        await plain.add_link("x", await other.info("there", show_deleted=True))
    await plain.delete("to-here")
    assert await plain.get("here") == b"1"
    replaced = await plain.put("to-there", b"an object now")
    assert (await plain.info("to-there")).nuid == replaced.nuid


@pytest.mark.feature("object-store.operations")
async def test_objects_are_listed_and_watched(plain: ObjectStore) -> None:
    await plain.put("a", b"1")
    await plain.put("gone", b"1")
    await plain.delete("gone")
    assert [info.name async for info in plain.list()] == ["a"]
    assert [(info.name, info.deleted) async for info in plain.list(show_deleted=True)] == [
        ("a", False),
        ("gone", True),
    ]
    async with plain.watch() as watch:
        assert [info.name for info in await watch.initial()] == ["a", "gone"]
        await plain.put("b", b"2")
        await plain.delete("a")
        assert [await changed(watch), await changed(watch)] == [("b", False), ("a", True)]
    async with plain.watch(updates_only=True, ignore_deletes=True) as watch:
        await plain.delete("b")
        await plain.put("c", b"3")
        assert await changed(watch) == ("c", False)
    assert await plain.stream.consumer_names() == []


async def changed(watch: ObjectWatcher) -> tuple[str, bool]:
    info = await asyncio.wait_for(watch.__anext__(), 20)
    assert info is not None
    return info.name, info.deleted


@pytest.mark.feature("object-store.operations")
async def test_a_sealed_store_takes_no_changes(js: JetStream, plain: ObjectStore) -> None:
    await plain.put("x", b"1")
    await plain.seal()
    assert (await plain.status()).sealed
    for call in (plain.put("y", b"1"), plain.delete("x"), plain.update("x", description="y")):
        with pytest.raises(ObjectStoreSealedError, match="store 'P' is sealed"):
            await call
    assert await plain.get("x") == b"1"


@pytest.mark.feature("object-store.operations")
async def test_a_message_that_describes_no_object_is_named(js: JetStream, plain: ObjectStore) -> None:
    await js.publish("$O.P.M.eA==", b"{no json")
    with pytest.raises(ObjectError, match="store 'P': message 1 does not describe an object"):
        await plain.info("x")


# --- failures ------------------------------------------------------------------------------------


async def test_a_put_that_fails_or_is_cancelled_leaves_no_chunks(js: JetStream, store: ObjectStore) -> None:
    kept = await store.put("x", b"kept")

    async def broken() -> AsyncIterator[bytes]:
        yield DATA
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.put("x", broken(), chunk_size=10_000)
    assert await chunk_counts(store) == {kept.nuid: 1}

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield DATA
            await asyncio.sleep(0)

    putting = asyncio.create_task(store.put("x", endless(), chunk_size=10_000))

    async def has_chunks() -> bool:
        return sum((await chunk_counts(store)).values()) > 10

    await until(has_chunks)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await chunk_counts(store) == {kept.nuid: 1}
    assert await store.get("x") == b"kept"


async def test_a_full_store_keeps_the_object_and_no_chunks_of_the_new_one(js: JetStream) -> None:
    for batched in (False, True):
        store = await js.create_object_store("F", storage="memory", max_bytes=500_000, allow_batched=batched)
        await store.put("x", b"kept")
        with pytest.raises(BucketFullError, match="object 'x': store 'F' is full"):
            await store.put("x", DATA, chunk_size=50_000)
        assert len(await chunk_counts(store)) == 1
        assert await store.get("x") == b"kept"
        await js.delete_object_store("F")


async def test_an_object_that_is_replaced_while_it_is_read_is_named(
    js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.objectstore.object_reader.window_of", lambda _: 2)
    store = await js.create_object_store("C", storage="memory")
    store.js.timeout = 0.3
    await store.put("x", DATA, chunk_size=10_000)
    with pytest.raises(ObjectChangedError, match="object 'x' of store 'C' was replaced"):  # noqa: PT012
        async with store.open("x") as reader:
            async for _ in reader:
                if reader.info.nuid == (await store.info("x")).nuid:
                    await store.put("x", b"new")
    assert await store.get("x") == b"new"


@pytest.fixture
async def cut_store(server: AnyServer, store: ObjectStore) -> AsyncIterator[tuple[Any, Client, ObjectStore]]:
    async with cutting_proxy(server.port) as proxy, penstock.client.connect(proxy.url, **FAST) as client:
        yield proxy, client, await client.jetstream(timeout=5).object_store("S")


async def test_a_put_goes_on_after_a_cut_at_every_step(
    cut_store: tuple[Any, Client, ObjectStore], store: ObjectStore
) -> None:
    proxy, client, mine = cut_store
    for step in range(1, 200):
        before = proxy.cuts
        await client.flush(10)
        proxy.cut_at(step)
        try:
            info = await mine.put("x", DATA, chunk_size=100_000)
        except penstock.errors.DisconnectedError:
            info = await mine.put("x", DATA, chunk_size=100_000)  # cut in the first read, of the old info
        proxy.cut_at(0)
        assert info.chunks == 11
        assert await store.get("x") == DATA
        assert (await chunk_counts(store))[info.nuid] == 11
        if proxy.cuts == before:
            break
    else:
        pytest.fail("a put took 200 reads")
    assert step > 4


async def test_a_get_goes_on_after_a_cut_at_every_step(
    cut_store: tuple[Any, Client, ObjectStore], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.01)
    proxy, client, mine = cut_store
    await store.put("x", DATA, chunk_size=100_000)
    for step in range(1, 200):
        before = proxy.cuts
        async with mine.open("x") as reader:
            await client.flush(10)
            proxy.cut_at(step)
            assert await reader.read() == DATA
            proxy.cut_at(0)
        if proxy.cuts == before:
            break
    else:
        pytest.fail("a get took 200 reads")
    assert step > 4


@pytest.mark.feature("object-store.operations")
async def test_a_watch_goes_on_after_a_cut_at_every_step(
    server: AnyServer, plain: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.01)
    await plain.put("a", b"1")
    await plain.put("gone", b"1")
    await plain.delete("gone")
    async with cutting_proxy(server.port) as proxy:
        for step in range(1, 40):
            async with penstock.client.connect(proxy.url, **FAST) as client:
                before = proxy.cuts
                watching = await client.jetstream(timeout=5).object_store("P")
                proxy.cut_at(step)
                seen: dict[str, str] = {}
                async with watching.watch() as watch, asyncio.timeout(30):
                    for info in await watch.initial():
                        seen[info.name] = "deleted" if info.deleted else info.nuid
                    last = await plain.put("new", b"%d" % step)
                    async for update in watch:
                        assert update is not None
                        seen[update.name] = update.nuid
                        if update.nuid == last.nuid:
                            break
                proxy.cut_at(0)
                assert seen == {"a": (await plain.info("a")).nuid, "gone": "deleted", "new": last.nuid}
                if proxy.cuts == before:
                    break
        else:
            pytest.fail("a watch took 40 reads")
    assert step > 4
