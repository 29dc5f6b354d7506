"""The publisher over fast ingest, and many messages of an atomic batch at once, on real servers."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import JetStream, Stream
from penstock.errors import (
    BatchNotEnabledError,
    MaxPayloadError,
    MisuseError,
    PublishFailedError,
    WrongLastSequenceError,
)

pytestmark = pytest.mark.feature("client.fast-publisher")


async def payloads(stream: Stream) -> list[bytes]:
    state = (await stream.info()).state
    return [(await stream.get_message(seq)).data for seq in range(1, state.last_seq + 1)]


@pytest.mark.feature("fast-ingest.ack-window")
async def test_publishes_go_into_a_fast_batch_and_are_all_acked(js: JetStream, stream: Stream) -> None:
    async with js.publisher(window=20, fast=True) as publisher:
        pending = [await publisher.publish(f"s.{n % 3}", b"%d" % n) for n in range(500)]
        assert publisher.pending <= 20
    assert (publisher.acked, publisher.failed, publisher.pending) == (500, 0, 0)
    assert [one.result().count for one in pending] == list(range(1, 501))
    assert len({one.result().batch for one in pending}) == 1
    assert await payloads(stream) == [b"%d" % n for n in range(500)]


async def test_a_publish_that_is_awaited_ends_its_batch_and_the_next_one_begins_another(
    js: JetStream, stream: Stream
) -> None:
    async with js.publisher(fast=True) as publisher:
        first = await publisher.publish("s.a", b"1")
        second = await publisher.publish("s.a", b"2")
        ack = await first
        assert second.done() and ack.count == 1
        other = await (await publisher.publish("s.a", b"3"))
        assert other.batch != ack.batch
        await publisher.flush()
    assert await payloads(stream) == [b"1", b"2", b"3"]


@pytest.mark.feature("fast-ingest.message-errors")
async def test_a_refused_publish_fails_alone(js: JetStream, stream: Stream) -> None:
    publisher = js.publisher(fast=True)

    async def publish_ten() -> None:
        async with publisher:
            for n in range(10):
                expected = 99 if n in (4, 7) else None
                await publisher.publish("s.a", b"%d" % n, expected_last_sequence=expected)

    with pytest.raises(PublishFailedError) as caught:
        await publish_ten()
    assert isinstance(caught.value.__cause__, WrongLastSequenceError)
    assert (publisher.acked, publisher.failed) == (8, 2)
    assert await payloads(stream) == [b"%d" % n for n in range(10) if n not in (4, 7)]


async def test_a_failure_that_was_looked_at_is_not_raised_again(js: JetStream, stream: Stream) -> None:
    async with js.publisher(fast=True) as publisher:
        await publisher.publish("s.a", b"1")
        bad = await publisher.publish("s.a", b"2", expected_last_sequence=99)
        with pytest.raises(WrongLastSequenceError):
            await bad
    assert (publisher.acked, publisher.failed) == (1, 1)


async def test_the_first_publish_can_be_the_refused_one(js: JetStream, stream: Stream) -> None:
    async with js.publisher(fast=True) as publisher:
        bad = await publisher.publish("s.a", b"1", expected_last_sequence=99)
        assert isinstance(bad.exception(), WrongLastSequenceError)
        await publisher.publish("s.a", b"2")
    assert await payloads(stream) == [b"2"]


async def test_a_stream_without_fast_batches_says_so(js: JetStream) -> None:
    await js.create_stream("NO", subjects=["no"], storage="memory")
    async with js.publisher(fast=True) as publisher:
        with pytest.raises(BatchNotEnabledError):
            await publisher.publish("no", b"1")
    await js.delete_stream("NO")


async def test_misuse_raises_with_what_to_do(js: JetStream, stream: Stream) -> None:
    with pytest.raises(MisuseError):
        js.publisher(window=0, fast=True)
    publisher = js.publisher(fast=True)
    with pytest.raises(MisuseError):
        await publisher.publish("s.a")
    async with publisher:
        with pytest.raises(MaxPayloadError):
            await publisher.publish("s.a", bytes(2_000_000))
        with pytest.raises(MisuseError):
            await publisher.__aenter__()
    with pytest.raises(MisuseError):
        await publisher.publish("s.a")


async def test_tasks_may_share_a_publisher(js: JetStream, stream: Stream) -> None:
    async with js.publisher(window=8, fast=True) as publisher:

        async def some(task: int) -> None:
            for n in range(50):
                pending = await publisher.publish(f"s.{task}", b"%d" % n)
                if n % 20 == 0:
                    await pending

        await asyncio.gather(*(some(task) for task in range(4)))
    assert (publisher.acked, publisher.failed) == (200, 0)
    assert (await stream.info()).state.messages == 200


@pytest.mark.feature("atomic.start", "atomic.append")
async def test_many_messages_of_an_atomic_batch_are_added_at_once(js: JetStream, stream: Stream) -> None:
    """Lists, columns and single messages in one batch."""
    pa = pytest.importorskip("pyarrow")
    async with js.atomic_batch() as batch:
        await batch.add_many([b"%d" % n for n in range(300)], "s.a")
        await batch.add("s.b", b"300", msg_id="x")
        await batch.add_many(pa.chunked_array([["301", "302"], ["303"]]), "s.c")
        await batch.add_many(iter([]), "s.c")
        ack = await batch.commit("s.d", b"304")
    assert (ack.count, ack.seq, batch.size) == (305, 305, 305)
    assert await payloads(stream) == [b"%d" % n for n in range(305)]


@pytest.mark.feature("atomic.commit-eob")
async def test_an_atomic_batch_may_end_behind_many(js: JetStream, stream: Stream) -> None:
    async with js.atomic_batch(ack_first=False) as batch:
        await batch.add_many([b"1", b"2", b"3"], "s.a")
        assert (await batch.commit_eob()).count == 3
        with pytest.raises(MisuseError):
            await batch.add_many([b"4"], "s.a")
    async with js.atomic_batch() as batch:
        with pytest.raises(MaxPayloadError):
            await batch.add_many([b"1", bytes(2_000_000)], "s.a")
        batch.abort()
    assert await payloads(stream) == [b"1", b"2", b"3"]
