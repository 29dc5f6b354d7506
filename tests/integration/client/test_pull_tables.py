"""The tables of ADR-37 on both servers: options and defaults of pulls, accounting, statuses.

What is asked for is read by a subscription to the requests, what is answered comes from the servers.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.client import Client, Consumer, JetStream, Stream, Subscription
from penstock.client.pull import UNBOUNDED_BATCH
from penstock.errors import ConsumerGoneError, MisuseError, PullError
from tests.support.nats_servers import until

S = 1_000_000_000
PULLS = "$JS.API.CONSUMER.MSG.NEXT.S.>"


@pytest.fixture
async def pulls(client: Client) -> Subscription:
    """The pull requests to all consumers of stream S."""
    subscription = await client.subscribe(PULLS)
    await client.flush()
    return subscription


async def request_in(pulls: Subscription) -> dict[str, Any]:
    """The next pull request, without what is 0."""
    asked: dict[str, Any] = json.loads((await pulls.next(10)).data)
    return {name: value for name, value in asked.items() if value}


@pytest.mark.feature("client.consume", "client.pull-limits", "client.timeouts")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"batch": 500, "expires": 30 * S, "idle_heartbeat": 15 * S}),
        ({"expires": 1}, {"batch": 500, "expires": S, "idle_heartbeat": S // 2}),
        ({"expires": 600}, {"batch": 500, "expires": 600 * S, "idle_heartbeat": 30 * S}),
        ({"heartbeat": 2}, {"batch": 500, "expires": 30 * S, "idle_heartbeat": 2 * S}),
        ({"max_messages": 1}, {"batch": 1, "expires": 30 * S, "idle_heartbeat": 15 * S}),
        (
            {"max_bytes": 4096},
            {"batch": UNBOUNDED_BATCH, "max_bytes": 4096, "expires": 30 * S, "idle_heartbeat": 15 * S},
        ),
    ],
    ids=str,
)
async def test_a_consume_asks_for_what_its_options_and_defaults_say(
    stream: Stream, pulls: Subscription, options: dict[str, float], expected: dict[str, int]
) -> None:
    consumer = await stream.create_consumer("C")
    async with consumer.consume(**options):  # type: ignore[arg-type]
        assert await request_in(pulls) == expected


@pytest.mark.feature("client.fetch", "client.fetch-bytes", "client.next", "client.timeouts")
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda one: one.fetch(7), {"batch": 7, "expires": 5 * S}),
        (lambda one: one.fetch(7, expires=30), {"batch": 7, "expires": 30 * S}),
        (lambda one: one.fetch(7, expires=60), {"batch": 7, "expires": 60 * S, "idle_heartbeat": 15 * S}),
        (lambda one: one.fetch(7, heartbeat=1), {"batch": 7, "expires": 5 * S, "idle_heartbeat": S}),
        (lambda one: one.fetch(7, no_wait=True), {"batch": 7, "no_wait": True}),
        (
            lambda one: one.fetch_bytes(900),
            {"batch": UNBOUNDED_BATCH, "max_bytes": 900, "expires": 5 * S},
        ),
        (lambda one: one.next(), {"batch": 1, "expires": 5 * S}),
        (lambda one: one.next(expires=31), {"batch": 1, "expires": 31 * S, "idle_heartbeat": 31 * S // 4}),
    ],
    ids=["messages", "30 s", "60 s", "heartbeat", "no wait", "bytes", "next", "next in 31 s"],
)
async def test_a_fetch_asks_for_what_its_options_and_defaults_say(
    stream: Stream, pulls: Subscription, call: Any, expected: dict[str, Any]
) -> None:
    consumer = await stream.create_consumer("C")
    assert pulls.pending_messages == 0  # nothing is asked for before the call
    asking = asyncio.ensure_future(call(consumer))
    try:
        assert await request_in(pulls) == expected
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.feature("client.pull-limits")
@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 10, "max_bytes": 10},
        {"max_messages": 10, "threshold_messages": 11},
        {"max_bytes": 10, "threshold_bytes": 11},
        {"expires": 0.9},
        {"heartbeat": 0.4},
        {"expires": 100, "heartbeat": 31},
    ],
    ids=str,
)
async def test_options_that_the_specification_excludes_are_refused_before_anything_is_asked_for(
    stream: Stream, pulls: Subscription, client: Client, options: dict[str, float]
) -> None:
    consumer = await stream.create_consumer("C")
    with pytest.raises(MisuseError):
        consumer.consume(**options)  # type: ignore[arg-type]
    await client.flush()
    assert pulls.pending_messages == 0


# --- accounting ----------------------------------------------------------------------------------


async def publish(js: JetStream, count: int, size: int = 1) -> None:
    for _ in range(count):
        await js.publish("s.a", bytes(size), headers={"A": "b"})


@pytest.mark.feature("client.pull-limits", "client.pull-accounting")
async def test_a_pull_follows_when_half_of_the_messages_was_handed_out(
    js: JetStream, stream: Stream, pulls: Subscription
) -> None:
    await publish(js, 20)
    consumer = await stream.create_consumer("C")
    async with consumer.consume(max_messages=10) as messages:
        assert (await request_in(pulls))["batch"] == 10
        for _ in range(4):
            await messages.__anext__()
        assert pulls.pending_messages == 0
        await messages.__anext__()
        assert (await request_in(pulls))["batch"] == 5


@pytest.mark.feature("client.pull-limits", "client.pull-accounting")
async def test_a_pull_for_bytes_counts_messages_as_the_server_does(
    js: JetStream, stream: Stream, pulls: Subscription
) -> None:
    """Half of the buffer is handed out with the seventh message, and asked for again to the byte."""
    await publish(js, 8, size=100)
    consumer = await stream.create_consumer("C")
    async with consumer.consume(max_bytes=2000, expires=5) as messages:
        assert (await request_in(pulls))["max_bytes"] == 2000
        handed_out = 0
        while handed_out < 1000:
            msg = await messages.__anext__()
            header = msg.raw[3] or b""
            handed_out += len(msg.subject) + len(msg.raw[2] or b"") + len(header) + len(msg.data)
        assert (await request_in(pulls))["max_bytes"] == handed_out
        await publish(js, 20, size=100)
        for _ in range(21):
            await asyncio.wait_for(messages.__anext__(), 10)


@pytest.mark.feature("client.pull-accounting")
@pytest.mark.parametrize("options", [{"max_messages": 10}, {"max_bytes": 5000}], ids=str)
async def test_what_an_expired_pull_left_is_asked_for_again(
    js: JetStream, stream: Stream, pulls: Subscription, options: dict[str, int]
) -> None:
    """The 408 of the server says what it did not deliver."""
    consumer = await stream.create_consumer("C")
    async with consumer.consume(**options, expires=1) as messages:  # type: ignore[arg-type]
        first = await request_in(pulls)
        await publish(js, 3)
        for _ in range(3):
            await messages.__anext__()
        assert await request_in(pulls) == first
        await publish(js, 1)
        await messages.__anext__()


# --- statuses ------------------------------------------------------------------------------------


@pytest.mark.feature("client.statuses")
@pytest.mark.parametrize(
    ("settings", "options", "text"),
    [
        ({"max_batch": 2}, {"max_messages": 3}, "Exceeded MaxRequestBatch of 2"),
        ({"max_expires": 1}, {"max_messages": 1, "expires": 20}, "Exceeded MaxRequestExpires of 1s"),
        ({"max_bytes": 100}, {"max_bytes": 200}, "Exceeded MaxRequestMaxBytes of 100"),
    ],
    ids=["batch", "expires", "bytes"],
)
async def test_limits_of_the_consumer_end_a_fetch_and_are_warnings_of_a_consume(
    stream: Stream, settings: dict[str, int], options: dict[str, int], text: str
) -> None:
    consumer = await stream.create_consumer("C", **settings)  # type: ignore[arg-type]
    with pytest.raises(PullError, match=text):
        await consumer.fetch(**options)  # type: ignore[arg-type]
    assert await told_by_consume(consumer, options) == text


@pytest.mark.feature("client.statuses")
async def test_a_fetch_ends_where_more_pulls_would_wait_than_may(stream: Stream) -> None:
    consumer = await stream.create_consumer("C", max_waiting=1)
    waiting = asyncio.ensure_future(consumer.fetch(1, expires=30))

    async def pull_waits() -> bool:
        return (await consumer.info()).num_waiting == 1

    await until(pull_waits)
    try:
        with pytest.raises(PullError, match="Exceeded MaxWaiting"):
            await consumer.fetch(1)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def told_by_consume(consumer: Consumer, options: dict[str, int]) -> str:
    """What a consume reports first; it has not ended then."""
    warnings: list[Exception] = []
    async with consumer.consume(**options, on_warning=warnings.append):  # type: ignore[arg-type]
        await until(lambda: bool(warnings))
    assert isinstance(warnings[0], PullError)
    return warnings[0].description


@pytest.mark.feature("client.statuses")
async def test_statuses_of_a_normal_end_are_not_told(js: JetStream, stream: Stream) -> None:
    """404, 408, and a message above max_bytes."""
    await publish(js, 1, size=1000)
    consumer = await stream.create_consumer("C", filter_subject="s.a")
    assert await consumer.fetch_bytes(500, expires=5) == []
    assert len(await consumer.fetch(5, expires=0.2)) == 1
    assert await consumer.fetch(5, no_wait=True) == []
    assert await consumer.fetch(5, expires=0.1) == []


@pytest.mark.feature("client.statuses")
async def test_a_deleted_consumer_ends_fetch_and_consume(stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    consume = consumer.consume(max_messages=1)
    fetch = asyncio.ensure_future(consumer.fetch(1, expires=30))

    async def pulls_wait() -> bool:
        return (await consumer.info()).num_waiting == 2

    await until(pulls_wait)
    await consumer.delete()
    for ended in (fetch, consume.__anext__()):
        with pytest.raises(ConsumerGoneError, match="deleted"):
            await asyncio.wait_for(ended, 10)


@pytest.mark.feature("client.statuses")
async def test_a_consumer_that_became_push_based_ends_fetch_and_consume(stream: Stream) -> None:
    consumer = await stream.create_consumer("C")
    await consumer.delete()
    await stream.create_consumer("C", deliver_subject="push.here")
    with pytest.raises(PullError, match="push based"):
        await consumer.fetch(1)
    with pytest.raises(PullError, match="push based"):
        await asyncio.wait_for(consumer.consume().__anext__(), 10)
