"""A connection that is lost after any frame while a pull consumer is read: no message is missed.

The same for a watch, an object put and a service request is beside their other tests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import penstock.client
from penstock.client import Client, Consumer, JetStream, Stream
from penstock.errors import ClientError
from tests.support.frame_proxy import frame_proxy
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.connection", "client.consume-reconnect", "client.fetch")

FAST: dict[str, Any] = {"reconnect_wait": 0.02, "reconnect_wait_max": 0.1, "retry_on_failed_connect": True}
COUNT = 8

Read = Callable[[Client, "set[int]"], Awaitable[None]]


async def consumer_of(client: Client) -> Consumer:
    """Repeats what a lost connection interrupted."""
    while True:
        try:
            return await client.jetstream(timeout=2).consumer("S", "C")
        except ClientError:
            await until(lambda: client.is_connected)


async def by_consume(client: Client, got: set[int]) -> None:
    """One consume for all: it survives the loss."""
    consumer = await consumer_of(client)
    async with consumer.consume(max_messages=5, expires=1) as messages:
        async for msg in messages:
            got.add(int(msg.data))
            await msg.ack()


async def by_fetch(client: Client, got: set[int]) -> None:
    """A fetch that lost its connection is repeated."""
    consumer = await consumer_of(client)
    while True:
        try:
            for msg in await consumer.fetch(5, expires=0.3):
                got.add(int(msg.data))
                await msg.ack()
        except ClientError:
            await until(lambda: client.is_connected)


async def one_run(url: str, stream: Stream, read: Read, *, cut_after: int) -> list[str]:
    """Reads and acks COUNT messages through a proxy; the frames it forwarded."""
    observed = await stream.create_consumer(durable_name="C", ack_wait=0.1)
    got: set[int] = set()
    async with (
        frame_proxy(url, cut_after) as (proxy, proxy_url),
        penstock.client.connect(proxy_url, **FAST, on_error=lambda *_: None) as client,
    ):
        reading = asyncio.ensure_future(read(client, got))
        try:

            async def is_acked() -> bool:
                return reading.done() or (await observed.info()).ack_floor.stream_seq == COUNT

            await until(is_acked)
        finally:
            reading.cancel()
            [ended] = await asyncio.gather(reading, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        assert got == set(range(COUNT))
        frames = list(proxy.frames)
    await observed.delete()
    return frames


@pytest.mark.parametrize("read", [by_consume, by_fetch])
async def test_no_message_is_missed_whatever_step_the_connection_is_cut_at(
    stream: Stream, js: JetStream, url: str, read: Read
) -> None:
    for number in range(COUNT):
        await js.publish("s.a", b"%d" % number)
    # Timers decide how many frames a run has: the steps end with the first run that was over before its cut.
    for cut_after in itertools.count(1):
        frames = await one_run(url, stream, read, cut_after=cut_after)
        if len(frames) < cut_after:
            break
    assert frames[:4] == ["< INFO", "> CONNECT", "> PING", "< PONG"]
    assert frames.count("> PUB") >= COUNT
