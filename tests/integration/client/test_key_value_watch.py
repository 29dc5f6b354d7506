"""Watches of buckets: options, the end of the current entries, lost connections; on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import penstock.client
from penstock.client import JetStream, KeyValue, KeyValueEntry, KeyWatcher
from penstock.errors import BucketNotFoundError, JetStreamApiError, MisuseError
from tests.support.cutting_proxy import cutting_proxy
from tests.support.nats_servers import AnyServer, until

pytestmark = [pytest.mark.feature("key-value.client"), pytest.mark.feature("key-value.watch")]

FAST = {"reconnect_wait": 0.01, "reconnect_wait_max": 0.02}


@pytest.fixture
async def kv(js: JetStream) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value("W", storage="memory", history=5)
    await js.delete_key_value("W")


def text(entry: KeyValueEntry | None) -> str:
    """An entry in short, `key=value`, or `key:DEL`; "." for the end of the current entries."""
    if entry is None:
        return "."
    return f"{entry.key}:{entry.operation}" if entry.is_deleted else f"{entry.key}={entry.value.decode()}"


async def take(watch: KeyWatcher, count: int) -> list[str]:
    async with asyncio.timeout(20):
        return [text(await watch.__anext__()) for _ in range(count)]


async def fill(kv: KeyValue) -> None:
    await kv.put("a.x", b"1")
    await kv.put("a.x", b"2")
    await kv.put("b.x", b"3")
    await kv.put("gone", b"4")
    await kv.delete("gone")


async def test_a_watch_gives_the_current_entries_a_mark_and_what_follows(kv: KeyValue) -> None:
    await fill(kv)
    async with kv.watch() as watch:
        assert not watch.is_initial_done
        assert await take(watch, 4) == ["a.x=2", "b.x=3", "gone:DEL", "."]
        assert watch.is_initial_done
        await kv.put("new", b"5")
        await kv.purge("a.x")
        assert await take(watch, 2) == ["new=5", "a.x:PURGE"]
    assert [entry async for entry in watch] == []
    assert await kv.stream.consumer_names() == []


async def test_an_empty_bucket_has_its_mark_at_once(kv: KeyValue) -> None:
    async with kv.watch("a.>") as watch:
        assert await take(watch, 1) == ["."]
        await kv.put("b", b"not watched")
        await kv.put("a.b", b"1")
        assert await take(watch, 1) == ["a.b=1"]


async def test_initial_collects_the_current_entries_and_the_watch_goes_on(kv: KeyValue) -> None:
    await fill(kv)
    async with kv.watch("a.*", "gone") as watch:
        assert [text(entry) for entry in await watch.initial()] == ["a.x=2", "gone:DEL"]
        assert await watch.initial() == []
        await kv.put("a.y", b"6")
        assert await take(watch, 1) == ["a.y=6"]


async def test_a_watch_can_include_the_history_or_leave_out_deletes_and_values(kv: KeyValue) -> None:
    await fill(kv)
    async with kv.watch(include_history=True) as watch:
        assert await take(watch, 6) == ["a.x=1", "a.x=2", "b.x=3", "gone=4", "gone:DEL", "."]
    async with kv.watch(ignore_deletes=True) as watch:
        assert await take(watch, 3) == ["a.x=2", "b.x=3", "."]
        await kv.delete("b.x")
        await kv.put("c", b"")
        assert await take(watch, 1) == ["c="]
    async with kv.watch("a.x", "gone", meta_only=True) as watch:
        assert await take(watch, 3) == ["a.x=", "gone:DEL", "."]


async def test_a_watch_of_updates_sees_every_write_after_its_start_and_no_mark(kv: KeyValue) -> None:
    await fill(kv)
    async with kv.watch(updates_only=True) as watch:
        assert watch.is_initial_done
        await kv.put("a.x", b"7")
        assert await take(watch, 1) == ["a.x=7"]


async def test_a_watch_resumes_from_a_revision(kv: KeyValue) -> None:
    await fill(kv)
    async with kv.watch(resume_from_revision=3) as watch:
        assert await take(watch, 4) == ["b.x=3", "gone=4", "gone:DEL", "."]
    async with kv.watch(resume_from_revision=6) as watch:
        assert await take(watch, 1) == ["."]
        await kv.put("new", b"5")
        assert await take(watch, 1) == ["new=5"]


async def test_contradicting_options_are_refused(kv: KeyValue) -> None:
    for options in ({"include_history": True}, {"resume_from_revision": 1}):
        with pytest.raises(MisuseError, match="updates_only"):
            kv.watch(updates_only=True, **options)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="start at 1"):
        kv.watch(resume_from_revision=0)


async def test_a_watch_ends_with_its_bucket(js: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.01)
    kv = await js.create_key_value("GONE", storage="memory")
    async with kv.watch() as watch:
        await kv.put("a", b"1")
        # A message proves that the server knows the pull: the official one queues it, and does not answer it
        # when the consumer is deleted first.
        assert await take(watch, 2) == [".", "a=1"]
        await js.delete_key_value("GONE")
        with pytest.raises(BucketNotFoundError, match="GONE"):
            await take(watch, 1)
    with pytest.raises(BucketNotFoundError):
        await kv.watch().__aenter__()
    with pytest.raises(BucketNotFoundError):
        await kv.watch().__anext__()


async def test_a_refused_watch_raises_what_the_server_says(kv: KeyValue) -> None:
    with pytest.raises(JetStreamApiError, match="overlap"):
        await kv.watch("a.>", "a.b").__aenter__()


async def test_the_mark_comes_while_others_keep_writing(kv: KeyValue) -> None:
    await fill(kv)
    writing = True

    async def write() -> None:
        while writing:
            await kv.put("busy", b"1")

    writer = asyncio.create_task(write())
    try:
        async with kv.watch() as watch:
            found = await asyncio.wait_for(watch.initial(), 20)
    finally:
        writing = False
        await writer
    assert {"a.x", "b.x", "gone"} <= {entry.key for entry in found}


async def test_a_watch_goes_on_after_a_cut_at_every_step(
    server: AnyServer, kv: KeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time another read is cut: while the consumer is created, entries arrive, and updates follow."""
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.01)
    await fill(kv)
    expected = {"a.x": b"2", "b.x": b"3", "gone": b"", "new": b""}
    async with cutting_proxy(server.port) as proxy:
        for step in range(1, 40):
            async with penstock.client.connect(proxy.url, **FAST, on_error=lambda *_: None) as client:
                cut_before = proxy.cuts
                watching = await client.jetstream(timeout=5).key_value("W")
                proxy.cut_at(step)
                state: dict[str, bytes] = {}
                async with watching.watch() as watch, asyncio.timeout(30):
                    for entry in await watch.initial():
                        state[entry.key] = entry.value
                    last = await kv.put("new", b"%d" % step)
                    expected["new"] = b"%d" % step
                    async for update in watch:
                        assert update is not None
                        state[update.key] = update.value
                        if update.revision == last:
                            break
                proxy.cut_at(0)
                assert state == expected
                if proxy.cuts == cut_before:
                    break
        else:
            pytest.fail("a watch took 40 reads")
    assert step > 4


async def test_a_watch_of_updates_misses_none_that_was_written_while_disconnected(
    server: AnyServer, kv: KeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.01)
    await fill(kv)
    async with (
        cutting_proxy(server.port) as proxy,
        penstock.client.connect(proxy.url, **FAST, on_error=lambda *_: None) as client,
    ):
        watching = await client.jetstream(timeout=5).key_value("W")
        async with watching.watch(updates_only=True) as watch:
            proxy.cut()
            await until(lambda: not client.is_connected)
            await kv.put("a.x", b"missed?")
            assert await take(watch, 1) == ["a.x=missed?"]
