"""`penstock latency`: how long messages take from a publisher at one server to a subscriber at another."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

from penstock.cli.framework.command_run import CommandFailed, CommandRun
from penstock.cli.framework.command_table import Command, Option
from penstock.cli.framework.value_kinds import count, path, seconds, size
from penstock.cli.framework.value_texts import duration_text, number_text, size_text
from penstock.client import Client, Msg
from penstock.errors import MisuseError

PERCENTILES = (10, 50, 75, 90, 99, 99.9, 99.99, 100)
_STAMP = struct.Struct("<q")
_REST_S = 5.0


def percentile(ordered: list[float], percent: float) -> float:
    """The value below which so many percent of the ordered values are; of an empty list 0."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, round(percent / 100 * len(ordered)) - 1))]


async def _latency(run: CommandRun) -> None:
    values = run.values
    bytes_each, rate, duration_s = (values.number("size"), values.number("rate"), values.seconds("duration"))
    if bytes_each < _STAMP.size:
        raise MisuseError(f"--size is {bytes_each}; the time of a message takes {_STAMP.size} bytes")
    total = max(1, int(duration_s * rate))
    url = values.text("server-b") or run.settings.url
    async with run.connect() as publisher, run.connect_to(url) as subscriber:
        rtts = await publisher.rtt(), await subscriber.rtt()
        with run.output.progress("messages", total) as bar:
            times_s = await _measure(publisher, subscriber, total, rate, bytes_each, bar.advance)
    times_s.sort()
    if not times_s:
        raise CommandFailed("no message arrived: do both servers belong to one cluster?")
    target = values.path("histogram")
    if target is not None:
        _write_histogram(target, times_s)
    if run.output.as_json:
        run.output.json({
            "messages": total, "received": len(times_s), "rtt_s": rtts[0], "rtt_b_s": rtts[1],
            "percentiles_s": {str(one): percentile(times_s, one) for one in PERCENTILES},
        })  # fmt: skip
    else:
        rows: list[tuple[str, object]] = [
            ("Publisher RTT", duration_text(rtts[0])), ("Subscriber RTT", duration_text(rtts[1])),
            ("Message size", size_text(bytes_each)), ("Messages", number_text(total)),
            ("Received", number_text(len(times_s))),
        ]  # fmt: skip
        shown = [(f"{one:g}%", duration_text(percentile(times_s, one))) for one in PERCENTILES]
        run.output.sections(
            f"Latency from {publisher_name(run)} to {url}", [("", rows), ("Percentiles", shown)]
        )
    if len(times_s) < total:
        raise CommandFailed(f"{total - len(times_s)} of {total} messages were lost")


def publisher_name(run: CommandRun) -> str:
    """Servers of the publisher."""
    return run.settings.url


async def _measure(
    publisher: Client, subscriber: Client, total: int, rate: int, bytes_each: int, advance: object
) -> list[float]:
    """Publish at a steady rate, and return the seconds that each received message took."""
    times_s: list[float] = []
    complete = asyncio.Event()
    subject = subscriber.new_inbox()

    def received(message: Msg) -> None:
        times_s.append((time.perf_counter_ns() - _STAMP.unpack_from(message.data)[0]) / 1e9)
        if len(times_s) == total:
            complete.set()

    await _until_routed(publisher, subscriber)
    await subscriber.subscribe(subject, callback=received)
    await subscriber.flush()
    rest = bytes(bytes_each - _STAMP.size)
    started = time.perf_counter()
    for number in range(total):
        ahead_s = started + number / rate - time.perf_counter()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        await publisher.publish(subject, _STAMP.pack(time.perf_counter_ns()) + rest)
        if callable(advance):
            advance(1)
    await publisher.flush()
    try:
        async with asyncio.timeout(_REST_S):
            await complete.wait()
    except TimeoutError:
        pass
    return times_s


async def _until_routed(publisher: Client, subscriber: Client) -> None:
    """Wait until a message of the publisher arrives: routes announce interest with a delay."""
    arrived = asyncio.Event()
    subject = subscriber.new_inbox()

    def arrive(_: Msg) -> None:
        arrived.set()

    probe = await subscriber.subscribe(subject, callback=arrive)
    await subscriber.flush()
    deadline = time.monotonic() + _REST_S
    while not arrived.is_set() and time.monotonic() < deadline:
        await publisher.publish(subject)
        await publisher.flush()
        try:
            async with asyncio.timeout(0.1):
                await arrived.wait()
        except TimeoutError:
            continue
    await probe.unsubscribe()


def _write_histogram(target: Path, ordered: list[float]) -> None:
    """All times in nanoseconds, ascending, one a line."""
    target.write_text("".join(f"{round(one * 1e9)}\n" for one in ordered), encoding="utf-8")


LATENCY = Command(
    name="latency",
    summary="Measure how long messages take between two servers.",
    run=_latency,
    options=(
        Option(names=("--server-b",), metavar="URL", help="Server of the subscriber (default: the same)"),
        Option(names=("--size",), convert=size, default=8, help="Bytes of a message"),
        Option(names=("--rate",), convert=count, default=1000, help="Messages a second"),
        Option(names=("--duration",), convert=seconds, default=5.0, help="How long to publish"),
        Option(names=("--histogram",), convert=path, help="Write all times to a file, in nanoseconds"),
    ),
    aliases=("lat",),
    examples=("latency --server nats://a:4222 --server-b nats://b:4222 --rate 5000",),
)
