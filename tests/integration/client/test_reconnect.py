"""What survives the restart of a server, ours and the official one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock.client
from penstock.client import Client, ClientState, JsMsg
from penstock.errors import (
    ConnectionClosedError,
    DisconnectedError,
    NoServersError,
    PenstockError,
    PublishFailedError,
)
from tests.support.nats_servers import KINDS, AnyServer, make_server, until

pytestmark = pytest.mark.feature("client.connection")

FAST = {"reconnect_wait": 0.02, "reconnect_wait_max": 0.1}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyServer]:
    server = make_server(str(request.param), tmp_path)
    server.start()
    yield server
    server.stop()


async def stop(server: AnyServer) -> None:
    await asyncio.to_thread(server.stop)


async def start(server: AnyServer) -> None:
    await asyncio.to_thread(server.start)


async def test_subscriptions_come_back_and_buffered_publishes_arrive(server: AnyServer) -> None:
    events: list[str] = []

    async def on_reconnected(_: Client) -> None:
        events.append("reconnected")

    async with penstock.client.connect(
        server.url,
        **FAST,
        on_disconnected=lambda _, error: events.append("disconnected"),
        on_reconnected=on_reconnected,
        on_closed=lambda _: events.append("closed"),
    ) as client:
        subscription = await client.subscribe("back")
        limited = await client.subscribe("back")
        await limited.unsubscribe(max_messages=3)
        await client.publish("back", b"0")
        await client.flush()
        await stop(server)
        await until(lambda: not client.is_connected)
        assert client.state is ClientState.RECONNECTING
        with pytest.raises(DisconnectedError):
            client.server_info  # noqa: B018
        for number in range(1, 101):
            await client.publish("back", b"%d" % number)
        await start(server)
        await client.flush(20)
        assert [(await subscription.next(5)).data for _ in range(101)] == [b"%d" % n for n in range(101)]
        assert [msg.data async for msg in limited] == [b"0", b"1", b"2"]
        answer = asyncio.ensure_future(client.request("ask", timeout=5))
        asked = await client.subscribe("ask", callback=lambda msg: msg.respond(b"yes"))
        assert asked
        answer.cancel()
        assert (await client.request("ask", timeout=5)).data == b"yes"
    assert events == ["disconnected", "reconnected", "closed"]


async def test_waiting_requests_fail_with_the_connection_and_not_by_timeout(server: AnyServer) -> None:
    async with penstock.client.connect(server.url, **FAST) as client:
        await client.subscribe("mute")
        request = asyncio.ensure_future(client.request("mute", timeout=60))
        await client.flush()
        await stop(server)
        with pytest.raises(DisconnectedError, match="'mute' waited"):
            await request


async def test_the_reconnect_buffer_is_bounded(server: AnyServer) -> None:
    async with penstock.client.connect(server.url, **FAST, reconnect_buffer_bytes=10_000) as client:
        await stop(server)
        await until(lambda: not client.is_connected)
        await client.publish("a", bytes(9_000))
        with pytest.raises(DisconnectedError, match="reconnect buffer is full"):
            await client.publish("a", bytes(1_000))
        with pytest.raises(DisconnectedError, match="reconnect buffer is full"):
            await client.publish_many("a", [bytes(1_000)] * 2)
        await client.publish("a", b"small ones still fit")


async def test_the_client_closes_when_it_may_not_reconnect(server: AnyServer) -> None:
    client = await penstock.client.connect(server.url, reconnect=False)
    subscription = await client.subscribe("x")
    await client.flush()
    await stop(server)
    with pytest.raises(ConnectionClosedError):
        await subscription.__anext__()
    assert client.is_closed
    with pytest.raises(ConnectionClosedError):
        await client.publish("x")


async def test_the_client_gives_up_after_max_reconnects(server: AnyServer) -> None:
    client = await penstock.client.connect(server.url, **FAST, max_reconnects=2)
    await client.flush()
    await stop(server)
    await until(lambda: client.is_closed)
    assert isinstance(client.last_error, NoServersError)


async def test_closing_while_disconnected_works(server: AnyServer) -> None:
    client = await penstock.client.connect(server.url, **FAST)
    await stop(server)
    await until(lambda: not client.is_connected)
    flush = asyncio.ensure_future(client.flush(30))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectionClosedError):
        await flush


async def test_consume_goes_on_after_a_restart(server: AnyServer) -> None:
    async with penstock.client.connect(server.url, **FAST, on_error=lambda *_: None) as client:
        js = client.jetstream(timeout=10)
        stream = await js.create_stream("S", subjects=["s"], storage="file")
        consumer = await stream.create_consumer("C")
        await js.publish("s", b"1")
        async with consumer.consume(max_messages=10) as messages:
            first = await messages.__anext__()
            await first.ack_sync(5)
            await stop(server)
            await until(lambda: not client.is_connected)
            await start(server)
            await client.flush(20)
            await js.publish("s", b"2")
            async with asyncio.timeout(20):
                assert (await messages.__anext__()).data == b"2"


async def test_an_ordered_consumer_goes_on_after_a_restart_without_gap_or_repeat(
    server: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.ordered.REFUSED_WAIT_S", 0.05)
    async with penstock.client.connect(server.url, **FAST, on_error=lambda *_: None) as client:
        js = client.jetstream(timeout=10)
        stream = await js.create_stream("S", subjects=["s"], storage="file")
        for number in range(1, 101):
            await js.publish("s", b"%d" % number)
        got: list[int] = []
        async with stream.ordered_consumer().consume(max_messages=10) as messages, asyncio.timeout(60):
            async for msg in messages:
                got.append(int(msg.data))
                if len(got) == 50:
                    await stop(server)
                    await until(lambda: not client.is_connected)
                    await start(server)
                if len(got) == 100:
                    break
        assert got == list(range(1, 101))


async def test_the_publisher_sends_again_what_has_an_id_and_tells_the_rest(server: AnyServer) -> None:
    lost: list[Exception] = []
    async with penstock.client.connect(
        server.url, **FAST, on_disconnected=lambda _, error: lost.append(error)
    ) as client:
        js = client.jetstream(timeout=30)
        await js.create_stream("S", subjects=["s"], storage="file")
        async with js.publisher(window=50) as publisher:

            async def restart() -> None:
                await stop(server)
                await start(server)

            restarting = asyncio.ensure_future(restart())
            for number in range(3000):
                await publisher.publish("s", b"%d" % number, msg_id=f"id{number}")
                if number == 1000:
                    await until(lambda: bool(lost))  # in the middle, with some in flight
            await restarting
        assert (publisher.acked, publisher.failed) == (3000, 0)
        ordered = (await js.stream("S")).ordered_consumer()
        got: list[JsMsg] = []
        while len(got) < 3000:
            got += await ordered.fetch(500)
        assert [int(msg.data) for msg in got] == list(range(3000))

        publisher = js.publisher()
        with pytest.raises(PublishFailedError, match="may be stored"):  # noqa: PT012
            async with publisher:
                await publisher.publish("s", b"without id")
                lost = client._session.connection
                assert lost is not None
                lost.abort(PenstockError("cut by the test"))
        assert publisher.failed == 1
