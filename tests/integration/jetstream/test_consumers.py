"""Consumers through a server, used by nats-py: what its pull, push, KV and object APIs rely on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig

from penstock.testing.embedded import EmbeddedServer
from tests.support.nats_servers import until
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("connectivity.third-party-clients")

WAIT_S = 5.0


@pytest_asyncio.fixture
async def client(nats_server: EmbeddedServer) -> AsyncIterator[Client]:
    connection = await nats.connect(nats_server.url, allow_reconnect=False)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def js(client: Client) -> JetStreamContext:
    context = client.jetstream()
    await context.add_stream(name="S", subjects=["s.>"])
    for i in range(100):
        await context.publish(f"s.{i % 4}", b"%d" % i)
    return context


async def test_fetch_ack_and_nak(js: JetStreamContext) -> None:
    pull = await js.pull_subscribe("s.>", durable="d")
    messages = await pull.fetch(20, timeout=WAIT_S)
    assert [message.metadata.sequence.stream for message in messages] == list(range(1, 21))
    assert messages[0].metadata.num_pending == 99
    for message in messages[:10]:
        await message.ack()
    await messages[10].ack_sync()
    await messages[11].nak()
    info = await pull.consumer_info()
    assert (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (11, 9, 80)
    [again] = await pull.fetch(1, timeout=WAIT_S)
    assert (again.metadata.sequence.stream, again.metadata.num_delivered) == (12, 2)


async def test_fetching_more_than_there_is_gives_what_there_is(js: JetStreamContext) -> None:
    pull = await js.pull_subscribe("s.1", durable="d")
    assert len(await pull.fetch(100, timeout=0.3)) == 25
    with pytest.raises(nats.errors.TimeoutError):
        await pull.fetch(1, timeout=0.1)


@pytest.mark.feature("consumer.shared-pull")
async def test_many_pulls_share_a_consumer(client: Client, js: JetStreamContext) -> None:
    pulls = [await js.pull_subscribe("s.>", durable="d") for _ in range(4)]
    waiting = [asyncio.create_task(pull.fetch(25, timeout=WAIT_S)) for pull in pulls]
    got = [
        message.metadata.sequence.stream
        for messages in await asyncio.gather(*waiting)
        for message in messages
    ]
    assert sorted(got) == list(range(1, 101))


async def test_push_with_a_callback_acks_by_itself(js: JetStreamContext) -> None:
    got: list[bytes] = []

    async def take(message: Any) -> None:
        got.append(message.data)

    subscription = await js.subscribe("s.>", cb=take, durable="d")

    async def all_acked() -> bool:
        info = await subscription.consumer_info()
        return len(got) == 100 and info.num_ack_pending == 0 and info.ack_floor.stream_seq == 100

    await until(all_acked)
    assert got == [b"%d" % i for i in range(100)]


@pytest.mark.feature("consumer.ordered")
async def test_an_ordered_consumer_gets_everything_in_order(js: JetStreamContext) -> None:
    subscription = await js.subscribe("s.>", ordered_consumer=True)
    got = [(await subscription.next_msg(timeout=WAIT_S)).data for _ in range(100)]
    assert got == [b"%d" % i for i in range(100)]
    await js.publish("s.new", b"new")
    assert (await subscription.next_msg(timeout=WAIT_S)).data == b"new"


@pytest.mark.feature("consumer.flow-control", "consumer.idle-heartbeat")
async def test_flow_control_and_heartbeats_carry_a_long_delivery(js: JetStreamContext) -> None:
    body = os.urandom(200_000)
    for _ in range(40):
        await js.publish("s.big", body)
    config = ConsumerConfig(flow_control=True, idle_heartbeat=0.2)
    subscription = await js.subscribe("s.big", config=config)
    for _ in range(40):
        assert (await subscription.next_msg(timeout=WAIT_S)).data == body


async def test_members_of_a_queue_share_a_durable(js: JetStreamContext) -> None:
    members = [await js.subscribe("s.later", queue="q", durable="q") for _ in range(3)]
    for _ in range(90):
        await js.publish("s.later", b"")
    await until(lambda: sum(member.pending_msgs for member in members) == 90)
    assert all(member.pending_msgs > 10 for member in members)


@pytest.mark.feature("key-value.watch")
async def test_kv_watch_sees_the_present_and_then_the_changes(client: Client) -> None:
    kv = await client.jetstream().create_key_value(bucket="b", history=3)
    for key in ("one", "two", "one"):
        await kv.put(key, key.encode())
    watcher = await kv.watchall()
    seen = []
    while (entry := await watcher.updates(timeout=WAIT_S)) is not None:
        seen.append((entry.key, entry.revision))
    assert seen == [("two", 2), ("one", 3)]
    await kv.delete("two")
    change = await watcher.updates(timeout=WAIT_S)
    assert (change.key, change.operation) == ("two", "DEL")
    await watcher.stop()
    assert [entry.revision for entry in await kv.history("one")] == [1, 3]
    assert await kv.keys() == ["one"]


@pytest.mark.feature("key-value.watch")
async def test_watching_an_empty_bucket_says_so(client: Client) -> None:
    kv = await client.jetstream().create_key_value(bucket="empty")
    watcher = await kv.watchall()
    assert await watcher.updates(timeout=WAIT_S) is None
    await watcher.stop()


@pytest.mark.feature("object-store.put-get", "consumer.ordered")
async def test_an_object_is_read_back_through_an_ordered_consumer(client: Client) -> None:
    store = await client.jetstream().create_object_store("o")
    body = os.urandom(1_000_000)
    await store.put("name", body)
    assert (await store.get("name")).data == body


async def test_messages_and_statuses_come_on_the_inbox_under_their_own_subjects(
    client: Client, js: JetStreamContext
) -> None:
    await js.add_consumer("S", ConsumerConfig(name="raw", filter_subject="s.3"))
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    body = json.dumps({"batch": 30, "no_wait": True}).encode()
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.raw", body, reply=inbox)
    messages = [await subscription.next_msg(timeout=WAIT_S) for _ in range(26)]
    assert {message.subject for message in messages[:25]} == {"s.3"}
    assert messages[25].subject == inbox
    assert messages[25].headers["Status"] == "404"


@pytest.mark.feature("consumer.recovery")
async def test_a_consumer_goes_on_at_its_floor_after_a_restart(
    nats_server_factory: Callable[..., EmbeddedServer], tmp_path: Path
) -> None:
    first = nats_server_factory(jetstream=True, store_dir=tmp_path)
    connection = await nats.connect(first.url)
    context = connection.jetstream()
    await context.add_stream(name="S", subjects=["s.>"])
    for i in range(10):
        await context.publish("s.1", b"%d" % i)
    pull = await context.pull_subscribe("s.>", durable="d", config=ConsumerConfig(ack_wait=1.0))
    for message in (await pull.fetch(5, timeout=WAIT_S))[:3]:
        await message.ack_sync()
    await connection.close()
    first.stop()

    second = nats_server_factory(jetstream=True, store_dir=tmp_path)
    connection = await nats.connect(second.url)
    pull = await connection.jetstream().pull_subscribe_bind("d", stream="S")
    info = await pull.consumer_info()
    assert (info.ack_floor.stream_seq, info.delivered.stream_seq, info.num_ack_pending) == (3, 5, 2)
    got: dict[int, int] = {}
    while len(got) < 7:
        for message in await pull.fetch(10, timeout=WAIT_S):
            got[message.metadata.sequence.stream] = message.metadata.num_delivered
            await message.ack()
    assert got == {4: 2, 5: 2, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1}
    await connection.close()


def test_a_stopping_server_ends_waiting_pulls(nats_server_factory: Callable[..., EmbeddedServer]) -> None:
    server = nats_server_factory(jetstream=True)
    raw = RawNats(server.port)
    raw.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    raw.request("$JS.API.CONSUMER.CREATE.S.d", {"stream_name": "S", "config": {"durable_name": "d"}})
    raw.subscribe("in", 9)
    raw.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b"5", reply="in")
    raw.flush()
    server.stop()
    status = raw.message()
    assert status.sid == b"9"
    assert status.header.startswith(b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 5\r\n")
    raw.close()
