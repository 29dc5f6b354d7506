"""Fetching over a scripted server: what ends a fetch, and what it leaves behind."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import ConsumerGoneError
from penstock.protocol import status
from penstock.protocol.api import PullRequest
from tests.support.jetstream_peer import JetStreamPeer, consumer_of, js_client

pytestmark = pytest.mark.feature("client.fetch")


async def test_a_fetch_ends_with_its_status_and_leaves_no_subscription() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        assert (request.batch, request.expires, request.idle_heartbeat) == (10, 5_000_000_000, 0)
        js.message(inbox, 1)
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=9, Nats_Pending_Bytes=0)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        assert [msg.seq for msg in await consumer_of(client).fetch(10)] == [1]
        await client.publish("tick")
        await asyncio.wait_for(done.wait(), 10)


@pytest.mark.feature("client.missed-heartbeats")
async def test_long_fetches_ask_for_heartbeats_and_miss_them() -> None:
    requests: list[PullRequest] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        for _ in range(2):
            request, inbox = await js.pull()
            requests.append(request)
            js.message(inbox, 1)

    async with js_client(script) as client:
        consumer = consumer_of(client)
        fetch = consumer.fetch(2, expires=1, heartbeat=0.01)
        assert [msg.seq for msg in await fetch] == [1]  # what came is not lost to the error
        fetch = consumer.fetch(2, expires=1, heartbeat=0.01).__aiter__()
        assert (await fetch.__anext__()).seq == 1
        with pytest.raises(ConsumerGoneError, match="no heartbeat"):
            await fetch.__anext__()
        assert consumer.fetch(1, expires=60)._request.idle_heartbeat == 15_000_000_000
    assert [request.idle_heartbeat for request in requests] == [10_000_000, 10_000_000]


@pytest.mark.feature("client.timeouts")
async def test_a_silent_server_ends_a_fetch_a_little_after_its_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.fetch.GRACE_S", 0.01)

    async def script(js: JetStreamPeer, number: int) -> None:
        await js.pull()

    async with js_client(script) as client:
        assert await consumer_of(client).fetch(1, expires=0.01) == []


async def test_a_fetch_left_early_unsubscribes() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        async with consumer_of(client).fetch(10) as msgs:
            async for msg in msgs:
                assert msg.seq == 1
                break
        await client.publish("tick")
        await asyncio.wait_for(done.wait(), 10)


async def test_a_cancelled_fetch_unsubscribes() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer_of(client).fetch(1)
        await client.publish("tick")
        await asyncio.wait_for(done.wait(), 10)
