"""penstock's client beside nats-py on the same server: core messages, services, streams.

As in clients.py, both run in this process, in turn. Messages for subscribers come from a thread that writes
prepared frames to a socket, so that a row measures receiving alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import nats
import nats.micro
from clients import ClientServer, Measure, either
from nats.js.errors import NotFoundError as NatsNotFoundError
from nats.micro.request import Request
from rows import Scenario

import penstock.client
from penstock.client import Msg, ServiceMsg
from penstock.errors import StreamNotFoundError

SIZE = 128
BODY = b"x" * SIZE
MESSAGES = 200_000
REQUESTS = 5_000
STORED = 50_000
BUFFERED = 1_000_000
FETCH = 500


def flood(url: str, subject: bytes, messages: int) -> None:
    """Publishes by one raw connection, and waits until the server has read everything."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as sock:
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        frame = b"PUB %b %d\r\n%b\r\n" % (subject, SIZE, BODY)
        for _ in range(messages // 1000):
            sock.sendall(frame * 1000)
        sock.sendall(b"PING\r\n")
        received = b""
        while b"PONG\r\n" not in received:
            received = received[-5:] + sock.recv(65536)


# --- core ----------------------------------------------------------------------------------------


async def publish_ours(url: str, *, messages: int) -> float:
    async with penstock.client.connect(url) as client:
        started = time.perf_counter()
        for _ in range(messages):
            await client.publish("bench.sink", BODY)
        await client.flush(60)
        return messages / (time.perf_counter() - started)


async def publish_theirs(url: str, *, messages: int) -> float:
    client = await nats.connect(url)
    started = time.perf_counter()
    for _ in range(messages):
        await client.publish("bench.sink", BODY)
    await client.flush(60)
    took_s = time.perf_counter() - started
    await client.close()
    return messages / took_s


async def subscribe_ours(url: str, *, messages: int) -> float:
    left, done = messages, asyncio.Event()

    async def receive(msg: Msg) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with penstock.client.connect(url) as client:
        await client.subscribe("bench.flood", callback=receive)
        await client.flush()
        started = time.perf_counter()
        await asyncio.gather(asyncio.to_thread(flood, url, b"bench.flood", messages), done.wait())
        return messages / (time.perf_counter() - started)


async def subscribe_theirs(url: str, *, messages: int) -> float:
    left, done = messages, asyncio.Event()

    async def receive(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    client = await nats.connect(url)
    await client.subscribe("bench.flood", cb=receive)
    await client.flush()
    started = time.perf_counter()
    await asyncio.gather(asyncio.to_thread(flood, url, b"bench.flood", messages), done.wait())
    took_s = time.perf_counter() - started
    await client.close()
    return messages / took_s


async def buffered(url: str, *, client: str, messages: int) -> float:
    """MiB of memory that received messages take which nothing has read yet, in a process of their own."""
    command = [sys.executable, __file__, client, url, str(messages)]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await child.communicate()
    assert child.returncode == 0, f"the subscriber ended with {child.returncode}"
    return float(printed)


async def buffer_ours(url: str, messages: int) -> float:
    async with penstock.client.connect(url) as client:
        subscription = await client.subscribe(
            "bench.flood", max_pending_messages=messages, max_pending_bytes=2**40
        )
        await client.flush()
        return await growth(url, messages, client.flush, lambda: subscription.pending_messages)


async def buffer_theirs(url: str, messages: int) -> float:
    client = await nats.connect(url)
    limits = {"pending_msgs_limit": messages, "pending_bytes_limit": 2**40}
    subscription = await client.subscribe("bench.flood", **limits)
    await client.flush()
    grown = await growth(url, messages, client.flush, lambda: subscription.pending_msgs)
    await client.close()
    return grown


async def growth(
    url: str, messages: int, flush: Callable[[int], Awaitable[None]], received: Callable[[], int]
) -> float:
    """MiB by which resident memory grows while so many messages arrive."""
    before = resident_mib()
    await asyncio.to_thread(flood, url, b"bench.flood", messages)
    await flush(60)
    assert received() == messages
    return resident_mib() - before


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def request_ours(url: str, *, requests: int) -> float:
    async def echo(msg: Msg) -> None:
        await msg.respond(msg.data)

    async with penstock.client.connect(url) as answering, penstock.client.connect(url) as asking:
        await answering.subscribe("bench.echo", callback=echo)
        await answering.flush()
        started = time.perf_counter()
        for _ in range(requests):
            await asking.request("bench.echo", BODY)
        return requests / (time.perf_counter() - started)


async def request_theirs(url: str, *, requests: int) -> float:
    async def echo(msg: nats.aio.msg.Msg) -> None:
        await msg.respond(msg.data)

    answering, asking = await nats.connect(url), await nats.connect(url)
    await answering.subscribe("bench.echo", cb=echo)
    await answering.flush()
    started = time.perf_counter()
    for _ in range(requests):
        await asking.request("bench.echo", BODY)
    took_s = time.perf_counter() - started
    await answering.close()
    await asking.close()
    return requests / took_s


async def service_ours(url: str, *, requests: int) -> float:
    async def echo(request: ServiceMsg) -> bytes:
        return request.data

    async with (
        penstock.client.connect(url) as answering,
        penstock.client.connect(url) as asking,
        await answering.add_service("echo", "1.0.0") as service,
    ):
        await service.add_endpoint("echo", echo, subject="bench.service")
        await answering.flush()
        services = asking.services()
        started = time.perf_counter()
        for _ in range(requests):
            await services.request("bench.service", BODY)
        return requests / (time.perf_counter() - started)


async def service_theirs(url: str, *, requests: int) -> float:
    async def echo(request: Request) -> None:
        await request.respond(request.data)

    answering, asking = await nats.connect(url), await nats.connect(url)
    service = await nats.micro.add_service(answering, name="echo", version="1.0.0")
    await service.add_endpoint(name="echo", handler=echo, subject="bench.service")
    await answering.flush()
    started = time.perf_counter()
    for _ in range(requests):
        await asking.request("bench.service", BODY)
    took_s = time.perf_counter() - started
    await service.stop()
    await answering.close()
    await asking.close()
    return requests / took_s


# --- streams -------------------------------------------------------------------------------------


async def stored_ours(url: str, *, messages: int) -> float:
    async with penstock.client.connect(url) as client:
        js = client.jetstream(timeout=30)
        with contextlib.suppress(StreamNotFoundError):
            await js.delete_stream("BENCH_CLIENT")
        await js.create_stream("BENCH_CLIENT", subjects=["bench.stored"])
        started = time.perf_counter()
        async with js.publisher(window=4000) as publisher:
            for _ in range(messages):
                await publisher.publish("bench.stored", BODY)
        return messages / (time.perf_counter() - started)


async def stored_theirs(url: str, *, messages: int) -> float:
    client = await nats.connect(url)
    js = client.jetstream(timeout=30, publish_async_max_pending=4000)
    with contextlib.suppress(NatsNotFoundError):
        await js.delete_stream("BENCH_CLIENT")
    await js.add_stream(name="BENCH_CLIENT", subjects=["bench.stored"])
    started = time.perf_counter()
    for _ in range(messages):
        await js.publish_async("bench.stored", BODY)
    await js.publish_async_completed()
    took_s = time.perf_counter() - started
    await client.close()
    return messages / took_s


async def fetch_ours(url: str, *, messages: int) -> float:
    await stored_ours(url, messages=messages)
    async with penstock.client.connect(url) as client:
        consumer = await client.jetstream(timeout=30).create_consumer("BENCH_CLIENT", max_ack_pending=FETCH)
        started = time.perf_counter()
        for _ in range(messages // FETCH):
            for msg in await consumer.fetch(FETCH):
                await msg.ack()
        await client.flush(60)
        return messages / (time.perf_counter() - started)


async def fetch_theirs(url: str, *, messages: int) -> float:
    await stored_ours(url, messages=messages)
    client = await nats.connect(url)
    config = nats.js.api.ConsumerConfig(max_ack_pending=FETCH)
    consumer = await client.jetstream(timeout=30).pull_subscribe("bench.stored", config=config)
    started = time.perf_counter()
    got = 0
    while got < messages:
        found = await consumer.fetch(min(FETCH, messages - got), timeout=30)
        for msg in found:
            await msg.ack()
        got += len(found)
    await client.flush(60)
    took_s = time.perf_counter() - started
    await client.close()
    return messages / took_s


def scenarios(share: int, clients: ClientServer) -> list[Scenario]:
    """The rows; share: divisor of the work."""
    messages = MESSAGES // share
    requests = REQUESTS // share
    stored = STORED // share
    pairs: list[tuple[str, str, Measure, Measure, float]] = [
        (
            "publish, 128 B",
            "msg/s",
            functools.partial(publish_ours, messages=messages),
            functools.partial(publish_theirs, messages=messages),
            4.0,
        ),
        (
            "subscribe by callback, 128 B",
            "msg/s",
            functools.partial(subscribe_ours, messages=messages),
            functools.partial(subscribe_theirs, messages=messages),
            4.0,
        ),
        (
            "request/reply, 1 in flight, 128 B",
            "requests/s",
            functools.partial(request_ours, requests=requests),
            functools.partial(request_theirs, requests=requests),
            1.5,
        ),
        (
            "service request, 1 in flight, 128 B",
            "requests/s",
            functools.partial(service_ours, requests=requests),
            functools.partial(service_theirs, requests=requests),
            1.5,
        ),
        (
            "acked publish, 4000 in flight, 128 B",
            "msg/s",
            functools.partial(stored_ours, messages=stored),
            functools.partial(stored_theirs, messages=stored),
            5.0,
        ),
        (
            f"fetch {FETCH}, explicit acks",
            "msg/s",
            functools.partial(fetch_ours, messages=stored),
            functools.partial(fetch_theirs, messages=stored),
            5.0,
        ),
    ]
    rows = [
        Scenario(f"client: {name}", unit, either(ours, theirs), goal=goal, instead=clients.instead)
        for name, unit, ours, theirs, goal in pairs
    ]
    count = BUFFERED // share
    rows.append(
        Scenario(
            f"client: memory of {count:,} buffered messages, 128 B",
            "MiB",
            either(
                functools.partial(buffered, client="ours", messages=count),
                functools.partial(buffered, client="theirs", messages=count),
            ),
            bigger_is_better=False,
            goal=2.0,
            instead=clients.instead,
        )
    )
    return rows


if __name__ == "__main__":
    name, address, number = sys.argv[1:]
    print(asyncio.run((buffer_ours if name == "ours" else buffer_theirs)(address, int(number))))
