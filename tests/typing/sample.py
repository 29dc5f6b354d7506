"""A program that uses every public call of the client; tests/unit/client/test_types.py has mypy check it.

It is never run. Without `async` and `await` it is the sample of penstock.sync.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import penstock.client
from penstock.client import (
    AccountInfo,
    AtomicBatch,
    Client,
    ClientState,
    ClientStats,
    Codec,
    Consume,
    Consumer,
    ConsumerConfig,
    ConsumerInfo,
    FastIngest,
    FastPublisher,
    JetStream,
    JsMsg,
    KeyLease,
    KeyValue,
    KeyValueConfig,
    KeyValueEntry,
    KeyValueStatus,
    Msg,
    ObjectInfo,
    ObjectStore,
    OrderedConsumer,
    PriorityOptions,
    PubAck,
    Publisher,
    PushSubscription,
    ServerInfo,
    Service,
    ServiceMsg,
    StorageType,
    StoredMessage,
    Stream,
    StreamConfig,
    StreamInfo,
    Subscription,
)
from penstock.protocol.api import StreamNamesResponse


@dataclass
class Order:
    fruit: str
    count: int


def on_event(client: Client) -> None:
    print(client.state)


def on_error(client: Client, error: Exception) -> None:
    print(client.last_error, error)


async def connecting() -> None:
    async with penstock.client.connect(
        ["nats://a:4222", "nats://b:4222"],
        name="sample",
        user="joe",
        password=lambda: "secret",
        reconnect_wait=0.5,
        max_reconnects=None,
        retry_on_failed_connect=True,
        on_connected=on_event,
        on_error=on_error,
        on_disconnected=on_error,
    ) as client:
        await use_client(client)
    made = await penstock.client.connect()
    await made.drain(timeout=1)
    await made.close()


async def use_client(client: Client) -> None:
    assert_type(client.state, ClientState)
    assert_type(client.stats, ClientStats)
    assert_type(client.server_info, ServerInfo)
    assert_type(client.connected_url, str | None)
    print(
        client.is_connected, client.is_closed, client.options.name, client.max_payload, client.pending_bytes
    )
    print(client.servers, client.discovered_servers, client.new_inbox())
    client.add_servers("nats://c:4222")
    client.set_servers("nats://d:4222")
    await client.publish("a.b", b"payload", reply="inbox", headers={"Name": "value"})
    assert_type(await client.publish_many("a.b", [b"1", "2"], reply="inbox", headers={"Name": "value"}), int)
    await client.flush(timeout=1)
    assert_type(await client.rtt(), float)
    await client.wait_connected()
    await client.force_reconnect()
    assert_type(await client.request("a", "text", timeout=1, headers=[("Name", "value")]), Msg)
    async for answer in client.request_many(
        "a", max_messages=3, stall=0.1, sentinel=lambda msg: not msg.data
    ):
        assert_type(answer, Msg)
    subscription = await client.subscribe("a.>", queue="q", max_pending_messages=10, max_pending_bytes=1000)
    assert_type(subscription, Subscription)
    await use_subscription(subscription)
    service = await client.add_service("orders", "1.0.0", description="", metadata={"a": "b"})
    await use_service(service)
    services = client.services()
    async for pong in services.ping("orders"):
        print(pong.id)
    async for info in services.info():
        print(info.endpoints)
    async for stats in services.stats("orders", "ID"):
        print(stats.started)
    assert_type(await services.request("orders.new", b""), Msg)
    await use_jetstream(client.jetstream(domain="hub", timeout=5))


async def use_subscription(subscription: Subscription) -> None:
    async for msg in subscription:
        assert_type(msg.data, bytes)
        print(msg.subject, msg.reply, msg.headers.get("Name"), msg.status, msg.raw)
        await msg.respond(b"answer", headers={"a": "b"})
    assert_type(await subscription.next(timeout=1), Msg)
    assert_type(await subscription.next_many(10, timeout=1), list[Msg])
    print(
        subscription.pending_messages, subscription.pending_bytes, subscription.closed, subscription.dropped
    )
    print(subscription.subject, subscription.queue, subscription.received, subscription.max_messages)
    await subscription.unsubscribe(max_messages=3)
    await subscription.drain(timeout=1)


async def use_service(service: Service) -> None:
    group = service.group("v1", queue="")

    def handle(request: ServiceMsg) -> bytes:
        print(request.has_responded, request.error)
        return request.data

    async def refuse(request: ServiceMsg) -> None:
        await request.respond_error(404, "not found", b"data")
        await request.respond(b"")

    endpoint = await group.add_endpoint("new", handle, subject="new.*", concurrency=4)
    print(endpoint.stats().num_requests, endpoint.info.subject)
    endpoint.reset()
    await service.add_endpoint("refuse", refuse)
    service.endpoint("other")(handle)
    print(service.name, service.version, service.id, service.description, service.is_stopped)
    print(service.info().endpoints, service.ping().id, service.stats().endpoints)
    service.reset()
    await service.stop()
    assert_type(await service.done(), Exception | None)


async def use_jetstream(js: JetStream) -> None:
    print(js.prefix, js.timeout)
    assert_type(await js.account_info(), AccountInfo)
    ack = await js.publish("orders.new", b"x", msg_id="1", expected_stream="ORDERS", ttl=60, timeout=1)
    assert_type(ack, PubAck)
    await js.publish("orders.new", b"x", delay=timedelta(hours=1))
    stream = await js.create_stream(
        "ORDERS",
        subjects=["orders.>"],
        storage="memory",
        retention="workqueue",
        max_age=timedelta(days=1),
        duplicate_window=120,
        allow_direct=True,
    )
    assert_type(stream, Stream)
    await js.update_stream("ORDERS", max_msgs=5, storage=StorageType.FILE)
    await js.create_or_update_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
    assert_type(await js.stream("ORDERS"), Stream)
    assert_type(await js.stream_info("ORDERS"), StreamInfo)
    assert_type(await js.stream_names("orders.>"), list[str])
    async for one in js.streams():
        assert_type(one, StreamInfo)
    assert_type(await js.call(StreamNamesResponse, "STREAM.NAMES"), StreamNamesResponse)
    await js.create_consumer("ORDERS", "billing", ack_wait=timedelta(seconds=30), backoff=[1, 2, 3])
    await js.update_consumer("ORDERS", "billing", max_deliver=3)
    await js.create_or_update_consumer("ORDERS", ConsumerConfig(name="c"), ack_policy="all")
    await use_consumer(await js.consumer("ORDERS", "billing"))
    await js.delete_consumer("ORDERS", "billing")
    push = await js.subscribe("orders.>", durable="d", callback=lambda msg: msg.ack(), deliver_policy="new")
    await use_push(push)
    assert_type(await js.bind("ORDERS", "d", auto_ack=False), PushSubscription)
    await use_publishing(js)
    await use_stream(stream)
    await use_key_values(js)
    await use_object_stores(js)
    await js.delete_stream("ORDERS")


async def use_push(push: PushSubscription) -> None:
    async for msg in push:
        assert_type(msg, JsMsg)
    assert_type(await push.next(1), JsMsg)
    assert_type(await push.next_many(5), list[JsMsg])
    assert_type(await push.consumer_info(), ConsumerInfo)
    print(push.stream_name, push.consumer_name, push.dropped, push.pending_messages, push.pending_bytes)
    print(push.closed)
    await push.drain()
    await push.unsubscribe()


async def use_publishing(js: JetStream) -> None:
    publisher = js.publisher(window=100, timeout=1)
    assert_type(publisher, Publisher)
    async with publisher:
        pending = await publisher.publish("orders.new", b"", msg_id="2")
        print(pending.subject_text, publisher.pending, publisher.acked, publisher.failed, pending.done())
        await publisher.flush()
        assert_type(pending.result(), PubAck)
        print(pending.exception())
    assert_type(await js.publish_arrow(object(), "orders.new", window=100), int)
    fast = js.publisher(fast=True)
    assert_type(fast, FastPublisher)
    async with fast:
        print((await fast.publish("orders.new", b"")).seq, fast.pending, fast.acked, fast.failed)
        await fast.flush()
    async with js.atomic_batch(ack_every=10) as batch:
        assert_type(batch, AtomicBatch)
        await batch.add("orders.new", b"", expected_last_sequence=1)
        await batch.add_many([b"1", b"2"], "orders.new")
        assert_type(await batch.commit("orders.new", b""), PubAck)
        assert_type(await batch.commit_eob(), PubAck)
        batch.abort()
        print(batch.id, batch.size)
    async with js.fast_ingest("orders.new", gap="ok", on_gap=print, on_error=print) as ingest:
        assert_type(ingest, FastIngest)
        print(await ingest.add(payload=b""), ingest.acked, ingest.sent, ingest.gaps, ingest.id)
        await ingest.add_many([b""])
        assert_type(await ingest.commit(), PubAck)
        await ingest.commit_eob()
        ingest.abort()


async def use_stream(stream: Stream) -> None:
    print(stream.name, stream.cached_info.state.messages, stream.config.max_age)
    assert_type(await stream.info(subjects_filter=">", deleted_details=True), StreamInfo)
    assert_type(await stream.purge("orders.old", keep=1), int)
    assert_type(await stream.get_message(1, direct=True), StoredMessage)
    assert_type(await stream.get_last_message("orders.new"), StoredMessage)
    async for stored in stream.get_messages(1, subject="orders.>", max_messages=5):
        print(stored.seq, stored.time)
    async for stored in stream.get_last_messages(["orders.>"], up_to_seq=5):
        print(stored.data)
    print(await stream.to_arrow(columns=["data"], filter_subject="orders.new"))
    async for batch in stream.arrow_batches(end_seq=10, max_rows=100):
        print(batch.num_rows)
    await stream.delete_message(1, erase=True)
    async for schedule in stream.schedules():
        await stream.cancel_schedule(schedule)
    assert_type(await stream.create_consumer("billing", filter_subjects=["a", "b"]), Consumer)
    await stream.update_consumer("billing", ack_wait=5)
    await stream.create_or_update_consumer(deliver_policy="by_start_time", opt_start_time=datetime.now(UTC))
    await stream.consumer("billing")
    assert_type(await stream.consumer_info("billing"), ConsumerInfo)
    async for info in stream.consumers():
        print(info.num_pending)
    assert_type(await stream.consumer_names(), list[str])
    print((await stream.pause_consumer("billing", datetime.now(UTC))).pause_remaining)
    await stream.resume_consumer("billing")
    await stream.delete_consumer("billing")
    await use_ordered(stream.ordered_consumer(filter_subject="orders.>", deliver_policy="last_per_subject"))
    await stream.delete()


async def use_consumer(consumer: Consumer) -> None:
    print(consumer.name, consumer.stream_name, consumer.cached_info.num_pending)
    assert_type(await consumer.info(), ConsumerInfo)
    for msg in await consumer.fetch(10, expires=1, no_wait=True, priority=PriorityOptions(group="a")):
        await use_message(msg)
    async with consumer.fetch_bytes(1000) as fetch:
        async for msg in fetch:
            assert_type(msg, JsMsg)
        fetch.stop()
    assert_type(await consumer.next(expires=1), JsMsg)
    async with consumer.consume(max_messages=10, on_warning=print) as consume:
        assert_type(consume, Consume)
        async for msg in consume:
            print(msg.seq, consume.buffered)
        await consume.drain()
        consume.stop()
    async for msg in consumer.messages(max_bytes=1000):
        assert_type(msg, JsMsg)
    async for batch in consumer.arrow_batches(columns=["seq"], max_wait=0.1, idle=1, ack=False):
        print(batch.num_rows)
    assert_type(await consumer.reset(1), int)
    await consumer.unpin("a")
    await consumer.delete()


async def use_message(msg: JsMsg) -> None:
    print(msg.seq, msg.time, msg.metadata.consumer_seq, msg.is_settled)
    await msg.ack()
    await msg.ack_sync(timeout=1)
    await msg.nak(timedelta(seconds=1))
    await msg.term("reason")
    await msg.in_progress()
    orders = Codec(Order)
    order = orders.decode(msg)
    assert_type(order, Order)
    await msg.respond(orders.encode(order))


async def use_ordered(ordered: OrderedConsumer) -> None:
    assert_type(await ordered.fetch(5), list[JsMsg])
    assert_type(await ordered.next(), JsMsg)
    async with ordered.consume() as consume:
        async for msg in consume:
            print(msg.data)
    async for msg in ordered.messages():
        print(msg.seq, ordered.last_seq)
    await ordered.close()


async def use_key_values(js: JetStream) -> None:
    kv = await js.create_key_value("SETTINGS", history=5, ttl=timedelta(days=1), storage="memory")
    await js.update_key_value("SETTINGS", description="new")
    await js.create_or_update_key_value(KeyValueConfig(bucket="SETTINGS"))
    assert_type(await js.key_value("SETTINGS"), KeyValue)
    assert_type(await js.key_value_names(), list[str])
    async for status in js.key_value_statuses():
        assert_type(status, KeyValueStatus)
    print(kv.bucket, kv.config.history, kv.stream.name, kv.js.prefix)
    entry = await kv.get("key", 1, direct=True)
    assert_type(entry, KeyValueEntry)
    assert_type(await kv.put("key", b"value", ttl=60), int)
    await kv.create("key", "value", ttl=timedelta(seconds=1))
    await kv.update("key", b"", last_revision=entry.revision)
    await kv.delete("key", last_revision=1)
    await kv.purge("key", ttl=60)
    assert_type(await kv.get_many(["a", "b"]), dict[str, KeyValueEntry])
    assert_type(await kv.history("key"), list[KeyValueEntry])
    async for key in kv.keys("a.*"):
        assert_type(key, str)
    assert_type(await kv.purge_deletes(older_than=60), int)
    print((await kv.status()).values)
    async with kv.watch("a.>", ignore_deletes=True) as watch:
        assert_type(await watch.initial(), list[KeyValueEntry])
        async for change in watch:
            assert_type(change, KeyValueEntry | None)
        print(watch.is_initial_done)
        await watch.stop()
    async with kv.batch() as batch:
        batch.put("a", b"")
        batch.create("b", b"")
        batch.update("c", b"", last_revision=1)
        batch.delete("d")
        batch.purge("e")
        print(batch.revisions)
    async with kv.lock("lock", ttl=10, holder="me", timeout=5) as lease:
        await use_lease(lease)
    await use_lease(await kv.lease("lock", ttl=10))
    async with kv.elect("leader", "me", ttl=10) as election:
        print(election.candidate, election.is_leader, election.lease, await election.leader())
        await use_lease(await election.until_leader())
        async for name in election.leaders():
            assert_type(name, str | None)
    await js.delete_key_value("SETTINGS")


async def use_lease(lease: KeyLease) -> None:
    lease.check()
    print(lease.key, lease.holder, lease.token, lease.is_held, lease.lost)
    await lease.release()
    await lease.until_ended()


async def chunks() -> AsyncIterator[bytes]:
    yield b"chunk"


async def use_object_stores(js: JetStream) -> None:
    store = await js.create_object_store("FILES", description="files")
    await js.update_object_store("FILES", metadata={"a": "b"})
    await js.create_or_update_object_store("FILES")
    assert_type(await js.object_store("FILES"), ObjectStore)
    assert_type(await js.object_store_names(), list[str])
    async for status in js.object_store_statuses():
        print(status.bucket)
    print(store.bucket, store.config.description, store.stream.name, store.js.timeout, await store.status())
    info = await store.put("a", chunks(), chunk_size=1000, progress=print)
    assert_type(info, ObjectInfo)
    await store.put("b", Path("file"), headers={"a": "b"}, metadata={"c": "d"})
    assert_type(await store.get("a", offset=1, length=2), bytes)
    await store.get_to_file("a", Path("copy"))
    async with store.open("a") as reader:
        async for chunk in reader:
            assert_type(chunk, bytes)
        print(reader.info.size, await reader.read(), await reader.write_to(Path("copy")))
    await store.info("a", show_deleted=True)
    async for info in store.list():
        print(info.name)
    async with store.watch(updates_only=True) as watch:
        print(await watch.initial(), watch.is_initial_done)
        async for change in watch:
            assert_type(change, ObjectInfo | None)
        await watch.stop()
    await store.update("a", description="new")
    await store.rename("a", "b")
    await store.add_link("link", info)
    await store.add_bucket_link("other", store)
    await store.delete("a")
    await store.seal()
    await js.delete_object_store("FILES")
