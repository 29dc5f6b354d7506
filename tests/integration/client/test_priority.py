"""The client and priority groups, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import penstock.client
from penstock.client import Consumer, JetStream, PriorityOptions
from penstock.errors import ConsumerNotFoundError, JetStreamApiError, PullError

pytestmark = pytest.mark.feature("client.priority-groups", "consumer.priority-groups")

IN_G = PriorityOptions(group="g")
A_MINUTE = timedelta(seconds=60)


@pytest.fixture
async def js(url: str) -> AsyncIterator[JetStream]:
    """With a stream `P` of twelve messages on `p`."""
    async with penstock.client.connect(url, request_timeout=10) as client:
        js = client.jetstream(timeout=10)
        await js.create_stream("P", subjects=["p"], storage="memory")
        for number in range(1, 13):
            await js.publish("p", b"%d" % number)
        yield js
        await js.delete_stream("P")


async def make(js: JetStream, policy: str, **settings: Any) -> Consumer:
    config = {"name": "c", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": policy}
    return await js.create_consumer("P", **config, **settings)


async def other_handle(js: JetStream) -> Consumer:
    """As another client would have it: it knows no pins."""
    return await js.consumer("P", "c")


def numbers(msgs: list[Any]) -> list[int]:
    return [int(msg.data) for msg in msgs]


async def test_fetches_of_a_pinned_client_are_served_and_others_wait(js: JetStream) -> None:
    consumer = await make(js, "pinned_client", priority_timeout=A_MINUTE)
    other = await other_handle(js)
    assert numbers(await consumer.fetch(2, priority=IN_G)) == [1, 2]
    assert await other.fetch(1, expires=0.2, priority=IN_G) == []
    assert numbers(await consumer.fetch(2, priority=IN_G)) == [3, 4]


async def test_who_lost_the_pin_pulls_on_without_it(js: JetStream) -> None:
    consumer = await make(js, "pinned_client", priority_timeout=A_MINUTE)
    other = await other_handle(js)
    assert numbers(await consumer.fetch(1, priority=IN_G)) == [1]
    await consumer.unpin("g")
    assert numbers(await other.fetch(1, priority=IN_G)) == [2]
    waiting = asyncio.ensure_future(consumer.fetch(2, expires=10, priority=IN_G)._collect())
    assert numbers(await other.fetch(1, priority=IN_G)) == [3]
    while (await consumer.info()).num_waiting < 1:  # 423 came, and it asked again
        await asyncio.sleep(0.01)
    await other.unpin("g")
    assert numbers(await waiting) == [4, 5]
    assert numbers(await consumer.fetch(1, priority=IN_G)) == [6]
    with pytest.raises(JetStreamApiError) as refused:
        await consumer.unpin("h")
    assert refused.value.err_code == 10160


async def test_a_pinned_consume_goes_on_after_an_unpin(js: JetStream) -> None:
    consumer = await make(js, "pinned_client", priority_timeout=A_MINUTE)
    got: list[int] = []
    async with consumer.consume(max_messages=2, priority=IN_G) as messages:
        async for msg in messages:
            await msg.ack_sync()
            got.append(int(msg.data))
            if len(got) == 5:
                await consumer.unpin("g")
            if len(got) == 12:
                break
    assert sorted(got) == list(range(1, 13))


async def test_overflow_is_served_when_enough_waits(js: JetStream) -> None:
    consumer = await make(js, "overflow")
    enough = PriorityOptions(group="g", min_pending=12)
    assert numbers(await consumer.fetch(1, priority=enough)) == [1]
    assert await consumer.fetch(1, expires=0.2, priority=enough) == []
    unacked = PriorityOptions(group="g", min_ack_pending=1)
    assert numbers(await consumer.fetch(1, priority=unacked)) == [2]
    with pytest.raises(PullError, match="Priority Group missing"):
        await consumer.fetch(1, expires=0.2)


async def test_lower_priorities_are_served_first(js: JetStream) -> None:
    consumer = await make(js, "prioritized", deliver_policy="new")
    later = asyncio.ensure_future(
        consumer.fetch(1, expires=0.6, priority=PriorityOptions(group="g", priority=5))._collect()
    )
    sooner = asyncio.ensure_future(
        consumer.fetch(1, expires=5, priority=PriorityOptions(group="g", priority=1))._collect()
    )
    while (await consumer.info()).num_waiting < 2:
        await asyncio.sleep(0.01)
    await js.publish("p", b"13")
    assert numbers(await sooner) == [13]
    assert await later == []


async def test_a_consumer_is_set_back(js: JetStream) -> None:
    consumer = await js.create_consumer("P", name="r", ack_policy="explicit")
    for msg in await consumer.fetch(4):
        await msg.ack_sync()
    assert await consumer.reset(2) == 2
    assert numbers(await consumer.fetch(3)) == [2, 3, 4]
    assert await consumer.reset() == 2
    assert numbers(await consumer.fetch(1)) == [2]


async def test_a_reset_of_a_consumer_that_is_gone_says_so_though_nothing_answers_it(js: JetStream) -> None:
    consumer = await js.create_consumer("P", name="r", ack_policy="explicit")
    await consumer.delete()
    js.timeout = 0.2
    with pytest.raises(ConsumerNotFoundError):
        await consumer.reset()
