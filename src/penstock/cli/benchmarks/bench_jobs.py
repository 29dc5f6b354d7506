"""What one client of a benchmark does. A job comes in, and the times of its work come out.

Every kind uses the fastest way that the client has for it: batches where the API has them, as an
application that cares would.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from penstock.cli.framework.cli_connection import ConnectionSettings
from penstock.cli.framework.command_run import CommandFailed
from penstock.cli.framework.server_refusals import ServerRefusals

if TYPE_CHECKING:
    from penstock.client import Client, JetStream, JsMsg, Stream

SUBSCRIBER_PENDING = 1 << 30
WAIT_S = 60.0
"""A subscriber or consumer without a message for so long gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchJob:
    """The work of one client.

    kind: a key of KINDS. number: of the client, from 0. messages: how many are its own. first: the number of
    its first one among those of all clients. sleep_s: between messages. rate: messages a second, 0 without
    limit. subjects: how many subjects in multi-subject mode, 0 without.
    """

    kind: str
    number: int
    settings: ConnectionSettings
    messages: int
    first: int = 0
    subject: str = ""
    payload: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sleep_s: float = 0.0
    rate: float = 0.0
    subjects: int = 0
    random_subjects: bool = False
    stream: str = ""
    consumer: str = ""
    filters: tuple[str, ...] = ()
    batch: int = 500
    acks: str = "explicit"
    double_ack: bool = False
    outstanding_acks: int = 2
    dedup: bool = False
    random_keys: int = 0
    """Keys of a bucket are chosen at random among so many; 0: each message has its own."""


@dataclass(slots=True)
class BenchTimes:
    """started_s, ended_s: on the monotonic clock of the machine. latencies_s: of single
    operations, if any."""

    messages: int = 0
    bytes: int = 0
    started_s: float = 0.0
    ended_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """The work begins now."""
        self.started_s = time.monotonic()

    def end(self, messages: int, size: int) -> None:
        """The work has ended."""
        self.ended_s = time.monotonic()
        self.messages, self.bytes = messages, size


Ready = Callable[[], Awaitable[None]]
"""Waits until all clients are connected and prepared."""


async def run_job(job: BenchJob, ready: Ready) -> BenchTimes:
    """Do the work of one client. Raises what the client raises, CommandFailed when messages stay away."""
    from penstock import client

    options = job.settings.client_options(f"penstock bench {job.kind}")
    options["max_pending_messages"] = SUBSCRIBER_PENDING
    options["max_pending_bytes"] = SUBSCRIBER_PENDING
    refusals = ServerRefusals(partial(_warn, job.kind))
    options["on_error"] = lambda _, error: refusals.heard(error)
    times = BenchTimes()
    async with client.connect(job.settings.url, **options) as connected:
        await KINDS[job.kind](job, connected, ready, times)
        await connected.flush()
    if refusals.first is not None:
        raise CommandFailed("the figures mean nothing: the server refused some of the work")
    return times


def _warn(kind: str, text: str) -> None:
    sys.stderr.write(f"penstock bench {kind}: {text}\n")


class _Pace:
    """Waits between messages, so that their rate is the job's. done: messages until now."""

    def __init__(self, job: BenchJob) -> None:
        self._sleep_s = job.sleep_s
        self._rate = job.rate
        self._started = time.monotonic()
        self.is_free = not (job.sleep_s or job.rate)

    async def wait(self, done: int) -> None:
        """Wait until the next message is due."""
        if self._sleep_s:
            await asyncio.sleep(self._sleep_s)
        if self._rate:
            early = done / self._rate - (time.monotonic() - self._started)
            if early > 0:
                await asyncio.sleep(early)


def _subjects(job: BenchJob) -> list[str]:
    """The subjects that a publisher uses in turn."""
    if not job.subjects:
        return [job.subject]
    found = [f"{job.subject}.{number}" for number in range(min(job.subjects, job.messages))]
    if job.random_subjects:
        random.shuffle(found)
    return found


# --- core NATS -----------------------------------------------------------------------------------


async def publish(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Publish messages, and wait at the end until the server has them all."""
    subjects = _subjects(job)
    payload, headers, number = job.payload, job.headers or None, len(subjects)
    await ready()
    pace = _Pace(job)
    times.begin()
    if pace.is_free and number == 1:
        await client.publish_many(subjects[0], repeat(payload, job.messages), headers=headers)
    else:
        for done in range(job.messages):
            if not pace.is_free:
                await pace.wait(done)
            await client.publish(subjects[done % number], payload, headers=headers)
    await client.flush(WAIT_S)
    times.end(job.messages, job.messages * len(payload))


async def subscribe(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Receive messages. The time begins with the first one."""
    subject = f"{job.subject}.>" if job.subjects else job.subject
    subscription = await client.subscribe(subject)
    await client.flush()
    await ready()
    received = size = 0
    while received < job.messages:
        # What comes later than this is for a publisher that was never started.
        msgs = await subscription.next_many(4096, timeout=None if not received else WAIT_S)
        if not received:
            times.begin()
        received += len(msgs)
        size += sum(len(msg.data) for msg in msgs)
    times.end(received, size)


async def service_request(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Send requests one after another."""
    await ready()
    pace = _Pace(job)
    times.begin()
    for done in range(job.messages):
        if not pace.is_free:
            await pace.wait(done)
        started = time.perf_counter()
        await client.request(job.subject, job.payload, headers=job.headers or None)
        times.latencies_s.append(time.perf_counter() - started)
    times.end(job.messages, job.messages * len(job.payload))


async def service_serve(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Answer requests with the payload, as a service in a queue group."""
    subscription = await client.subscribe(job.subject, queue="bench-service")
    await client.flush()
    await ready()
    served = 0
    while served < job.messages:
        msgs = await subscription.next_many(4096, timeout=None)
        if not served:
            times.begin()
        for msg in msgs:
            if job.sleep_s:
                await asyncio.sleep(job.sleep_s)
            await msg.respond(job.payload)
        served += len(msgs)
    await client.flush()
    times.end(served, served * len(job.payload))


# --- publishing to streams -----------------------------------------------------------------------


def _jetstream(job: BenchJob, client: Client) -> JetStream:
    return client.jetstream(**job.settings.js_keywords())


def _options(job: BenchJob, done: int) -> dict[str, Any]:
    options: dict[str, Any] = {"headers": job.headers} if job.headers else {}
    if job.dedup:
        options["msg_id"] = f"{job.number}-{time.time_ns()}-{done}"
    return options


async def js_publish_sync(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Publish, and wait for the ack of each message before the next one."""
    js, subjects = _jetstream(job, client), _subjects(job)
    await ready()
    pace = _Pace(job)
    times.begin()
    for done in range(job.messages):
        if not pace.is_free:
            await pace.wait(done)
        started = time.perf_counter()
        await js.publish(subjects[done % len(subjects)], job.payload, **_options(job, done))
        times.latencies_s.append(time.perf_counter() - started)
    times.end(job.messages, job.messages * len(job.payload))


async def js_publish_async(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Publish with up to `batch` acks outstanding."""
    js, subjects = _jetstream(job, client), _subjects(job)
    plain = not (job.headers or job.dedup)
    await ready()
    pace = _Pace(job)
    times.begin()
    async with js.publisher(job.batch) as publisher:
        for done in range(job.messages):
            if not pace.is_free:
                await pace.wait(done)
            subject = subjects[done % len(subjects)]
            if plain:
                await publisher.publish(subject, job.payload)
            else:
                await publisher.publish(subject, job.payload, **_options(job, done))
        await publisher.flush()
    times.end(job.messages, job.messages * len(job.payload))


async def js_publish_atomic(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Publish atomic batches one after another."""
    js, subjects = _jetstream(job, client), _subjects(job)
    await ready()
    pace = _Pace(job)
    times.begin()
    for first in range(0, job.messages, job.batch):
        if not pace.is_free:
            await pace.wait(first)
        size = min(job.batch, job.messages - first)
        async with js.atomic_batch(ack_first=False) as batch:
            if job.headers or len(subjects) > 1:
                for done in range(first, first + size):
                    await batch.add(subjects[done % len(subjects)], job.payload, headers=job.headers or None)
            else:
                await batch.add_many([job.payload] * size, job.subject)
            await batch.commit_eob()
    times.end(job.messages, job.messages * len(job.payload))


async def js_publish_fast(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Publish by fast ingest, in one batch with an ack for at most `batch` messages."""
    js, subjects = _jetstream(job, client), _subjects(job)
    await ready()
    pace = _Pace(job)
    times.begin()
    outstanding = max(1, min(3, job.outstanding_acks))
    async with js.fast_ingest(job.subject, flow=job.batch, outstanding_acks=outstanding) as batch:
        if job.headers or len(subjects) > 1 or not pace.is_free:
            for done in range(job.messages):
                if not pace.is_free:
                    await pace.wait(done)
                await batch.add(subjects[done % len(subjects)], job.payload, headers=job.headers or None)
        else:
            payloads = [job.payload] * min(10_000, job.messages)
            for first in range(0, job.messages, len(payloads)):
                await batch.add_many(payloads[: job.messages - first])
        await batch.commit_eob()
    times.end(job.messages, job.messages * len(job.payload))


# --- reading streams -----------------------------------------------------------------------------


@asynccontextmanager
async def _stream(job: BenchJob, client: Client) -> AsyncIterator[Stream]:
    yield await _jetstream(job, client).stream(job.stream)


async def js_fetch(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Fetch batches from a durable consumer, and ack each message.

    The next batch is requested before the messages of the last one are acked, so that the server works
    meanwhile: 1.14 times the messages a second (median of five, on two cores).
    """
    async with _stream(job, client) as stream:
        consumer = await stream.consumer(job.consumer)
        await ready()
        received = size = 0
        times.begin()

        def ask() -> asyncio.Future[list[JsMsg]]:
            batch = min(job.batch, job.messages - received)
            return asyncio.ensure_future(consumer.fetch(batch, expires=WAIT_S))

        waiting = ask()
        while received < job.messages:
            msgs = await waiting
            if not msgs:
                raise CommandFailed(f"no message for {WAIT_S:g} s, {job.messages - received:,} are missing")
            received += len(msgs)
            if received < job.messages:
                waiting = ask()
                await asyncio.sleep(0)  # the request is encoded,
                await asyncio.sleep(0)  # and written
            size += sum(len(msg.data) for msg in msgs)
            await _ack_all(job, msgs)
        await client.flush()
        times.end(received, size)


async def js_consume(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Consume from a durable consumer with a buffer of `batch` messages, and ack each."""
    async with _stream(job, client) as stream:
        consumer = await stream.consumer(job.consumer)
        await ready()
        received = size = 0
        times.begin()
        async with consumer.consume(max_messages=job.batch) as messages:
            async for msg in messages:
                received += 1
                size += len(msg.data)
                await _ack_all(job, (msg,))
                if received == job.messages:
                    break
        await client.flush()
        times.end(received, size)


async def _ack_all(job: BenchJob, msgs: Iterable[JsMsg]) -> None:
    if job.acks == "none":
        return
    for msg in msgs:
        if job.double_ack:
            await msg.ack_sync()
        else:
            await msg.ack()


async def js_ordered(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Read the stream with an ordered consumer."""
    async with _stream(job, client) as stream:
        settings: dict[str, Any] = {"filter_subjects": list(job.filters)} if job.filters else {}
        consumer = stream.ordered_consumer(**settings)
        await ready()
        received = size = 0
        times.begin()
        async with consumer.consume(max_messages=job.batch) as messages:
            async for msg in messages:
                received += 1
                size += len(msg.data)
                if received == job.messages:
                    break
        times.end(received, size)


async def js_get_sync(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Get messages by their sequences, one after another."""
    async with _stream(job, client) as stream:
        first = (await stream.info()).state.first_seq
        await ready()
        size = 0
        times.begin()
        for done in range(job.messages):
            started = time.perf_counter()
            message = await stream.get_message(first + done, direct=True)
            times.latencies_s.append(time.perf_counter() - started)
            size += len(message.data)
        times.end(job.messages, size)


async def js_get_batch(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Get messages with batched direct gets."""
    async with _stream(job, client) as stream:
        subject = job.filters[0] if job.filters else ">"
        await ready()
        received = size = 0
        times.begin()
        async for message in stream.get_messages(1, subject=subject, max_messages=job.messages):
            received += 1
            size += len(message.data)
        times.end(received, size)


# --- buckets ---------------------------------------------------------------------------------------


def _key(job: BenchJob, done: int) -> str:
    return str(random.randrange(job.random_keys) if job.random_keys else job.first + done)


async def kv_put(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Put values one after another; the name of the bucket is `job.stream`."""
    bucket = await _jetstream(job, client).key_value(job.stream)
    await ready()
    pace = _Pace(job)
    times.begin()
    for done in range(job.messages):
        if not pace.is_free:
            await pace.wait(done)
        started = time.perf_counter()
        await bucket.put(_key(job, done), job.payload)
        times.latencies_s.append(time.perf_counter() - started)
    times.end(job.messages, job.messages * len(job.payload))


async def kv_get(job: BenchJob, client: Client, ready: Ready, times: BenchTimes) -> None:
    """Get values one after another; the name of the bucket is `job.stream`."""
    bucket = await _jetstream(job, client).key_value(job.stream)
    await ready()
    size = 0
    times.begin()
    for done in range(job.messages):
        started = time.perf_counter()
        entry = await bucket.get(_key(job, done))
        times.latencies_s.append(time.perf_counter() - started)
        size += len(entry.value)
        if job.sleep_s:
            await asyncio.sleep(job.sleep_s)
    times.end(job.messages, size)


KINDS: dict[str, Callable[[BenchJob, Client, Ready, BenchTimes], Awaitable[None]]] = {
    "pub": publish,
    "sub": subscribe,
    "service request": service_request,
    "service serve": service_serve,
    "js pub sync": js_publish_sync,
    "js pub async": js_publish_async,
    "js pub atomic": js_publish_atomic,
    "js pub fast": js_publish_fast,
    "js fetch": js_fetch,
    "js consume": js_consume,
    "js ordered": js_ordered,
    "js get sync": js_get_sync,
    "js get batch": js_get_batch,
    "kv put": kv_put,
    "kv get": kv_get,
}
