"""Writes of several keys at once through our client, on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.client import JetStream, KeyValue
from penstock.client.keyvalue.key_batch import KeyValueBatch
from penstock.errors import (
    BatchNotEnabledError,
    BucketNotFoundError,
    InvalidKeyError,
    KeyDeletedError,
    KeyExistsError,
    MisuseError,
    ValueTooLargeError,
    WrongRevisionError,
)

pytestmark = [pytest.mark.feature("key-value.client"), pytest.mark.feature("key-value.create-update")]


@pytest.fixture
async def kv(js: JetStream) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value(
        "B", storage="memory", allow_atomic=True, limit_marker_ttl=60, max_value_size=1000
    )
    for name in await js.key_value_names():
        await js.delete_key_value(name)


async def values(kv: KeyValue) -> dict[str, bytes]:
    return {key: (await kv.get(key)).value async for key in kv.keys(">")}


async def test_all_writes_of_a_batch_are_stored_at_its_end(kv: KeyValue) -> None:
    old = await kv.put("updated", b"1")
    await kv.put("deleted", b"1")
    await kv.put("purged", b"1")
    await kv.put("gone", b"1")
    await kv.delete("gone")
    async with kv.batch() as batch:
        batch.put("put", b"2")
        batch.update("updated", "3", last_revision=old)
        batch.create("created", b"4", ttl=100)
        batch.create("gone", b"5")
        batch.delete("deleted")
        batch.purge("purged")
        assert len(batch) == 6
        assert "put" not in await values(kv)
    assert await values(kv) == {"put": b"2", "updated": b"3", "created": b"4", "gone": b"5"}
    for key in ("put", "updated", "created", "gone"):
        assert (await kv.get(key)).revision == batch.revisions[key]
    with pytest.raises(KeyDeletedError, match="purged") as purged:
        await kv.get("purged")
    assert purged.value.revision == batch.revisions["purged"]
    revisions = list(batch.revisions.values())
    assert revisions == list(range(revisions[0], revisions[0] + 6))


async def test_a_batch_of_one_and_an_empty_one(kv: KeyValue) -> None:
    async with kv.batch() as batch:
        batch.put("x", b"1")
    assert (await kv.get("x")).revision == batch.revisions["x"]
    async with kv.batch() as batch:
        pass
    assert batch.revisions == {}


async def test_a_failed_condition_names_its_key_and_nothing_is_stored(kv: KeyValue) -> None:
    first = await kv.put("a", b"1")
    second = await kv.put("b", b"1")
    with pytest.raises(WrongRevisionError) as wrong:  # noqa: PT012
        async with kv.batch() as batch:
            batch.put("c", b"2")
            batch.update("a", b"2", last_revision=first)
            batch.update("b", b"2", last_revision=first)
    assert (wrong.value.key, wrong.value.expected, wrong.value.found) == ("b", first, second)
    with pytest.raises(KeyExistsError, match="key 'b' of bucket 'B' exists at revision 2"):  # noqa: PT012
        async with kv.batch() as batch:
            batch.create("d", b"2")
            batch.create("b", b"2")
    with pytest.raises(WrongRevisionError, match="key 'a'"):  # noqa: PT012
        async with kv.batch() as batch:
            batch.put("c", b"2")
            batch.delete("a", last_revision=99)
    assert await values(kv) == {"a": b"1", "b": b"1"}
    assert batch.revisions == {}


async def test_a_block_that_raises_stores_nothing(kv: KeyValue) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with kv.batch() as batch:
            batch.put("a", b"1")
            batch.put("b", b"%d" % (1 // len(batch.revisions)))
    assert await values(kv) == {}


async def test_a_refused_write_stores_nothing(kv: KeyValue) -> None:
    with pytest.raises(ValueTooLargeError):  # noqa: PT012
        async with kv.batch() as batch:
            batch.put("a", b"1")
            batch.put("b", bytes(1001))
    assert await values(kv) == {}


async def test_a_bucket_must_allow_batches(js: JetStream, kv: KeyValue) -> None:
    plain = await js.create_key_value("P", storage="memory")
    for keys in (["a"], ["a", "b"]):
        with pytest.raises(BatchNotEnabledError, match=r"bucket .P..*allow_atomic=True"):
            await put_all(plain.batch(), keys)
    await js.update_key_value("P", allow_atomic=True)
    await put_all(plain.batch(), ["a", "b"])
    await js.delete_key_value("P")
    with pytest.raises(BucketNotFoundError):
        await put_all(plain.batch(), ["a", "b"])


async def put_all(batch: KeyValueBatch, keys: list[str]) -> None:
    async with batch:
        for key in keys:
            batch.put(key, b"1")


async def test_misuse_of_a_batch_is_refused(kv: KeyValue) -> None:
    batch = kv.batch()
    with pytest.raises(MisuseError, match="inside of"):
        batch.put("a", b"1")
    async with batch:
        batch.put("a", b"1")
        with pytest.raises(MisuseError, match="'a' is in this batch"):
            batch.delete("a")
        with pytest.raises(InvalidKeyError):
            batch.put("a b", b"1")
        with pytest.raises(MisuseError, match="last_revision is -1"):
            batch.update("b", b"1", last_revision=-1)
        with pytest.raises(TypeError, match="payload"):
            batch.put("b", 5)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match=r"another by kv\.batch"):
        await batch.__aenter__()
    assert await values(kv) == {"a": b"1"}
