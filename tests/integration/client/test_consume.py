"""Consuming over a scripted server: pulls ahead, statuses, silence, pins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock.client
from penstock.client import Client
from penstock.client.consume import Consume
from penstock.client.pull import ConsumeOptions
from penstock.errors import ConsumerGoneError, MisuseError, PullError
from penstock.protocol import status
from tests.support.jetstream_peer import JetStreamPeer, consumer_of, js_client
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.consume")


def quick_consume(client: Client, heartbeat_s: float = 0.02, **more: Any) -> Consume:
    """A consume with heartbeats below what users may ask for, so that tests need not wait."""
    options = ConsumeOptions(10, 0, 5, 0, expires_s=1.0, heartbeat_s=heartbeat_s)
    consume = Consume(client._session, b"$JS.API.CONSUMER.MSG.NEXT.S.C", "C", options, **more)
    consume.start()
    return consume


async def test_consume_pulls_ahead_by_the_threshold_through_one_inbox() -> None:
    pulls: list[tuple[int, bytes]] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        seq = 0
        while True:
            request, inbox = await js.pull()
            pulls.append((request.batch, inbox))
            for _ in range(request.batch):
                seq += 1
                js.message(inbox, seq, data=b"%d" % seq)

    async with js_client(script) as client:
        async with consumer_of(client).consume(max_messages=10) as messages:
            got = [int((await messages.__anext__()).data) for _ in range(23)]
        assert got == list(range(1, 24))
    assert [batch for batch, _ in pulls][:4] == [10, 5, 5, 5]
    assert len({inbox for _, inbox in pulls}) == 1


async def test_an_expired_pull_is_replaced_by_what_it_gave_back() -> None:
    batches: list[int] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        batches.append(request.batch)
        js.message(inbox, 1)
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=9, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        batches.append(request.batch)
        js.message(inbox, 2)

    async with js_client(script) as client, consumer_of(client).consume(max_messages=10) as messages:
        assert (await messages.__anext__()).seq == 1
        async with asyncio.timeout(10):  # well before heartbeats are missed, which would help as well
            assert (await messages.__anext__()).seq == 2
    assert batches[0] == 10
    assert 9 <= batches[1] <= 10  # 10 when message 1 was handed out before


@pytest.mark.feature("client.statuses")
@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (status.CONSUMER_DELETED, ConsumerGoneError),
        (status.CONSUMER_IS_PUSH_BASED, PullError),
        (status.HEARTBEAT_TOO_LARGE, PullError),
    ],
)
async def test_terminal_statuses_end_consume_after_what_arrived(
    one: status.Status, kind: type[Exception]
) -> None:
    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        js.status(inbox, one)

    async with js_client(script) as client:
        messages = consumer_of(client).consume()
        assert (await messages.__anext__()).seq == 1
        with pytest.raises(kind):
            await messages.__anext__()
        with pytest.raises(kind):
            await messages.__anext__()


@pytest.mark.feature("client.statuses")
@pytest.mark.parametrize(
    "one",
    [status.LEADERSHIP_CHANGE, status.EXCEEDED_MAX_WAITING, status.NO_RESPONDERS, status.SERVER_SHUTDOWN],
)
async def test_passing_troubles_are_warnings_and_consume_pulls_again_after_a_while(
    one: status.Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.consume.REFUSED_WAIT_S", 0.01)
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.status(inbox, one)
        request, inbox = await js.pull()
        assert request.batch == 500
        js.message(inbox, 1)

    async with (
        js_client(script) as client,
        consumer_of(client).consume(on_warning=warnings.append) as messages,
    ):
        assert (await messages.__anext__()).seq == 1
    assert len(warnings) == 1


@pytest.mark.feature("client.missed-heartbeats")
async def test_missed_heartbeats_are_a_warning_and_a_new_pull() -> None:
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        await js.pull()  # lost, says this server
        _, inbox = await js.pull()
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, on_warning=warnings.append)
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert isinstance(warnings[0], ConsumerGoneError)
    assert "no heartbeat" in str(warnings[0])


@pytest.mark.feature("client.missed-heartbeats")
async def test_heartbeats_keep_consume_calm() -> None:
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        for _ in range(30):
            await asyncio.sleep(0.01)
            js.status(inbox, status.IDLE_HEARTBEAT)
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, heartbeat_s=0.1, on_warning=warnings.append)
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert warnings == []


@pytest.mark.feature("client.missed-heartbeats", "client.consume-reconnect")
async def test_silence_while_disconnected_is_no_missed_heartbeat() -> None:
    warnings: list[Exception] = []
    go_on = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        if number == 0:
            await js.pull()
            js.peer.hang_up()
            await asyncio.wait_for(go_on.wait(), 10)
        request, inbox = await js.pull()
        assert request.batch == 10
        js.message(inbox, 1)

    async with js_client(script) as client:
        messages = quick_consume(client, heartbeat_s=5.0, on_warning=warnings.append)
        await until(lambda: messages._monitor._paused or messages.buffered > 0)
        go_on.set()
        assert (await messages.__anext__()).seq == 1
        messages.stop()
    assert warnings == []


async def test_a_message_larger_than_the_whole_buffer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.consume.REFUSED_WAIT_S", 0.01)
    warnings: list[Exception] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        while True:
            request, inbox = await js.pull()
            js.status(
                inbox,
                status.MESSAGE_SIZE_EXCEEDS_MAX_BYTES,
                Nats_Pending_Messages=request.batch,
                Nats_Pending_Bytes=request.max_bytes,
            )

    async with (
        js_client(script) as client,
        consumer_of(client).consume(max_bytes=100, on_warning=warnings.append),
    ):
        await until(lambda: len(warnings) >= 2)
    assert isinstance(warnings[0], MisuseError)
    assert "raise max_bytes" in str(warnings[0])


async def test_a_pinned_client_shows_its_pin_and_drops_it_when_told() -> None:
    pins: list[str] = []

    async def script(js: JetStreamPeer, number: int) -> None:
        request, inbox = await js.pull()
        pins.append(request.id)
        block = b"NATS/1.0\r\nNats-Pin-Id: abc\r\n\r\n"
        js.peer.send(
            b"HMSG s %b $JS.ACK.S.C.1.1.1.1.0 %d %d\r\n%b\r\n"
            % (js.sids[inbox], len(block), len(block), block)
        )
        js.status(inbox, status.REQUEST_TIMEOUT, Nats_Pending_Messages=0, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        pins.append(request.id)
        js.status(inbox, status.WRONG_PIN_ID, Nats_Pending_Messages=1, Nats_Pending_Bytes=0)
        request, inbox = await js.pull()
        pins.append(request.id)
        js.message(inbox, 2)

    async with js_client(script) as client:
        priority = penstock.client.PriorityOptions(group="g")
        async with consumer_of(client).consume(max_messages=1, priority=priority) as messages:
            await messages.__anext__()
            await messages.__anext__()
    assert pins == ["", "abc", ""]


@pytest.mark.feature("client.consume-stop")
async def test_stopping_unsubscribes_and_drops_what_is_buffered() -> None:
    done = asyncio.Event()

    async def script(js: JetStreamPeer, number: int) -> None:
        _, inbox = await js.pull()
        js.message(inbox, 1)
        js.message(inbox, 2)
        await js.request()
        assert js.unsubscribed == [js.sids[inbox]]
        done.set()

    async with js_client(script) as client:
        messages = consumer_of(client).consume()
        await messages.__anext__()
        await until(lambda: messages.buffered == 1)
        messages.stop()
        assert [msg async for msg in messages] == []
        await client.publish("tick")
        await asyncio.wait_for(done.wait(), 10)
