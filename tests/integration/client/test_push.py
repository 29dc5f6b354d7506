"""Push consumers: subscribe and bind, queue groups, flow control, heartbeats and ordered subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import nats
import nats.js.api
import pytest

import penstock
from penstock.client import Client, JetStream, JsMsg, PushSubscription, Stream
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    JetStreamError,
    MisuseError,
    NoStreamError,
    RequestTimeoutError,
    SlowConsumerError,
    StreamNotFoundError,
)
from tests.support.frame_proxy import frame_proxy
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("client.push")

FAST: dict[str, Any] = {"reconnect_wait": 0.01, "reconnect_wait_max": 0.05}


@pytest.fixture
def js(client: Client) -> JetStream:
    return client.jetstream(timeout=10)


async def publish(js: JetStream, count: int, start: int = 0, payload: bytes = b"") -> None:
    async with js.publisher(window=500) as publisher:
        for number in range(start, start + count):
            await publisher.publish("s.a", b"%d" % number + payload)


async def take(subscription: PushSubscription, count: int) -> list[int]:
    """Numbers of the next messages, acked."""
    found = []
    for _ in range(count):
        msg = await subscription.next(10)
        found.append(int(msg.data))
        await msg.ack()
    return found


# --- subscribing -----------------------------------------------------------------------------------


async def test_stored_and_new_messages_are_pushed(stream: Stream, js: JetStream) -> None:
    await publish(js, 3)
    async with await js.subscribe("s.>") as subscription:
        assert subscription.stream_name == "S"
        await publish(js, 3, start=3)
        assert await take(subscription, 6) == list(range(6))
        info = await subscription.consumer_info()
        assert info.config.filter_subject == "s.>"
        assert (info.config.flow_control, info.config.idle_heartbeat) == (True, 5)
        with pytest.raises(RequestTimeoutError, match="no message of consumer"):
            await subscription.next(0.01)
    assert await stream.consumer_names() == []
    with pytest.raises(ConnectionClosedError):
        await subscription.next()


async def test_a_durable_consumer_continues_with_the_next_subscription(stream: Stream, js: JetStream) -> None:
    await publish(js, 3)
    first = await js.subscribe("s.>", durable="D")
    assert await take(first, 3) == [0, 1, 2]
    await first.unsubscribe()

    async def is_free() -> bool:
        info = await first.consumer_info()
        return not info.push_bound and info.ack_floor.stream_seq == 3

    await until(is_free)
    await publish(js, 3, start=3)
    async with await js.subscribe("s.>", durable="D") as second:
        assert await take(second, 3) == [3, 4, 5]


async def test_an_existing_consumer_must_be_what_is_asked_for(stream: Stream, js: JetStream) -> None:
    first = await js.subscribe("s.>", durable="D", max_ack_pending=7)
    with pytest.raises(MisuseError, match=r"max_ack_pending is 7, not 8; filter_subject is 's.>', not 's.a'"):
        await js.subscribe("s.a", durable="D", max_ack_pending=8)
    with pytest.raises(MisuseError, match="is bound to another subscription"):
        await js.subscribe("s.>", durable="D", max_ack_pending=7)
    with pytest.raises(MisuseError, match="has no queue group, not 'q'"):
        await js.subscribe("s.>", durable="D", queue="q")
    await stream.create_consumer("PULL")
    with pytest.raises(MisuseError, match="is a pull consumer"):
        await js.bind("S", "PULL")
    with pytest.raises(ConsumerNotFoundError):
        await js.bind("S", "NONE")
    await first.unsubscribe()
    assert sorted(await stream.consumer_names()) == ["D", "PULL"]


async def test_wrong_arguments_are_refused(stream: Stream, js: JetStream) -> None:
    with pytest.raises(NoStreamError):
        await js.subscribe("elsewhere")
    with pytest.raises(StreamNotFoundError):
        await js.subscribe("s.>", stream="NONE")
    with pytest.raises(TypeError, match="instead of nats-py's cb use callback"):
        await js.subscribe("s.>", cb=print)
    with pytest.raises(TypeError, match="did you mean ack_wait"):
        await js.subscribe("s.>", ackwait=3)
    with pytest.raises(TypeError, match="manual_ack"):
        await js.bind("S", "D", manual_ack=True)  # type: ignore[arg-type]
    for options in ({"ordered": True, "durable": "D"}, {"auto_ack": True}, {"ordered": True, "ack_wait": 1}):
        with pytest.raises(MisuseError):
            await js.subscribe("s.>", **options)
    await js.create_stream("T", subjects=["t.>"], storage="memory")
    try:
        with pytest.raises(MisuseError, match=r"in streams S, T: give stream="):
            await js.subscribe(">")
    finally:
        await js.delete_stream("T")
    assert await stream.consumer_names() == []
    assert not [one for one in js.session._subscriptions.values() if one.subject.count(".") == 1]


async def test_a_queue_group_shares_one_consumer(stream: Stream, js: JetStream, url: str) -> None:
    """Its members start at the same time, and only one of them creates the consumer."""
    async with penstock.connect(url) as other:
        members = await asyncio.gather(
            *(context.subscribe("s.>", queue="workers") for context in (js, other.jetstream(), js))
        )
        assert await stream.consumer_names() == ["workers"]
        await publish(js, 300)
        await until(lambda: sum(member.pending_messages for member in members) == 300)
        assert all(member.pending_messages for member in members)
        for member in members:
            await take(member, member.pending_messages)
            await member.unsubscribe()


async def test_a_callback_acks_what_it_has_processed_when_asked_to(stream: Stream, js: JetStream) -> None:
    seen: list[int] = []
    reported: list[Exception] = []
    js.session.report_callback = lambda error, msg: reported.append(error)  # type: ignore[method-assign]

    async def handle(msg: JsMsg) -> None:
        seen.append(int(msg.data))
        if int(msg.data) == 1:
            raise ValueError("not this one")
        if int(msg.data) == 2:
            await msg.term()

    await publish(js, 5)
    subscription = await js.subscribe("s.>", durable="D", callback=handle, auto_ack=True)
    with pytest.raises(MisuseError, match="has a callback"):
        await subscription.next()

    async def has_settled() -> bool:
        info = await subscription.consumer_info()
        return info.num_ack_pending == 1 and info.delivered.consumer_seq == 5

    await until(has_settled)
    assert seen == [0, 1, 2, 3, 4]
    assert [type(error) for error in reported] == [ValueError]
    await subscription.unsubscribe()


async def test_draining_processes_what_has_arrived(stream: Stream, js: JetStream) -> None:
    seen: list[int] = []
    release = asyncio.Event()

    async def handle(msg: JsMsg) -> None:
        await asyncio.wait_for(release.wait(), 10)
        seen.append(int(msg.data))

    await publish(js, 50)
    subscription = await js.subscribe("s.>", callback=handle, ack_policy="none")
    await until(lambda: subscription.pending_messages == 49)
    draining = asyncio.ensure_future(subscription.drain())
    await asyncio.sleep(0)
    release.set()
    await draining
    assert seen == list(range(50))
    assert await stream.consumer_names() == []


async def test_a_drained_client_drains_its_push_subscriptions(
    stream: Stream, js: JetStream, url: str
) -> None:
    await publish(js, 20)
    seen: list[int] = []
    owner = await penstock.connect(url)

    async def handle(msg: JsMsg) -> None:
        await asyncio.sleep(0)
        seen.append(int(msg.data))

    await owner.jetstream().subscribe("s.>", callback=handle, ack_policy="none")
    await until(lambda: bool(seen))
    await owner.drain()
    assert seen == list(range(20))


# --- flow control, limits and heartbeats -----------------------------------------------------------


async def test_flow_control_stops_the_server_until_messages_are_read(stream: Stream, js: JetStream) -> None:
    await publish(js, 3000, payload=bytes(4000))
    subscription = await js.subscribe("s.>", ack_policy="none", idle_heartbeat=0.1)
    beats = 0
    answered = subscription._answer_flow

    def on_status(raw: Any, status: int, description: str, then: Any = subscription._on_status) -> None:
        nonlocal beats
        beats += description == "Idle Heartbeat"
        then(raw, status, description)

    counted = 0

    def answer(reply: bytes) -> None:
        nonlocal counted
        counted += 1
        answered(reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PushSubscription, "_on_status", lambda self, *a: on_status(*a))
        patch.setattr(PushSubscription, "_answer_flow", lambda self, reply: answer(reply))
        await until(lambda: beats >= 3)  # the server is stalled: it sends nothing else
        stalled_at = subscription.pending_messages
        assert stalled_at < 3000
        got = [int((await subscription.next(10)).data[:-4000]) for _ in range(3000)]
        assert got == list(range(3000))
        assert counted > 1
    await subscription.unsubscribe()


async def test_a_lost_flow_control_request_is_answered_when_heartbeats_repeat_it(
    stream: Stream, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[bytes] = []
    keep = PushSubscription._on_flow_request

    def lose_the_first(subscription: PushSubscription, reply: bytes) -> None:
        lost.append(reply)
        if len(lost) > 1:
            keep(subscription, reply)

    monkeypatch.setattr(PushSubscription, "_on_flow_request", lose_the_first)
    await publish(js, 3000, payload=bytes(4000))
    async with await js.subscribe("s.>", ack_policy="none", idle_heartbeat=0.1) as subscription:
        got = [int((await subscription.next(10)).data[:-4000]) for _ in range(3000)]
    assert got == list(range(3000))
    assert len(lost) > 1


async def test_messages_that_do_not_fit_are_dropped_counted_and_reported(
    stream: Stream, js: JetStream, url: str
) -> None:
    reported: list[Exception] = []
    async with penstock.connect(url, on_error=lambda _, error: reported.append(error)) as owner:
        subscription = await owner.jetstream().subscribe(
            "s.>", ack_policy="none", flow_control=False, idle_heartbeat=0, max_pending_messages=10
        )
        await publish(js, 25)
        await until(lambda: subscription.dropped == 15)
        assert subscription.pending_messages == 10
        assert [type(error) for error in reported] == [SlowConsumerError]
        assert await take_data(subscription, 10) == list(range(10))


async def take_data(subscription: PushSubscription, count: int) -> list[int]:
    return [int((await subscription.next(10)).data) for _ in range(count)]


async def test_a_deleted_consumer_ends_the_subscription(stream: Stream, js: JetStream) -> None:
    await publish(js, 2)
    subscription = await js.subscribe("s.>", durable="D", idle_heartbeat=0.1)
    await until(lambda: subscription.pending_messages == 2)
    await stream.delete_consumer("D")
    assert await take_data(subscription, 2) == [0, 1]
    with pytest.raises(ConsumerGoneError, match="consumer 'D' of stream 'S' was deleted"):
        await anext(subscription)


async def test_a_consumer_that_was_deleted_while_disconnected_ends_the_subscription(
    stream: Stream, js: JetStream, url: str
) -> None:
    async with penstock.connect(url, **FAST) as owner:
        subscription = await owner.jetstream().subscribe("s.>", idle_heartbeat=3600)
        await stream.delete_consumer(subscription.consumer_name)
        await owner.force_reconnect()
        with pytest.raises(ConsumerGoneError):
            await subscription.next(10)


async def test_lost_messages_are_reported_by_the_next_heartbeat(stream: Stream, js: JetStream) -> None:
    warnings: list[Exception] = []
    subscription = await js.subscribe("s.>", idle_heartbeat=0.1, on_warning=warnings.append)
    await publish(js, 1)
    assert await take(subscription, 1) == [0]
    receive = subscription._subscription.receive  # type: ignore[union-attr]
    subscription._subscription.receive = lambda raw: raw[4] or receive(raw)  # type: ignore[union-attr]
    await publish(js, 2, start=1)
    await until(lambda: bool(warnings))
    assert "2 messages of consumer" in str(warnings[0])
    await until(lambda: len(warnings) == 1)
    await subscription.unsubscribe()


# --- ordered ---------------------------------------------------------------------------------------


async def test_an_ordered_subscription_has_every_message_once(
    stream: Stream, js: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.push_subscription.REFUSED_WAIT_S", 0.01)
    await publish(js, 1000)
    async with await js.subscribe("s.>", ordered=True, idle_heartbeat=0.1) as subscription:
        got = await take_data(subscription, 500)
        await stream.delete_consumer(subscription.consumer_name)  # noticed by its missing heartbeats
        got += await take_data(subscription, 500)
        await publish(js, 10, start=1000)
        got += await take_data(subscription, 10)
        assert got == list(range(1010))
        receive = subscription._subscription.receive  # type: ignore[union-attr]
        subscription._subscription.receive = (  # type: ignore[union-attr]
            lambda raw: None if raw[4] == b"1011" else receive(raw)
        )
        await publish(js, 5, start=1010)
        assert await take_data(subscription, 5) == list(range(1010, 1015))
    assert await stream.consumer_names() == []


async def test_an_ordered_subscription_begins_where_it_should(stream: Stream, js: JetStream) -> None:
    await publish(js, 10)
    async with await js.subscribe(
        "s.>", ordered=True, deliver_policy="by_start_sequence", opt_start_seq=8
    ) as subscription:
        assert await take_data(subscription, 3) == [7, 8, 9]
    got: list[int] = []
    async with await js.subscribe(
        "s.>", ordered=True, callback=lambda msg: got.append(int(msg.data))
    ) as subscription:
        await until(lambda: len(got) == 10)
    assert got == list(range(10))


async def test_an_ordered_subscription_ends_with_its_stream(js: JetStream) -> None:
    stream = await js.create_stream("GONE", subjects=["gone"], storage="memory")
    subscription = await js.subscribe("gone", ordered=True, idle_heartbeat=0.1)
    await stream.delete()
    with pytest.raises(StreamNotFoundError):
        await subscription.next(20)


# --- other clients ---------------------------------------------------------------------------------


@pytest.fixture
async def theirs(url: str) -> AsyncIterator[nats.NATS]:
    connection = await nats.connect(url)
    yield connection
    await connection.close()


async def test_we_bind_to_a_consumer_that_nats_py_made(
    stream: Stream, js: JetStream, theirs: nats.NATS
) -> None:
    config = nats.js.api.ConsumerConfig(
        durable_name="THEIRS", deliver_subject="deliver.theirs", deliver_group="g", ack_policy="explicit"
    )
    await theirs.jetstream().add_consumer("S", config)
    await publish(js, 3)
    async with await js.bind("S", "THEIRS") as subscription:
        assert await take(subscription, 3) == [0, 1, 2]


async def test_nats_py_binds_to_a_consumer_that_we_made(
    stream: Stream, js: JetStream, theirs: nats.NATS
) -> None:
    ours = await js.subscribe("s.>", durable="OURS")
    await ours.unsubscribe()

    async def is_free() -> bool:
        return not (await ours.consumer_info()).push_bound

    await until(is_free)
    subscription = await theirs.jetstream().subscribe("s.>", durable="OURS")
    await publish(js, 3)
    for number in range(3):
        msg = await subscription.next_msg(timeout=5)
        assert int(msg.data) == number
        await msg.ack()


# --- lost connections ------------------------------------------------------------------------------

COUNT = 12


async def subscribed(js: JetStream, **options: Any) -> PushSubscription:
    """Repeats what a lost connection interrupted."""
    while True:
        try:
            return await js.subscribe("s.>", **options)
        except (ClientError, JetStreamError):
            await js.session.until_connected()
        except MisuseError:  # bound to the connection that was lost, as the server still believes
            await asyncio.sleep(0.01)


async def one_run(url: str, js: JetStream, *, ordered: bool, cut_after: int) -> list[str]:
    """Reads and acks COUNT messages through a proxy; the frames it forwarded."""
    async with frame_proxy(url, cut_after) as (proxy, proxy_url):
        options = {**FAST, "retry_on_failed_connect": True, "on_error": lambda *_: None}
        async with penstock.connect(proxy_url, **options, request_timeout=2) as owner:
            context = owner.jetstream(timeout=2)
            settings: dict[str, Any] = {"ordered": True} if ordered else {"durable": "D", "ack_wait": 0.1}
            subscription = await subscribed(context, **settings)
            got: list[int] = []
            async with asyncio.timeout(20):
                while len(set(got)) < COUNT:
                    msg = await subscription.next()
                    got.append(int(msg.data))
                    if not ordered:
                        await msg.ack()
            if ordered:
                assert got == list(range(COUNT))
            else:
                assert set(got) == set(range(COUNT))

                async def all_acked() -> bool:
                    try:
                        info = await subscription.consumer_info()
                    except (ClientError, JetStreamError):
                        return False
                    while subscription.pending_messages:  # delivered again: its ack was lost
                        await (await subscription.next()).ack()
                    return info.ack_floor.stream_seq == COUNT

                await until(all_acked)
            frames = list(proxy.frames)
        for name in await (await js.stream("S")).consumer_names():
            with contextlib.suppress(ConsumerNotFoundError):  # an ephemeral one may end by itself meanwhile
                await js.delete_consumer("S", name)
        return frames


@pytest.mark.parametrize("ordered", [False, True], ids=["durable", "ordered"])
async def test_no_message_is_missed_whatever_step_the_connection_is_cut_at(
    stream: Stream, js: JetStream, url: str, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.push_subscription.REFUSED_WAIT_S", 0.01)
    await publish(js, COUNT)
    # Timers decide how many frames a run has (PINGs, what is delivered again, requests for state): the steps
    # end with the first run that was over before its cut.
    fewest = 4 + COUNT * (1 if ordered else 2)  # of the handshake, of deliveries and of their acks
    for cut_after in itertools.count(1):
        frames = await one_run(url, js, ordered=ordered, cut_after=cut_after)
        if len(frames) < cut_after:
            break
    assert frames[:4] == ["< INFO", "> CONNECT", "> PING", "< PONG"]
    assert frames.count("< MSG") + frames.count("< HMSG") >= COUNT
    assert len(frames) >= fewest
