"""penstock's client without async, beside its async one and beside nats-py; and a stream into an Arrow table.

As in clients.py, both run in this process, in turn, on one server. Calls without async block the thread in
which the benchmark's own event loop waits, and run on the loop of `penstock.sync` in another one.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import replace

import nats
from clients import (
    BUCKET,
    KEYS,
    MEBIBYTE,
    MEGABYTE,
    OBJECT_BYTES,
    PUTS,
    VALUE,
    ClientServer,
    Measure,
    content,
    either,
    object_get_ours,
    object_get_theirs,
    object_put_ours,
    object_put_theirs,
    put_ours,
    put_theirs,
)
from core_clients import BODY, FETCH, fetch_ours, fetch_theirs, publish_ours, publish_theirs, stored_ours
from rows import Scenario
from servers import ServerProcess

import penstock.client
import penstock.sync
from penstock.errors import BucketNotFoundError, StreamNotFoundError

MESSAGES = 200_000
STORED = 50_000
GETS = 5_000
TABLE_ROWS = 1_000_000
ONE_BY_ONE = 10_000
SYNC_GOAL = 0.7


# --- without async -------------------------------------------------------------------------------


async def publish_sync(url: str, *, messages: int) -> float:
    with penstock.sync.connect(url) as client:
        started = time.perf_counter()
        for _ in range(messages):
            client.publish("bench.sink", BODY)
        client.flush(60)
        return messages / (time.perf_counter() - started)


async def fetch_sync(url: str, *, messages: int) -> float:
    await stored_ours(url, messages=messages)
    with penstock.sync.connect(url) as client:
        consumer = client.jetstream(timeout=30).create_consumer("BENCH_CLIENT", max_ack_pending=FETCH)
        started = time.perf_counter()
        for _ in range(messages // FETCH):
            for msg in consumer.fetch(FETCH):
                msg.ack()
        client.flush(60)
        return messages / (time.perf_counter() - started)


async def get_sync(url: str, *, gets: int) -> float:
    with penstock.sync.connect(url) as client:
        kv = client.jetstream().create_or_update_key_value(BUCKET)
        kv.put("key", BODY)
        started = time.perf_counter()
        for _ in range(gets):
            kv.get("key")
        return gets / (time.perf_counter() - started)


async def get_async(url: str, *, gets: int) -> float:
    async with penstock.client.connect(url) as client:
        kv = await client.jetstream().create_or_update_key_value(BUCKET)
        await kv.put("key", BODY)
        started = time.perf_counter()
        for _ in range(gets):
            await kv.get("key")
        return gets / (time.perf_counter() - started)


async def get_theirs(url: str, *, gets: int) -> float:
    client = await nats.connect(url)
    kv = await client.jetstream().key_value(BUCKET)
    await kv.put("key", BODY)
    started = time.perf_counter()
    for _ in range(gets):
        await kv.get("key")
    took_s = time.perf_counter() - started
    await client.close()
    return gets / took_s


async def put_sync(url: str, *, puts: int) -> float:
    with penstock.sync.connect(url) as client:
        kv = client.jetstream().create_or_update_key_value(BUCKET)
        started = time.perf_counter()
        for number in range(puts):
            kv.put(f"k.{number % KEYS}", VALUE)
        return puts / (time.perf_counter() - started)


async def object_put_sync(url: str, *, size: int) -> float:
    data = content(size)
    with penstock.sync.connect(url) as client:
        js = client.jetstream(timeout=60)
        with contextlib.suppress(BucketNotFoundError):
            js.delete_object_store(BUCKET)
        store = js.create_object_store(BUCKET)
        started = time.perf_counter()
        store.put("object", data)
        return size / MEGABYTE / (time.perf_counter() - started)


async def object_get_sync(url: str, *, size: int) -> float:
    with penstock.sync.connect(url) as client:
        store = client.jetstream(timeout=60).create_or_update_object_store("READ")
        if [info.size for info in store.list()] != [size]:
            store.put("object", content(size))
        started = time.perf_counter()
        assert len(store.get("object")) == size
        return size / MEGABYTE / (time.perf_counter() - started)


# --- Arrow ---------------------------------------------------------------------------------------


async def fill(js: penstock.client.JetStream, name: str, messages: int) -> penstock.client.Stream:
    """A stream of so many messages; filled by the first call."""
    with contextlib.suppress(StreamNotFoundError):
        stream = await js.stream(name)
        if (await stream.info()).state.messages == messages:
            return stream
        await js.delete_stream(name)
    stream = await js.create_stream(name, subjects=[f"bench.{name}"])
    async with js.publisher(window=4000) as publisher:
        for _ in range(messages):
            await publisher.publish(f"bench.{name}", BODY)
    return stream


async def table_ours(url: str, *, rows: int) -> float:
    async with penstock.client.connect(url) as client:
        stream = await fill(client.jetstream(timeout=30), "BENCH_TABLE", rows)
        started = time.perf_counter()
        table = await stream.to_arrow()
        assert table.num_rows == rows
        return rows / (time.perf_counter() - started)


async def one_by_one_theirs(url: str, *, rows: int) -> float:
    async with penstock.client.connect(url) as ours:
        await fill(ours.jetstream(timeout=30), "BENCH_SINGLES", rows)
    client = await nats.connect(url)
    consumer = await client.jetstream(timeout=30).pull_subscribe(
        "bench.BENCH_SINGLES", stream="BENCH_SINGLES"
    )
    started = time.perf_counter()
    for _ in range(rows):
        [msg] = await consumer.fetch(1)
        await msg.ack()
    took_s = time.perf_counter() - started
    await client.close()
    return rows / took_s


# --- rows ----------------------------------------------------------------------------------------


def beside_async(clients: ClientServer, server: ServerProcess) -> ServerProcess:
    """The clients' server, for the client without async in place of penstock and for the async one else."""
    process = clients.instead(server)
    return process if process.name == "penstock" else replace(process, name="async")


def scenarios(share: int, clients: ClientServer) -> list[Scenario]:
    """The rows; share: divisor of the work."""
    messages = MESSAGES // share
    stored = STORED // share
    gets = GETS // share
    puts = PUTS // share
    mebibytes = OBJECT_BYTES // share // MEBIBYTE
    size = mebibytes * MEBIBYTE
    calls: list[tuple[str, str, Measure, Measure, Measure, float]] = [
        (
            "publish, 128 B",
            "msg/s",
            functools.partial(publish_sync, messages=messages),
            functools.partial(publish_ours, messages=messages),
            functools.partial(publish_theirs, messages=messages),
            2.8,
        ),
        (
            f"fetch {FETCH}, explicit acks",
            "msg/s",
            functools.partial(fetch_sync, messages=stored),
            functools.partial(fetch_ours, messages=stored),
            functools.partial(fetch_theirs, messages=stored),
            3.5,
        ),
        (
            "key-value get, 1 in flight",
            "gets/s",
            functools.partial(get_sync, gets=gets),
            functools.partial(get_async, gets=gets),
            functools.partial(get_theirs, gets=gets),
            1.0,
        ),
        (
            "key-value put, 1 in flight",
            "puts/s",
            functools.partial(put_sync, puts=puts),
            functools.partial(put_ours, puts=puts),
            functools.partial(put_theirs, puts=puts),
            1.0,
        ),
        (
            f"object put, {mebibytes} MiB",
            "MB/s",
            functools.partial(object_put_sync, size=size),
            functools.partial(object_put_ours, size=size),
            functools.partial(object_put_theirs, size=size),
            2.1,
        ),
        (
            f"object get, {mebibytes} MiB",
            "MB/s",
            functools.partial(object_get_sync, size=size),
            functools.partial(object_get_ours, size=size),
            functools.partial(object_get_theirs, size=size),
            2.1,
        ),
    ]
    rows = []
    for name, unit, blocking, asynchronous, theirs, goal in calls:
        rows.append(
            Scenario(
                f"client: without async, beside async: {name}",
                unit,
                either(blocking, asynchronous, rival="async"),
                goal=SYNC_GOAL,
                instead=functools.partial(beside_async, clients),
            )
        )
        rows.append(
            Scenario(
                f"client: without async: {name}",
                unit,
                either(blocking, theirs),
                goal=goal,
                instead=clients.instead,
            )
        )
    rows.append(
        Scenario(
            f"client: {TABLE_ROWS // share:,} messages into Arrow, nats-py one by one",
            "msg/s",
            either(
                functools.partial(table_ours, rows=TABLE_ROWS // share),
                functools.partial(one_by_one_theirs, rows=ONE_BY_ONE // share),
            ),
            goal=20.0,
            instead=clients.instead,
        )
    )
    return rows
