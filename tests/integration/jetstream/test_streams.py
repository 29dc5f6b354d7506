"""Streams through a real server and the official Python client: its stream manager, KV and object store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.js.errors
import pytest
from nats.js.api import KeyValueConfig, StorageType, StreamConfig

from penstock.testing.embedded import EmbeddedServer

pytestmark = pytest.mark.feature("connectivity.third-party-clients")


@pytest.fixture
async def nc(nats_server: EmbeddedServer) -> AsyncIterator[Any]:
    client = await nats.connect(nats_server.url, max_reconnect_attempts=0)
    yield client
    await client.close()


@pytest.fixture
def js(nc: Any) -> Any:
    return nc.jetstream()


async def test_a_stream_lives_and_dies(js: Any) -> None:
    info = await js.add_stream(name="ORDERS", subjects=["orders.>"], max_msgs=10)
    assert (info.config.name, info.config.max_msgs, info.state.messages) == ("ORDERS", 10, 0)
    for n in range(12):
        ack = await js.publish(f"orders.{n % 3}", b"%d" % n)
        assert (ack.stream, ack.seq) == ("ORDERS", n + 1)
    info = await js.stream_info("ORDERS", subjects_filter=">")
    assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (10, 3, 12)
    assert info.state.subjects == {"orders.0": 3, "orders.1": 3, "orders.2": 4}
    assert [s.config.name for s in await js.streams_info()] == ["ORDERS"]
    assert await js.find_stream_name_by_subject("orders.x") == "ORDERS"
    assert await js.purge_stream("ORDERS", subject="orders.1")
    assert (await js.stream_info("ORDERS")).state.messages == 7
    updated = await js.update_stream(StreamConfig(name="ORDERS", subjects=["orders.>"], description="d"))
    assert updated.config.description == "d"
    assert (await js.account_info()).streams == 1
    assert await js.delete_stream("ORDERS")
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.stream_info("ORDERS")


async def test_messages_are_read_and_removed_by_sequence(js: Any) -> None:
    await js.add_stream(name="S", subjects=["s.*"], allow_direct=True)
    await js.publish("s.a", b"one", headers={"X": "y"})
    await js.publish("s.b", b"two")
    for direct in (False, True):
        message = await js.get_msg("S", 1, direct=direct)
        assert (message.subject, message.data, message.seq) == ("s.a", b"one", 1)
        assert message.headers["X"] == "y"
        assert (await js.get_last_msg("S", "s.b", direct=direct)).data == b"two"
        assert (await js.get_msg("S", 1, subject="s.b", next=True, direct=direct)).seq == 2
    assert await js.delete_msg("S", 1)
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.get_msg("S", 1)
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.get_msg("S", 1, direct=True)


async def test_duplicates_and_expectations_over_the_wire(js: Any) -> None:
    await js.add_stream(name="S", subjects=["s"])
    first = await js.publish("s", b"1", headers={"Nats-Msg-Id": "a"})
    again = await js.publish("s", b"1", headers={"Nats-Msg-Id": "a"})
    assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, None, 1, True)
    with pytest.raises(nats.js.errors.APIError, match="wrong last sequence: 1") as caught:
        await js.publish("s", b"2", headers={"Nats-Expected-Last-Sequence": "7"})
    assert caught.value.err_code == 10071
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("nobody", b"x", timeout=2)


async def test_thousands_of_publishes_in_flight_are_acked_in_order(js: Any, nc: Any) -> None:
    await js.add_stream(name="S", subjects=["s.>"], storage=StorageType.MEMORY)
    futures = [await js.publish_async(f"s.{n % 7}", b"x" * 128, wait_stall=5) for n in range(3000)]
    assert [(await future).seq for future in futures] == list(range(1, 3001))


@pytest.mark.feature(
    "key-value.buckets",
    "key-value.operations",
    "key-value.create-update",
    "key-value.history",
    "key-value.keys",
    "key-value.watch",
)
async def test_a_key_value_bucket_keeps_watches_and_forgets(js: Any) -> None:
    kv = await js.create_key_value(config=KeyValueConfig(bucket="B", history=5))
    assert await kv.create("color", b"red") == 1
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await kv.create("color", b"blue")
    assert await kv.update("color", b"green", last=1) == 2
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await kv.update("color", b"blue", last=1)
    entry = await kv.get("color")
    assert (entry.value, entry.revision) == (b"green", 2)
    assert (await kv.get("color", revision=1)).value == b"red"
    await kv.put("size", b"9")
    assert sorted(await kv.keys()) == ["color", "size"]
    assert [e.value for e in await kv.history("color")] == [b"red", b"green"]

    watcher = await kv.watchall()
    seen = []
    while (entry := await watcher.updates(timeout=5)) is not None:
        seen.append((entry.key, entry.value))
    assert seen == [("color", b"green"), ("size", b"9")]
    await kv.delete("size")
    update = await watcher.updates(timeout=5)
    assert (update.key, update.operation) == ("size", "DEL")
    await watcher.stop()

    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await kv.get("size")
    await kv.purge("color")
    assert [e.operation for e in await kv.history("color")] == ["PURGE"]
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await kv.get("color")
    await kv.put("kept", b"1")
    await kv.purge_deletes(olderthan=-1)
    status = await kv.status()
    assert (status.bucket, status.history, status.values) == ("B", 5, 1)
    assert await js.delete_key_value("B")


@pytest.mark.feature("key-value.ttl")
async def test_keys_with_a_time_to_live_leave_a_marker(js: Any) -> None:
    kv = await js.create_key_value(config=KeyValueConfig(bucket="B", limit_marker_ttl=60))
    await kv.create("lock", b"mine", msg_ttl=1)
    watcher = await kv.watch("lock")
    assert (await watcher.updates(timeout=5)).value == b"mine"
    assert await watcher.updates(timeout=5) is None
    gone = await watcher.updates(timeout=10)
    assert (gone.key, gone.operation) == ("lock", "PURGE")
    await watcher.stop()
    assert await kv.put("lock", b"yours") > 1


@pytest.mark.feature("key-value.max-bytes")
async def test_a_bucket_with_a_size_limit_refuses_more(js: Any) -> None:
    kv = await js.create_key_value(config=KeyValueConfig(bucket="B", max_bytes=1000))
    await kv.put("a", b"x" * 500)
    await kv.put("a", b"y" * 500)  # replaces: it needs no more room
    with pytest.raises(nats.js.errors.APIError, match="maximum bytes exceeded"):
        await kv.put("b", b"z" * 500)


@pytest.mark.feature("object-store.put-get", "object-store.operations")
async def test_an_object_store_gives_back_what_it_was_given(js: Any) -> None:
    store = await js.create_object_store("O")
    blob = os.urandom(700_000)  # several chunks
    info = await store.put("blob", blob)
    assert (info.size, info.chunks) == (len(blob), 6)
    assert (await store.get("blob")).data == blob
    await store.put("blob", b"small")
    assert (await store.get("blob")).data == b"small"
    stream = await js.stream_info("OBJ_O")
    assert stream.state.messages == 2  # the old chunks were purged
    assert [entry.name for entry in await store.list()] == ["blob"]
    await store.delete("blob")
    with pytest.raises(nats.js.errors.ObjectNotFoundError):
        await store.get("blob")
    assert await js.delete_object_store("O")


async def test_requests_see_what_was_published_before_them(js: Any, nc: Any) -> None:
    await js.add_stream(name="S", subjects=["s"])
    for n in range(50):
        await nc.publish("s", b"x")
        assert (await js.stream_info("S")).state.messages == n + 1


async def test_messages_expire_without_traffic(js: Any) -> None:
    await js.add_stream(name="S", subjects=["s"], max_age=0.2)
    await js.publish("s", b"x")

    async def gone() -> None:
        while (await js.stream_info("S")).state.messages:
            await asyncio.sleep(0.02)

    await asyncio.wait_for(gone(), 10)
