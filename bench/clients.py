"""penstock's client beside nats-py on the same server: key-value buckets and object stores.

Both clients run in this process, in turn, against one penstock server of their own. A row's first figure is
that of penstock's client, its rival nats-py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import nats
from nats.js.errors import NotFoundError as NatsNotFoundError
from rows import Scenario
from servers import ServerProcess

import penstock.client
from penstock.errors import BucketNotFoundError

BUCKET = "BENCH"
KEYS = 1000
PUTS = 5000
MEBIBYTE = 1024 * 1024
OBJECT_BYTES = 256 * MEBIBYTE
VALUE = b"x" * 128
MEGABYTE = 1e6

Measure = Callable[[str], Awaitable[float]]


@dataclass
class ClientServer:
    """The server that both clients use, started with its first row."""

    folder: Path
    process: ServerProcess | None = None

    def instead(self, server: ServerProcess) -> ServerProcess:
        """This server in place of either; under the rival's name in place of the official one."""
        if self.process is None:
            command = server.command if server.name == "penstock" else []
            assert command, "penstock is measured first"
            self.process = ServerProcess("penstock", command, self.folder / "clients")
            self.process.start()
        return self.process if server.name == "penstock" else replace(self.process, name="nats-py")

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def either(ours: Measure, theirs: Measure, rival: str = "nats-py") -> Callable[[ServerProcess], float]:
    """A row's measurement, by the client whose turn it is."""

    def measure(server: ServerProcess) -> float:
        chosen = theirs if server.name == rival else ours
        return asyncio.run(run(chosen, f"nats://127.0.0.1:{server.port}"))

    return measure


async def run(measure: Measure, url: str) -> float:
    return await measure(url)


@functools.cache
def content(size: int) -> bytes:
    block = random.Random(size).randbytes(MEBIBYTE)
    return block * (size // len(block))


# --- key-value -----------------------------------------------------------------------------------


async def put_ours(url: str, *, puts: int) -> float:
    async with penstock.client.connect(url) as client:
        kv = await client.jetstream().create_or_update_key_value(BUCKET)
        started = time.perf_counter()
        for number in range(puts):
            await kv.put(f"k.{number % KEYS}", VALUE)
        return puts / (time.perf_counter() - started)


async def put_theirs(url: str, *, puts: int) -> float:
    client = await nats.connect(url)
    kv = await client.jetstream().key_value(BUCKET)
    started = time.perf_counter()
    for number in range(puts):
        await kv.put(f"k.{number % KEYS}", VALUE)
    took_s = time.perf_counter() - started
    await client.close()
    return puts / took_s


async def get_many_ours(url: str, *, rounds: int) -> float:
    async with penstock.client.connect(url) as client:
        kv = await client.jetstream().create_or_update_key_value(BUCKET)
        keys = [f"k.{number}" for number in range(KEYS)]
        for key in keys:
            await kv.put(key, VALUE)
        started = time.perf_counter()
        for _ in range(rounds):
            found = await kv.get_many(keys)
            assert len(found) == KEYS
        return rounds * KEYS / (time.perf_counter() - started)


async def get_each_theirs(url: str, *, rounds: int) -> float:
    client = await nats.connect(url)
    kv = await client.jetstream().key_value(BUCKET)
    started = time.perf_counter()
    for _ in range(rounds):
        for number in range(KEYS):
            await kv.get(f"k.{number}")
    took_s = time.perf_counter() - started
    await client.close()
    return rounds * KEYS / took_s


# --- objects -------------------------------------------------------------------------------------


async def object_put_ours(url: str, *, size: int) -> float:
    data = content(size)
    async with penstock.client.connect(url) as client:
        js = client.jetstream(timeout=60)
        with contextlib.suppress(BucketNotFoundError):
            await js.delete_object_store(BUCKET)
        store = await js.create_object_store(BUCKET)
        started = time.perf_counter()
        await store.put("object", data)
        return size / MEGABYTE / (time.perf_counter() - started)


async def object_put_theirs(url: str, *, size: int) -> float:
    data = content(size)
    client = await nats.connect(url)
    js = client.jetstream(timeout=60)
    with contextlib.suppress(NatsNotFoundError):
        await js.delete_object_store(BUCKET)
    store = await js.create_object_store(BUCKET)
    started = time.perf_counter()
    await store.put("object", data)
    took_s = time.perf_counter() - started
    await client.close()
    return size / MEGABYTE / took_s


async def object_get_ours(url: str, *, size: int) -> float:
    async with penstock.client.connect(url) as client:
        store = await client.jetstream(timeout=60).create_or_update_object_store("READ")
        if [info.size async for info in store.list()] != [size]:
            await store.put("object", content(size))
        started = time.perf_counter()
        assert len(await store.get("object")) == size
        return size / MEGABYTE / (time.perf_counter() - started)


async def object_get_theirs(url: str, *, size: int) -> float:
    """Into a file in memory: without one, nats-py copies all that it has for every chunk, for minutes."""
    client = await nats.connect(url)
    store = await client.jetstream(timeout=60).object_store("READ")
    started = time.perf_counter()
    file = io.BytesIO()
    await store.get("object", writeinto=file)
    assert len(file.getvalue()) == size
    took_s = time.perf_counter() - started
    await client.close()
    return size / MEGABYTE / took_s


def scenarios(share: int, clients: ClientServer) -> list[Scenario]:
    """The rows; share: divisor of the work."""
    puts, rounds = PUTS // share, max(10 // share, 1)
    mebibytes = OBJECT_BYTES // share // MEBIBYTE
    size = mebibytes * MEBIBYTE
    pairs: list[tuple[str, str, Measure, Measure, float]] = [
        (
            "key-value put, 1 in flight",
            "puts/s",
            functools.partial(put_ours, puts=puts),
            functools.partial(put_theirs, puts=puts),
            1.5,
        ),
        (
            f"{KEYS:,} keys: get_many, nats-py by single gets",
            "keys/s",
            functools.partial(get_many_ours, rounds=rounds),
            functools.partial(get_each_theirs, rounds=rounds),
            10.0,
        ),
        (
            f"object put, {mebibytes} MiB",
            "MB/s",
            functools.partial(object_put_ours, size=size),
            functools.partial(object_put_theirs, size=size),
            3.0,
        ),
        (
            f"object get, {mebibytes} MiB",
            "MB/s",
            functools.partial(object_get_ours, size=size),
            functools.partial(object_get_theirs, size=size),
            3.0,
        ),
    ]
    return [
        Scenario(f"client: {name}", unit, either(ours, theirs), goal=goal, instead=clients.instead)
        for name, unit, ours, theirs, goal in pairs
    ]
