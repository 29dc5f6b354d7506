"""Key-value buckets through our client, on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.client import (
    JetStream,
    KeyOperation,
    KeyValue,
    KeyValueConfig,
    Placement,
    Republish,
    StorageType,
    StreamSource,
)
from penstock.errors import (
    BucketExistsError,
    BucketFullError,
    BucketNotFoundError,
    HistoryTooLargeError,
    InvalidBucketError,
    InvalidKeyError,
    KeyDeletedError,
    KeyExistsError,
    KeyNotFoundError,
    KeyTtlNotEnabledError,
    MisuseError,
    ValueTooLargeError,
    WrongRevisionError,
)
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("key-value.client")


@pytest.fixture
async def js(js: JetStream) -> AsyncIterator[JetStream]:
    yield js
    for name in await js.key_value_names():
        await js.delete_key_value(name)


@pytest.fixture
async def kv(js: JetStream) -> KeyValue:
    return await js.create_key_value("B", storage="memory", history=5)


# --- buckets -------------------------------------------------------------------------------------


@pytest.mark.feature("key-value.buckets")
async def test_a_bucket_is_a_stream_as_the_specification_has_it(js: JetStream) -> None:
    kv = await js.create_key_value(
        "CONFIG",
        description="settings",
        max_value_size=1000,
        history=7,
        ttl=timedelta(hours=1),
        max_bytes=100_000,
        storage="memory",
        republish=Republish(src=">", dest="copied.>"),
        compression=False,
        limit_marker_ttl=60,
        allow_atomic=True,
        metadata={"owner": "joe"},
    )
    stream = kv.stream.config
    assert (stream.name, stream.subjects) == ("KV_CONFIG", ["$KV.CONFIG.>"])
    assert (stream.description, stream.max_msg_size, stream.max_msgs_per_subject) == ("settings", 1000, 7)
    assert (stream.max_age, stream.duplicate_window, stream.max_bytes) == (3600, 120, 100_000)
    assert (stream.max_msgs, stream.max_consumers) == (-1, -1)
    assert (stream.storage, stream.discard.value) == (StorageType.MEMORY, "new")
    assert stream.allow_direct and stream.allow_rollup_hdrs and stream.deny_delete
    assert not stream.deny_purge
    assert (stream.allow_msg_ttl, stream.subject_delete_marker_ttl) == (True, 60)
    assert stream.allow_atomic
    assert stream.metadata["owner"] == "joe"
    assert kv.config == (await kv.status()).config
    assert kv.config.metadata == {"owner": "joe"}
    assert (await js.create_key_value("SHORT", ttl=30)).stream.config.duplicate_window == 30


@pytest.mark.feature("key-value.buckets")
async def test_a_bucket_can_be_compressed_and_placed(js: JetStream) -> None:
    kv = await js.create_key_value(
        KeyValueConfig(bucket="C", compression=True, placement=Placement(cluster=""))
    )
    assert (kv.config.compression, kv.stream.config.compression.value) == (True, "s2")


@pytest.mark.feature("key-value.buckets")
async def test_buckets_are_updated_opened_listed_and_deleted(js: JetStream) -> None:
    made = await js.create_key_value("A", description="one", history=3)
    await made.put("k", b"v")
    updated = await js.update_key_value("A", description="two")
    assert (updated.config.description, updated.config.history) == ("two", 3)
    assert (await js.create_or_update_key_value("A", history=4)).config.history == 4
    assert (await js.create_or_update_key_value("B-2")).bucket == "B-2"
    await js.create_stream("KVNOT", subjects=["kvnot"])
    try:
        assert sorted(await js.key_value_names()) == ["A", "B-2"]
        statuses = {status.bucket: status async for status in js.key_value_statuses()}
    finally:
        await js.delete_stream("KVNOT")
    assert sorted(statuses) == ["A", "B-2"]
    assert (statuses["A"].values, statuses["A"].history, statuses["A"].ttl) == (1, 4, 0)
    assert statuses["A"].bytes > 0
    opened = await js.key_value("A")
    assert (await opened.get("k")).value == b"v"
    await js.delete_key_value("A")
    with pytest.raises(BucketNotFoundError, match="no bucket 'A'") as raised:
        await js.key_value("A")
    assert raised.value.bucket == "A"
    for call in (js.delete_key_value("A"), js.update_key_value("A", history=2)):
        with pytest.raises(BucketNotFoundError):
            await call


@pytest.mark.feature("key-value.buckets")
async def test_creating_a_bucket_twice_succeeds_only_with_the_same_settings(js: JetStream) -> None:
    await js.create_key_value("A", history=3)
    await js.create_key_value("A", history=3)
    with pytest.raises(BucketExistsError, match=r"history is 3, not 4.*update_key_value") as raised:
        await js.create_key_value("A", history=4)
    assert raised.value.bucket == "A"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "ä", "a/b"])
async def test_an_invalid_bucket_name_is_refused_before_anything_is_sent(js: JetStream, name: str) -> None:
    for call in (js.create_key_value(name), js.key_value(name), js.delete_key_value(name)):
        with pytest.raises(InvalidBucketError):
            await call


async def test_invalid_settings_are_refused_with_what_was_meant(js: JetStream) -> None:
    settings: list[tuple[dict[str, Any], str]] = [
        ({"history": 65}, "1 to 64"),
        ({"history": 0}, "1 to 64"),
        ({"hystory": 3}, "did you mean history"),
        ({"direct": True}, "nats-py's direct"),
        ({"limit_marker_ttl": 0.5}, "at least 1 s"),
        ({"ttl": -1}, "negative"),
        ({"mirror": "A", "sources": ["B"]}, "not both"),
        ({"storage": "tape"}, "storage"),
    ]
    for given, text in settings:
        with pytest.raises(MisuseError, match=text):
            await js.create_key_value("A", **given)
    with pytest.raises(HistoryTooLargeError):
        await js.create_key_value("A", history=65)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.feature("key-value.operations")
async def test_a_value_is_put_and_read_with_its_revision_and_time(kv: KeyValue) -> None:
    first = await kv.put("db.url", b"one")
    second = await kv.put("db.url", "zwei")
    entry = await kv.get("db.url")
    assert (entry.bucket, entry.key, entry.value) == ("B", "db.url", b"zwei")
    assert (entry.revision, entry.operation, entry.is_deleted) == (second, KeyOperation.PUT, False)
    assert entry.created.tzinfo is not None
    assert entry.created_ns // 1000 == round(entry.created.timestamp() * 1_000_000)
    assert (await kv.get("db.url", first)).value == b"one"
    assert (await kv.get("db.url", direct=False)).value == b"zwei"
    assert (await kv.get("db.url", first, direct=False)).value == b"one"


@pytest.mark.feature("key-value.operations")
async def test_a_missing_key_is_another_error_than_a_deleted_one(kv: KeyValue) -> None:
    with pytest.raises(KeyNotFoundError, match="bucket 'B' has no key 'x'") as missing:
        await kv.get("x")
    assert not isinstance(missing.value, KeyDeletedError)
    assert (missing.value.bucket, missing.value.key) == ("B", "x")
    await kv.put("x", b"1")
    marker = await kv.delete("x")
    with pytest.raises(KeyDeletedError, match="was deleted") as deleted:
        await kv.get("x")
    assert deleted.value.revision == marker
    await kv.purge("x")
    with pytest.raises(KeyDeletedError, match="was purged"):
        await kv.get("x")


@pytest.mark.feature("key-value.operations")
async def test_a_revision_belongs_to_one_key(kv: KeyValue) -> None:
    mine, other = await kv.put("x", b"1"), await kv.put("y", b"2")
    with pytest.raises(KeyNotFoundError, match=rf"no revision {other}, which is one of 'y'"):
        await kv.get("x", other)
    with pytest.raises(KeyNotFoundError, match="has no revision 99"):
        await kv.get("x", 99)
    with pytest.raises(MisuseError, match="start at 1"):
        await kv.get("x", 0)
    assert (await kv.get("x", mine)).value == b"1"


@pytest.mark.feature("key-value.create-update")
async def test_create_needs_a_key_without_value(kv: KeyValue) -> None:
    first = await kv.create("x", b"1")
    with pytest.raises(KeyExistsError, match=f"exists at revision {first}") as raised:
        await kv.create("x", b"2")
    error = raised.value
    assert (error.bucket, error.key, error.expected, error.found) == ("B", "x", 0, first)
    await kv.delete("x")
    again = await kv.create("x", b"3")
    await kv.purge("x")
    assert await kv.create("x", b"4") > again
    assert (await kv.get("x")).value == b"4"


@pytest.mark.feature("key-value.create-update")
async def test_update_delete_and_purge_can_expect_a_revision(kv: KeyValue) -> None:
    first = await kv.update("x", b"1", last_revision=0)
    second = await kv.update("x", b"2", last_revision=first)
    for call in (
        kv.update("x", b"3", last_revision=first),
        kv.delete("x", last_revision=first),
        kv.purge("x", last_revision=first),
    ):
        with pytest.raises(WrongRevisionError, match=rf"expects revision {first}, the last one is {second}"):
            await call
    with pytest.raises(WrongRevisionError) as raised:
        await kv.update("y", b"1", last_revision=7)
    assert (raised.value.key, raised.value.expected, raised.value.found) == ("y", 7, 0)
    marker = await kv.delete("x", last_revision=second)
    assert await kv.purge("x", last_revision=marker) == marker + 1
    with pytest.raises(MisuseError, match="last_revision is -1"):
        await kv.update("x", b"1", last_revision=-1)


@pytest.mark.feature("key-value.history")
async def test_history_keeps_as_many_entries_as_the_bucket_says(kv: KeyValue) -> None:
    for number in range(7):
        await kv.put("x", b"%d" % number)
    await kv.put("other", b"")
    await kv.delete("x")
    entries = await kv.history("x")
    assert [entry.value for entry in entries] == [b"3", b"4", b"5", b"6", b""]
    assert [entry.operation.value for entry in entries] == ["PUT"] * 4 + ["DEL"]
    assert [entry.delta for entry in entries] == [4, 3, 2, 1, 0]
    await kv.purge("x")
    assert [entry.operation.value for entry in await kv.history("x")] == ["PURGE"]
    with pytest.raises(KeyNotFoundError):
        await kv.history("none")


async def test_an_invalid_key_is_refused_before_anything_is_sent(kv: KeyValue) -> None:
    for key in ("", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\n"):
        for call in (kv.get(key), kv.put(key, b""), kv.delete(key), kv.purge(key), kv.create(key, b"")):
            with pytest.raises(InvalidKeyError, match="of bucket 'B'"):
                await call
        with pytest.raises(InvalidKeyError):
            await kv.get_many(["a", key])
    with pytest.raises(InvalidKeyError):
        kv.watch("a*")
    assert (await kv.status()).values == 0


@pytest.mark.feature("key-value.max-bytes")
async def test_a_full_bucket_and_a_large_value_have_errors_of_their_own(js: JetStream) -> None:
    kv = await js.create_key_value("B", storage="memory", max_value_size=500, max_bytes=1000)
    with pytest.raises(ValueTooLargeError, match="key 'x' of bucket 'B'"):
        await kv.put("x", bytes(501))
    with pytest.raises(BucketFullError, match="bucket 'B' is full"):  # noqa: PT012
        for number in range(10):
            await kv.put(f"k{number}", bytes(200))
    assert (await kv.get("k0")).value == bytes(200)


async def test_operations_on_a_deleted_bucket_say_so(js: JetStream, kv: KeyValue) -> None:
    await js.delete_key_value("B")
    for call in (
        kv.get("x"),
        kv.get("x", 1),
        kv.put("x", b""),
        kv.get_many(["x"]),
        kv.history("x"),
        kv.status(),
    ):
        with pytest.raises(BucketNotFoundError, match="no bucket 'B'"):
            await call


# --- many keys -----------------------------------------------------------------------------------


@pytest.mark.feature("key-value.keys")
async def test_get_many_returns_the_values_in_the_order_asked_for(kv: KeyValue) -> None:
    for key in ("a", "b", "c", "d"):
        await kv.put(key, key.encode())
    await kv.put("a", b"new")
    await kv.delete("b")
    await kv.purge("c")
    found = await kv.get_many(["d", "none", "c", "b", "a", "d"])
    assert [(key, entry.value) for key, entry in found.items()] == [("d", b"d"), ("a", b"new")]
    assert found["a"] == await kv.get("a")
    assert await kv.get_many([]) == {}
    assert await kv.get_many(["none"]) == {}


@pytest.mark.feature("key-value.keys")
async def test_get_many_asks_once_for_a_thousand_keys(kv: KeyValue, js: JetStream) -> None:
    async with js.publisher() as publisher:
        for number in range(3000):
            await publisher.publish(f"$KV.B.k.{number}", b"%d" % number)
    keys = [f"k.{number}" for number in range(3000)]
    sent = kv.stream.session._last_sid
    found = await kv.get_many(keys)
    assert kv.stream.session._last_sid - sent == 3  # an inbox per request of 1024 keys
    assert list(found) == keys
    assert all(entry.value == key[2:].encode() for key, entry in found.items())


@pytest.mark.feature("key-value.keys")
async def test_get_many_reads_buckets_without_direct_gets(js: JetStream) -> None:
    await js.create_stream("KV_OLD", subjects=["$KV.OLD.>"], allow_direct=False, max_msgs_per_subject=1)
    kv = await js.key_value("OLD")
    assert not kv.stream.config.allow_direct
    for number in range(100):
        await kv.put(f"k{number}", b"%d" % number)
    await kv.delete("k7")
    found = await kv.get_many(f"k{number}" for number in range(101))
    assert [entry.value for entry in found.values()] == [b"%d" % n for n in range(100) if n != 7]
    assert (await kv.get("k1")).value == b"1"


@pytest.mark.feature("key-value.keys")
async def test_keys_are_filtered_and_leave_out_deleted_ones(kv: KeyValue) -> None:
    for key in ("a.x", "a.y", "b.x", "gone", "a.x"):
        await kv.put(key, b"1")
    await kv.delete("gone")
    assert sorted([key async for key in kv.keys(">")]) == ["a.x", "a.y", "b.x"]
    assert sorted([key async for key in kv.keys("a.*")]) == ["a.x", "a.y"]
    assert sorted([key async for key in kv.keys("b.>", "a.y")]) == ["a.y", "b.x"]
    assert [key async for key in kv.keys("none.>")] == []
    assert await kv.stream.consumer_names() == []


@pytest.mark.feature("key-value.operations")
async def test_purge_deletes_keeps_young_markers_and_what_was_written_meanwhile(kv: KeyValue) -> None:
    await kv.put("stays", b"1")
    for key in ("a", "b"):
        await kv.put(key, b"1")
        await kv.put(key, b"2")
        await kv.delete(key)
    assert await kv.purge_deletes() == 4
    assert [entry.operation.value for entry in await kv.history("a")] == ["DEL"]

    purge = kv.stream.purge

    async def write_first(subject: str = "", *, seq: int = 0, keep: int = 0) -> int:
        if subject.endswith(".b"):
            await kv.put("b", b"meanwhile")
        return await purge(subject, seq=seq, keep=keep)

    kv.stream.purge = write_first  # type: ignore[method-assign]
    assert await kv.purge_deletes(older_than=0) == 2
    with pytest.raises(KeyNotFoundError):
        await kv.history("a")
    assert [entry.value for entry in await kv.history("b")] == [b"meanwhile"]
    assert (await kv.get("stays")).value == b"1"


# --- TTLs, mirrors, sources ----------------------------------------------------------------------


@pytest.mark.feature("key-value.ttl")
async def test_a_value_with_a_ttl_expires_and_leaves_a_marker_that_goes_too(js: JetStream) -> None:
    kv = await js.create_key_value("B", storage="memory", limit_marker_ttl=1)
    async with kv.watch(updates_only=True) as watch:
        await kv.put("x", b"1", ttl=60)
        await kv.update("x", b"2", last_revision=1, ttl=1)
        await kv.create("y", b"1", ttl=timedelta(seconds=1))
        written = [entry async for entry in _first(watch, 3)]
        expired = [entry async for entry in _first(watch, 2)]
    assert [entry.operation.value for entry in written if entry] == ["PUT"] * 3
    assert [entry.operation.value for entry in expired if entry] == ["PURGE"] * 2
    assert {entry.key for entry in expired if entry} == {"x", "y"}
    with pytest.raises(KeyNotFoundError):
        await kv.get("x")

    async def is_empty() -> bool:
        return (await kv.status()).values == 0

    await until(is_empty)
    await kv.put("z", b"1")
    await kv.purge("z", ttl=1)
    await until(is_empty)


async def _first(watch: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await watch.__anext__()


@pytest.mark.feature("key-value.ttl")
async def test_a_ttl_needs_a_bucket_that_allows_it(js: JetStream, kv: KeyValue) -> None:
    plain = await js.create_key_value("P", storage="memory")
    for call in (plain.put("x", b"1", ttl=5), plain.create("x", b"1", ttl=5), plain.purge("x", ttl=5)):
        with pytest.raises(KeyTtlNotEnabledError, match="update it with limit_marker_ttl"):
            await call
    with pytest.raises(MisuseError, match="keeps 5 entries per key"):
        await kv.put("x", b"1", ttl=5)
    for ttl in (0, 0.5, 1.5, timedelta(milliseconds=1)):
        with pytest.raises(MisuseError, match="whole number of seconds"):
            await plain.put("x", b"1", ttl=ttl)


@pytest.mark.feature("key-value.mirrors")
async def test_a_mirror_reads_here_and_writes_to_its_origin(js: JetStream, kv: KeyValue) -> None:
    await kv.put("x", b"1")
    mirror = await js.create_key_value("M", storage="memory", mirror="B")
    assert mirror.stream.config.mirror == StreamSource(name="KV_B")
    assert mirror.stream.config.mirror_direct
    assert sorted(await js.key_value_names()) == ["B", "M"]

    async def has(key: str) -> bool:
        return bool(await mirror.get_many([key]))

    await until(lambda: has("x"))
    assert (await mirror.get("x")).value == b"1"
    revision = await mirror.put("y", b"2")
    assert (await kv.get("y")).revision == revision
    await until(lambda: has("y"))
    assert sorted([key async for key in mirror.keys(">")]) == ["x", "y"]
    assert [entry.value for entry in await mirror.history("x")] == [b"1"]


@pytest.mark.feature("key-value.mirrors")
async def test_a_bucket_with_sources_has_their_keys(js: JetStream, kv: KeyValue) -> None:
    other = await js.create_key_value("O", storage="memory")
    await kv.put("a", b"1")
    await other.put("b", b"2")
    both = await js.create_key_value("ALL", storage="memory", sources=["B", StreamSource(name="KV_O")])

    async def has_both() -> bool:
        return len(await both.get_many(["a", "b"])) == 2

    await until(has_both)
    assert {key: entry.value for key, entry in (await both.get_many(["a", "b"])).items()} == {
        "a": b"1",
        "b": b"2",
    }
    await both.put("a", b"mine")
    assert (await kv.get("a")).value == b"1"
