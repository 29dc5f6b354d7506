"""The official Python client against penstock: what its users do, from pub/sub to the object store.

Each scenario runs against the official server as well, where there is one, so that a scenario which
fails tells on whose side the fault is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.testing import server as penstock_server
from tests.support.nats_servers import KINDS, running_server

pytestmark = pytest.mark.feature("connectivity.third-party-clients")

WAIT_S = 5.0


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        yield server.url


@pytest.fixture
async def nc(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url, connect_timeout=5)
    yield client
    js = client.jetstream()
    for stream in await js.streams_info():
        await js.delete_stream(str(stream.config.name))
    await client.close()


# -- core


async def test_publish_and_subscribe_with_headers_and_wildcards(nc: Client) -> None:
    one = await nc.subscribe("time.*.east")
    many = await nc.subscribe("time.>")
    await nc.publish("time.us.east", b"1", headers={"A": "b"})
    await nc.publish("time.us.east.atlanta", b"2")
    assert (await one.next_msg(WAIT_S)).headers == {"A": "b"}
    assert [(await many.next_msg(WAIT_S)).data for _ in range(2)] == [b"1", b"2"]
    with pytest.raises(nats.errors.TimeoutError):
        await one.next_msg(0.05)
    await one.unsubscribe()
    await nc.publish("time.us.east", b"3")
    assert (await many.next_msg(WAIT_S)).data == b"3"


async def test_requests_and_no_responders(nc: Client) -> None:
    async def respond(message: Msg) -> None:
        await message.respond(b"pong " + message.data)

    await nc.subscribe("svc", cb=respond)
    answers = await asyncio.gather(*(nc.request("svc", b"%d" % n, timeout=WAIT_S) for n in range(50)))
    assert [answer.data for answer in answers] == [b"pong %d" % n for n in range(50)]
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody", b"", timeout=WAIT_S)


async def test_each_message_goes_to_one_member_of_a_queue_group(nc: Client) -> None:
    got: list[list[bytes]] = [[], [], []]

    def member(mine: list[bytes]) -> object:
        async def take(message: Msg) -> None:
            mine.append(message.data)

        return take

    for mine in got:
        await nc.subscribe("work", "group", cb=member(mine))
    watcher = await nc.subscribe("work")
    for n in range(300):
        await nc.publish("work", b"%d" % n)
    for _ in range(300):
        await watcher.next_msg(WAIT_S)
    await nc.flush()
    assert sorted(int(data) for mine in got for data in mine) == list(range(300))
    assert all(mine for mine in got)


async def test_a_subscription_ends_after_its_maximum_and_drains(nc: Client) -> None:
    limited = await nc.subscribe("limited")
    await limited.unsubscribe(limit=3)
    for n in range(5):
        await nc.publish("limited", b"%d" % n)
    assert [(await limited.next_msg(WAIT_S)).data for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises((nats.errors.BadSubscriptionError, nats.errors.TimeoutError)):
        await limited.next_msg(0.05)


async def test_a_large_message_arrives_whole_and_a_larger_one_is_refused(nc: Client) -> None:
    sub = await nc.subscribe("large")
    await nc.publish("large", b"x" * nc.max_payload)
    assert len((await sub.next_msg(WAIT_S)).data) == nc.max_payload
    with pytest.raises(nats.errors.MaxPayloadError):
        await nc.publish("large", b"x" * (nc.max_payload + 1))


async def test_clients_reconnect_and_keep_their_subscriptions(tmp_path: Path) -> None:
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    with penstock_server() as first:
        port = first.port
        client = await nats.connect(first.url, reconnect_time_wait=0.05, reconnected_cb=reconnected)
        sub = await client.subscribe("a")
        await client.flush()
    with penstock_server(port=port):
        await asyncio.wait_for(back.wait(), WAIT_S)
        await client.publish("a", b"again")
        assert (await sub.next_msg(WAIT_S)).data == b"again"
        await client.close()


# -- streams and consumers


async def test_life_of_a_stream(nc: Client) -> None:
    js = nc.jetstream()
    created = await js.add_stream(name="LIFE", subjects=["life.>"], max_msgs=5)
    assert created.config.subjects == ["life.>"]
    acks = [await js.publish(f"life.{n}", b"%d" % n) for n in range(7)]
    assert [ack.seq for ack in acks] == list(range(1, 8))
    state = (await js.stream_info("LIFE")).state
    assert (state.messages, state.first_seq, state.last_seq) == (5, 3, 7)
    assert await js.find_stream_name_by_subject("life.x") == "LIFE"
    await js.update_stream(name="LIFE", subjects=["life.>", "more"], max_msgs=3)
    assert (await js.stream_info("LIFE")).state.first_seq == 5
    assert (await js.get_msg("LIFE", 6)).data == b"5"
    assert (await js.get_last_msg("LIFE", "life.6")).seq == 7
    await js.delete_msg("LIFE", 6)
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.get_msg("LIFE", 6)
    await js.purge_stream("LIFE", subject="life.4")
    assert (await js.stream_info("LIFE")).state.messages == 1
    await js.delete_stream("LIFE")
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.stream_info("LIFE")
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("life.1", b"")


async def test_a_message_id_is_stored_once_and_expectations_hold(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="ONCE", subjects=["once"])
    first = await js.publish("once", b"1", headers={"Nats-Msg-Id": "a"})
    second = await js.publish("once", b"1", headers={"Nats-Msg-Id": "a"})
    assert (first.seq, first.duplicate, second.seq, second.duplicate) == (1, None, 1, True)
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish("once", b"2", headers={"Nats-Expected-Last-Sequence": "7"})
    assert caught.value.err_code == 10071


async def test_life_of_a_consumer(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="CONS", subjects=["cons.>"])
    for n in range(4):
        await js.publish(f"cons.{n % 2}", b"%d" % n)
    config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.EXPLICIT, filter_subject="cons.1")
    info = await js.add_consumer("CONS", config)
    assert (info.name, info.num_pending) == ("d", 2)
    assert [consumer.name for consumer in await js.consumers_info("CONS")] == ["d"]
    assert (await js.consumer_info("CONS", "d")).config.filter_subject == "cons.1"
    assert await js.delete_consumer("CONS", "d") is True
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.consumer_info("CONS", "d")


async def test_pull_with_fetch_acks_naks_and_resumes(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="PULL", subjects=["pull"])
    for n in range(10):
        await js.publish("pull", b"%d" % n)
    sub = await js.pull_subscribe("pull", "worker")
    first = await sub.fetch(4, timeout=WAIT_S)
    assert [message.data for message in first] == [b"0", b"1", b"2", b"3"]
    await first[0].ack_sync()
    await first[1].nak()
    await first[2].term()
    await first[3].ack()
    resumed = await js.pull_subscribe("pull", "worker")
    rest: list[Msg] = []
    while len(rest) < 7:
        rest += await resumed.fetch(7 - len(rest), timeout=WAIT_S)
    # The one that was refused comes again (when, is the server's business), the one given up doesn't.
    assert sorted(message.data for message in rest) == [b"1", *(b"%d" % n for n in range(4, 10))]
    assert {message.data: message.metadata.num_delivered for message in rest}[b"1"] == 2
    for message in rest:
        await message.ack_sync()
    assert (await sub.consumer_info()).ack_floor.stream_seq == 10
    assert (await sub.consumer_info()).num_ack_pending == 0
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.2)


async def test_push_with_callbacks_queue_and_ordered_consumers(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="PUSH", subjects=["push.>"])
    for n in range(20):
        await js.publish(f"push.{n}", b"%d" % n)
    got: list[bytes] = []
    everything = asyncio.Event()

    async def take(message: Msg) -> None:
        got.append(message.data)
        if len(got) == 20:
            everything.set()

    await js.subscribe("push.*", durable="pusher", cb=take)
    await asyncio.wait_for(everything.wait(), WAIT_S)
    assert got == [b"%d" % n for n in range(20)]
    ordered = await js.subscribe("push.>", ordered_consumer=True)
    assert [(await ordered.next_msg(WAIT_S)).metadata.sequence.stream for _ in range(20)] == list(
        range(1, 21)
    )
    last = await js.subscribe("push.>", deliver_policy=DeliverPolicy.LAST)
    assert (await last.next_msg(WAIT_S)).data == b"19"
    members = [await js.subscribe("push.>", "team", durable="team") for _ in range(2)]

    async def all_of(member: object) -> list[bytes]:
        mine = []
        try:
            while True:
                message = await member.next_msg(0.5)  # type: ignore[attr-defined]
                mine.append(message.data)
                await message.ack()
        except nats.errors.TimeoutError:
            return mine

    shares = await asyncio.gather(*(all_of(member) for member in members))
    assert sorted(int(data) for mine in shares for data in mine) == list(range(20))


async def test_an_unacked_message_comes_again_after_ack_wait(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="AGAIN", subjects=["again"])
    await js.publish("again", b"x")
    sub = await js.pull_subscribe("again", "d", config=ConsumerConfig(ack_wait=0.2, max_deliver=3))
    for expected in (1, 2, 3):
        (message,) = await sub.fetch(1, timeout=WAIT_S)
        assert message.metadata.num_delivered == expected
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.5)


async def test_many_publishes_in_flight_are_all_acked_in_order(nc: Client) -> None:
    js = nc.jetstream()
    await js.add_stream(name="MANY", subjects=["many"])
    futures = [await js.publish_async("many", b"%d" % n) for n in range(2000)]
    acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 2001))


# -- key-value and object store


@pytest.mark.feature(
    "key-value.buckets",
    "key-value.operations",
    "key-value.create-update",
    "key-value.history",
    "key-value.keys",
)
async def test_key_value_put_get_update_delete_and_history(nc: Client) -> None:
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="kv", history=5)
    assert await kv.put("a", b"1") == 1
    assert await kv.put("a", b"2") == 2
    entry = await kv.get("a")
    assert (entry.value, entry.revision) == (b"2", 2)
    assert (await kv.get("a", revision=1)).value == b"1"
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await kv.update("a", b"x", last=1)
    assert await kv.update("a", b"3", last=2) == 3
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await kv.create("a", b"x")
    await kv.create("b.c", b"4")
    assert sorted(await kv.keys()) == ["a", "b.c"]
    await kv.delete("a")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await kv.get("a")
    assert [entry.operation for entry in await kv.history("a")][-1] == "DEL"
    await kv.purge("a")
    assert [entry.operation for entry in await kv.history("a")] == ["PURGE"]
    status = await kv.status()
    assert (status.bucket, status.history) == ("kv", 5)
    assert await js.delete_key_value("kv")


@pytest.mark.feature("key-value.watch")
async def test_key_value_watch(nc: Client) -> None:
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="watched")
    await kv.put("a", b"1")
    watcher = await kv.watch("*")
    entry = await watcher.updates(timeout=WAIT_S)
    assert (entry.key, entry.value) == ("a", b"1")
    assert await watcher.updates(timeout=WAIT_S) is None  # all there was
    await kv.put("b", b"2")
    await kv.delete("a")
    changes = [await watcher.updates(timeout=WAIT_S) for _ in range(2)]
    assert [(change.key, change.operation) for change in changes] == [("b", None), ("a", "DEL")]
    await watcher.stop()


@pytest.mark.feature("object-store.put-get", "object-store.operations")
async def test_object_store_put_get_list_and_delete(nc: Client) -> None:
    js = nc.jetstream()
    store = await js.create_object_store("objects")
    data = os.urandom(700_000)
    info = await store.put("big", data)
    assert (info.size, info.chunks) == (len(data), 6)
    assert (await store.get("big")).data == data
    await store.put("big", b"smaller")
    assert (await store.get("big")).data == b"smaller"
    await store.put("other", b"")
    assert sorted(str(entry.name) for entry in await store.list()) == ["big", "other"]
    await store.delete("big")
    with pytest.raises((nats.js.errors.ObjectNotFoundError, nats.js.errors.NotFoundError)):
        await store.get("big")
    await js.delete_object_store("objects")
