"""The commands of `penstock bench`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.cli.benchmarks.bench_jobs import BenchJob
from penstock.cli.benchmarks.bench_results import show_results, write_csv
from penstock.cli.benchmarks.bench_workers import run_clients
from penstock.cli.framework.command_parser import UsageError
from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Argument, CommandFunction, CommandGroup, Option
from penstock.cli.framework.value_kinds import count, decimal, existing_file, path, seconds, size, whole
from penstock.cli.framework.value_texts import number_text, size_text
from penstock.cli.messaging.bodies import HEADER
from penstock.client import JetStream
from penstock.errors import BucketNotFoundError, ConsumerNotFoundError, StreamNotFoundError

BENCH = CommandGroup("bench", "Measure a server.")

_SUBJECT = Argument(name="subject", help="Subject of the messages")
_COMMON = (
    Option(names=("--clients",), convert=count, default=1, help="Number of clients, each a process"),
    Option(names=("--msgs",), convert=count, default=100_000, help="Number of messages in all"),
    Option(names=("--size",), convert=size, default=128, help="Bytes of a message"),
    Option(names=("--csv",), convert=path, metavar="FILE", help="Write results of the clients to a file"),
    Option(names=("--progress",), convert=bool, negatable=True, help="Accepted; has no effect", hidden=True),
    Option(names=("--sleep",), convert=seconds, help="Pause between messages, or before a reply"),
)
_MULTI = (
    Option(names=("--multisubject",), convert=bool, help="Use many subjects: SUBJECT.0, SUBJECT.1 and so on"),
    Option(names=("--multisubjectmax",), convert=whole, default=100_000, help="How many; 0: one a message"),
)
_RATE = (
    Option(names=("--throughput",), convert=decimal, help="Messages a second of all clients together"),
    Option(names=("--duration",), convert=seconds, help="How long, with --throughput, in place of --msgs"),
)
_PUBLISHING = (
    *_MULTI,
    Option(names=("--multisubjectrandomize",), convert=bool, help="Use them in random order"),
    Option(names=("--payload",), convert=existing_file, help="A file with the payload"),
    HEADER,
    *_RATE,
)
_STREAM = Option(names=("--stream",), default="benchstream", help="Name of the stream")
_PURGE = Option(names=("--purge",), convert=bool, help="Purge the stream first")
_STORAGE = (
    Option(
        names=("--storage",), choices=("file", "memory"), default="file", help="Storage of what is created"
    ),
    Option(names=("--replicas",), convert=count, default=1, help="Replicas of what is created"),
    Option(names=("--maxbytes",), convert=size, default=1 << 30, help="Largest size of what is created"),
)
_STORING = (
    _STREAM,
    Option(names=("--create",), convert=bool, help="Create or update the stream first"),
    *_STORAGE,
    Option(names=("--dedup",), convert=bool, help="Give every message an id"),
    Option(
        names=("--dedupwindow",),
        convert=seconds,
        default=120.0,
        help="How long the created stream remembers ids",
    ),
    Option(names=("--persistasync",), convert=bool, help="The created stream acks before it writes"),
    _PURGE,
)
_CONSUMING = (
    _STREAM,
    Option(names=("--consumer",), default="nats-bench", help="Name of the durable consumer"),
    Option(names=("--acks",), choices=("explicit", "none", "all"), default="explicit", help="Its ack policy"),
    Option(names=("--doubleack",), convert=bool, negatable=True, help="Wait for the answer to each ack"),
)
_FILTER = Option(
    names=("--filter",), metavar="SUBJECT", repeated=True, commas=True, help="Only these subjects"
)


def _batch(default: int, text: str) -> Option:
    return Option(names=("--batch",), convert=count, default=default, help=text)


def _payload(run: CommandRun) -> bytes:
    file = run.values.path("payload")
    return file.read_bytes() if file is not None else b"\0" * run.values.number("size")


def _messages_and_rate(run: CommandRun) -> tuple[int, float]:
    """How many messages there are, and how many a second each client sends (0: without limit)."""
    values = run.values
    throughput = values.value("throughput") or 0.0
    messages = values.number("msgs")
    if values.given("duration"):
        if not throughput:
            raise UsageError("--duration needs --throughput, which says how many messages that are")
        messages = max(1, round(values.seconds("duration") * throughput))
    return messages, throughput / values.number("clients")


def _publishing_job(run: CommandRun, kind: str, **more: Any) -> BenchJob:
    values = run.values
    messages, rate = _messages_and_rate(run)
    subjects = (values.number("multisubjectmax") or messages) if values.flag("multisubject") else 0
    return BenchJob(
        kind=kind,
        number=0,
        settings=run.settings,
        messages=messages,
        subject=values.text("subject"),
        payload=_payload(run),
        headers=dict(values.value("header")),
        sleep_s=values.seconds("sleep"),
        rate=rate,
        subjects=subjects,
        random_subjects=values.flag("multisubjectrandomize"),
        **more,
    )


async def _measure(run: CommandRun, job: BenchJob, *, each: bool = False) -> None:
    clients = run.values.number("clients")
    run.output.note(
        f"Starting {job.kind} benchmark [clients={clients}, msgs={number_text(job.messages)}, "
        f"size={size_text(len(job.payload))}]"
    )
    results = await run_clients(job, clients, each=each)
    show_results(run.output, job, results)
    target = run.values.path("csv")
    if target is not None:
        write_csv(target, job, results)


@BENCH.command(
    "pub",
    "Publish messages.",
    arguments=(_SUBJECT,),
    options=(*_COMMON, *_PUBLISHING),
    examples=("bench pub test --msgs 1000000 --clients 2",),
)
async def bench_pub(run: CommandRun) -> None:
    await _measure(run, _publishing_job(run, "pub"))


@BENCH.command(
    "sub",
    "Receive messages; every client receives all of them.",
    arguments=(_SUBJECT,),
    options=(*_COMMON, *_MULTI),
    details="The time begins with the first message: start `bench pub` afterwards.",
)
async def bench_sub(run: CommandRun) -> None:
    values = run.values
    job = BenchJob(
        kind="sub",
        number=0,
        settings=run.settings,
        messages=values.number("msgs"),
        subject=values.text("subject"),
        payload=b"\0" * values.number("size"),
        subjects=int(values.flag("multisubject")),
    )
    await _measure(run, job, each=True)


BENCH_SERVICE = BENCH.group("service", "Measure requests and replies.")


@BENCH_SERVICE.command(
    "request", "Send requests one after another.", arguments=(_SUBJECT,), options=(*_COMMON, *_PUBLISHING)
)
async def bench_request(run: CommandRun) -> None:
    await _measure(run, _publishing_job(run, "service request"))


@BENCH_SERVICE.command("serve", "Answer requests.", arguments=(_SUBJECT,), options=(*_COMMON, *_PUBLISHING))
async def bench_serve(run: CommandRun) -> None:
    await _measure(run, _publishing_job(run, "service serve"))


BENCH_JS = BENCH.group("js", "Measure streams.")
BENCH_JS_PUB = BENCH_JS.group("pub", "Publish to a stream.")
BENCH_JS_GET = BENCH_JS.group("get", "Get messages without a consumer.")


async def _prepare_stream(run: CommandRun, js: JetStream) -> None:
    """Create, check and purge the stream as the options say. Raises CommandFailed if it is missing.

    Its configuration is that of the official command line, which refuses a stream with another one.
    """
    values = run.values
    name, subject = values.text("stream"), values.text("subject")
    if values.flag("create"):
        settings: dict[str, Any] = {
            "subjects": [f"{subject}.>" if values.flag("multisubject") else subject],
            "storage": values.text("storage"),
            "num_replicas": values.number("replicas"),
            "max_bytes": values.number("maxbytes"),
            "duplicate_window": values.seconds("dedupwindow"),
            "allow_direct": True,
            "discard": "new",
            "allow_atomic": True,
            "allow_batched": True,
        }
        if values.flag("persistasync"):
            settings["persist_mode"] = "async"
        await js.create_or_update_stream(name, **settings)
    try:
        stream = await js.stream(name)
    except StreamNotFoundError:
        raise CommandFailed(
            f"there is no stream {name!r}: give --create, or --stream with another name"
        ) from None
    if values.flag("purge"):
        await stream.purge()


def _js_publisher(kind: str) -> CommandFunction:
    async def run_bench(run: CommandRun) -> None:
        async with run.jetstream() as js:
            await _prepare_stream(run, js)
        values = run.values
        more: dict[str, Any] = {"dedup": values.flag("dedup")}
        if kind != "js pub sync":
            more["batch"] = values.number("batch")
        if kind == "js pub fast":
            more["outstanding_acks"] = values.number("max-outstanding-acks")
        await _measure(run, _publishing_job(run, kind, **more))

    return run_bench


_JS_PUBLISHING = (*_COMMON, *_PUBLISHING, *_STORING)
BENCH_JS_PUB.command("sync", "Wait for each ack.", arguments=(_SUBJECT,), options=_JS_PUBLISHING)(
    _js_publisher("js pub sync")
)
BENCH_JS_PUB.command(
    "async",
    "Publish with many acks outstanding.",
    arguments=(_SUBJECT,),
    options=(*_JS_PUBLISHING, _batch(500, "Most acks outstanding")),
    examples=("bench js pub async test --create --purge --msgs 1000000",),
)(_js_publisher("js pub async"))
BENCH_JS_PUB.command(
    "atomic",
    "Publish atomic batches.",
    arguments=(_SUBJECT,),
    options=(*_JS_PUBLISHING, _batch(500, "Messages of a batch")),
)(_js_publisher("js pub atomic"))
BENCH_JS_PUB.command(
    "fast",
    "Publish by fast ingest.",
    arguments=(_SUBJECT,),
    options=(
        *_JS_PUBLISHING,
        _batch(500, "Most messages of an ack"),
        Option(
            names=("--max-outstanding-acks",),
            convert=count,
            default=2,
            help="Acks that may be outstanding (1 to 3)",
        ),
    ),
)(_js_publisher("js pub fast"))


async def _prepare_consumer(run: CommandRun, js: JetStream) -> None:
    """Create the durable consumer unless it is there. Raises CommandFailed without a stream."""
    values = run.values
    name = values.text("consumer")
    try:
        stream = await js.stream(values.text("stream"))
    except StreamNotFoundError:
        raise CommandFailed(
            f"there is no stream {values.text('stream')!r}: fill it with `bench js pub`"
        ) from None
    settings: dict[str, Any] = {"ack_policy": values.text("acks"), "max_ack_pending": -1}
    if values.texts("filter"):
        settings["filter_subjects"] = values.texts("filter")
    if values.flag("purge"):  # measure the whole stream again
        with suppress(ConsumerNotFoundError):
            await stream.delete_consumer(name)
    try:
        await stream.consumer(name)
    except ConsumerNotFoundError:
        await stream.create_consumer(name, **settings)


def _js_reader(kind: str) -> CommandFunction:
    async def run_bench(run: CommandRun) -> None:
        values = run.values
        durable = kind in ("js fetch", "js consume")
        more: dict[str, Any] = {}
        if durable:
            async with run.jetstream() as js:
                await _prepare_consumer(run, js)
            more = {"consumer": values.text("consumer"), "acks": values.text("acks")}
            more["double_ack"] = values.flag("doubleack")
        job = BenchJob(
            kind=kind,
            number=0,
            settings=run.settings,
            messages=values.number("msgs"),
            payload=b"\0" * values.number("size"),
            stream=values.text("stream"),
            filters=tuple(values.texts("filter")),
            batch=values.number("batch"),
            **more,
        )
        await _measure(run, job, each=not durable)

    return run_bench


_RENEW = Option(names=("--purge",), convert=bool, help="Remove the consumer first, to read the stream again")
_BUFFER = _batch(500, "Most messages in the client's buffer")
BENCH_JS.command(
    "fetch",
    "Fetch batches from a durable consumer; clients share its messages.",
    options=(*_COMMON, *_CONSUMING, _FILTER, _RENEW, _batch(500, "Messages of a fetch")),
    details="Fill the stream with `bench js pub` before. --purge removes the consumer, not the messages, "
    "so that the stream can be read again.",
)(_js_reader("js fetch"))
BENCH_JS.command(
    "consume",
    "Consume from a durable consumer; clients share its messages.",
    options=(*_COMMON, *_CONSUMING, _FILTER, _RENEW, _BUFFER),
)(_js_reader("js consume"))
BENCH_JS.command(
    "ordered",
    "Read the stream with ordered consumers; every client reads all of it.",
    options=(*_COMMON, _STREAM, _FILTER, _BUFFER),
)(_js_reader("js ordered"))
BENCH_JS_GET.command(
    "sync",
    "Get messages by their sequences, one after another.",
    options=(*_COMMON, _STREAM, _FILTER, _BUFFER),
)(_js_reader("js get sync"))
BENCH_JS_GET.command("batch", "Get batches of messages.", options=(*_COMMON, _STREAM, _FILTER, _BUFFER))(
    _js_reader("js get batch")
)

# --- buckets -----------------------------------------------------------------------------------------

BENCH_KV = BENCH.group("kv", "Measure key-value buckets.")
_BUCKET = Option(names=("--bucket",), default="benchbucket", help="Name of the bucket")
_RANDOM_KEYS = Option(
    names=("--randomize",), convert=whole, help="Use keys at random below this number (0: one after another)"
)


def _kv_job(run: CommandRun, kind: str, **more: Any) -> BenchJob:
    values = run.values
    return BenchJob(
        kind=kind,
        number=0,
        settings=run.settings,
        messages=values.number("msgs"),
        payload=b"\0" * values.number("size"),
        sleep_s=values.seconds("sleep"),
        stream=values.text("bucket"),
        random_keys=values.number("randomize"),
        **more,
    )


@BENCH_KV.command(
    "put",
    "Put values into a bucket, one after another.",
    options=(
        *_COMMON,
        _BUCKET,
        *_STORAGE,
        Option(names=("--history",), convert=count, default=1, help="Values to keep per key"),
        Option(names=("--purge",), convert=bool, help="Remove the bucket first"),
        _RANDOM_KEYS,
        *_RATE,
    ),
    details="The bucket of the default name is created when it is missing; another one must be there.",
    examples=("bench kv put --purge --msgs 10000",),
)
async def bench_kv_put(run: CommandRun) -> None:
    values = run.values
    name = values.text("bucket")
    async with run.jetstream() as js:
        if values.flag("purge"):
            with suppress(BucketNotFoundError):
                await js.delete_key_value(name)
        try:
            await js.key_value(name)
        except BucketNotFoundError:
            if not (values.flag("purge") or name == _BUCKET.default):
                raise CommandFailed(f"there is no bucket {name!r}: create it with `kv add {name}`") from None
            await js.create_key_value(
                name,
                history=values.number("history"),
                storage=values.text("storage"),
                replicas=values.number("replicas"),
                max_bytes=values.number("maxbytes"),
            )
    messages, rate = _messages_and_rate(run)
    await _measure(run, replace(_kv_job(run, "kv put"), messages=messages, rate=rate))


@BENCH_KV.command(
    "get",
    "Get values from a bucket, one after another.",
    options=(*_COMMON, _BUCKET, _RANDOM_KEYS),
    details="Fill the bucket with `bench kv put` before.",
)
async def bench_kv_get(run: CommandRun) -> None:
    async with run.jetstream() as js:
        try:
            await js.key_value(run.values.text("bucket"))
        except BucketNotFoundError as error:
            raise CommandFailed(f"{error}: fill it with `bench kv put`") from None
    await _measure(run, _kv_job(run, "kv get"))
