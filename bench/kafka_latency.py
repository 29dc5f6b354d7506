"""Milliseconds from publish to foreachBatch, of penstock's source and of Spark's Kafka source.

Rows are sent at 1,000 a second: to penstock through a socket, to Kafka through its console producer, which
sends each line at once. A latency begins when the row is published: of penstock's rows that time is in the
payload, of Kafka's it is the record's timestamp, which the producer sets (in whole milliseconds, so half of
one is added on average; the pipe to the producer is not counted). It ends when foreachBatch has collected
these times. The trigger is the default: a micro-batch begins when the one before it ends.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_broker import java_command
from kafka_ways import KAFKA, PENSTOCK, Pair
from load import LoadError, create_stream, wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RATE_PER_S = 1000
SIZE_BYTES = 128
DIGITS = 19  # of a time in nanoseconds
SETTLE_S = 2.0  # rows of the first seconds do not count: the first micro-batches are longer
WARM_UP_ROUNDS = 1
TIMEOUT_S = 60.0
PRODUCER_HEAP = "128m"
WAYS = (PENSTOCK, KAFKA)
Send = Callable[[bytes], None]


@contextmanager
def nats_publisher(port: int, subject: str) -> Iterator[Send]:
    """Publishes rows, and reads the acks in a thread."""
    with wire(port) as publisher:
        publisher.sock.sendall(b"SUB _INBOX.latency 1\r\n")
        ended = threading.Event()

        def read_acks() -> None:
            while not ended.is_set():
                try:
                    publisher.read()
                except (LoadError, OSError):
                    return

        reader = threading.Thread(target=read_acks, daemon=True)
        reader.start()
        yield lambda row: publisher.sock.sendall(
            b"PUB %b _INBOX.latency %d\r\n%b\r\n" % (subject.encode(), len(row), row)
        )
        ended.set()
        publisher.sock.sendall(b"PING\r\n")  # wakes the reader
        reader.join()


@contextmanager
def kafka_publisher(pair: Pair, topic: str) -> Iterator[Send]:
    """Kafka's console producer, without its delay of a second."""
    command = [*java_command(pair.kafka.jars, PRODUCER_HEAP), "kafka.tools.ConsoleProducer", "--topic", topic]
    command += ["--bootstrap-server", pair.at.kafka, "--timeout", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as producer:
        given = producer.stdin
        assert given is not None

        def send(row: bytes) -> None:
            given.write(row + b"\n")
            given.flush()

        try:
            yield send
        finally:
            given.close()
            try:
                producer.wait(TIMEOUT_S)
            finally:
                producer.kill()


def send_paced(send: Send, rows: int) -> None:
    """`rows` rows at RATE_PER_S, each with the time when it is sent."""
    started = time.perf_counter()
    for number in range(rows):
        due_s = started + number / RATE_PER_S - time.perf_counter()
        if due_s > 0:
            time.sleep(due_s)
        send(b"%0*d" % (DIGITS, time.time_ns()) + b"x" * (SIZE_BYTES - DIGITS))


def latencies_ms(pair: Pair, frame: DataFrame, publisher: Callable[[], Any], rows: int) -> list[float]:
    """Of each row but those of the first SETTLE_S. frame: has a column `sent`."""
    found: list[tuple[int, float]] = []

    def collect(batch: DataFrame, _: int) -> None:
        times = [row.sent for row in batch.collect()]
        now = time.time_ns()
        found.extend((sent, (now - sent) / 1e6) for sent in times)

    checkpoint = str(pair.folder / f"query-{time.time_ns()}")
    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
    try:
        with publisher() as send:
            time.sleep(SETTLE_S)  # for the query and the producer to start
            send_paced(send, rows)
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < rows and query.isActive and time.monotonic() < deadline:
                time.sleep(0.05)
    finally:
        query.stop()
    if len(found) != rows:
        raise LoadError(f"{len(found)} rows of {rows} arrived: {query.exception()}")
    first = min(sent for sent, _ in found)
    return [ms for sent, ms in found if sent >= first + SETTLE_S * 1e9]


def latency(pair: Pair, rows: int, rounds: int) -> dict[str, Any]:
    """Median and p99 of each round."""
    if rows <= SETTLE_S * RATE_PER_S:
        raise LoadError(f"{rows} rows are sent in the {SETTLE_S:g} s that do not count")
    figures: dict[str, dict[str, list[float]]] = {way: {"median_ms": [], "p99_ms": []} for way in WAYS}
    task = pair.progress.add_task("latency", total=(WARM_UP_ROUNDS + rounds) * len(WAYS))
    for turn in range(WARM_UP_ROUNDS + rounds):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            pair.progress.update(task, description=f"latency: {way}")
            found = latencies_ms(pair, *_way(pair, way, turn), rows)
            if turn >= WARM_UP_ROUNDS:
                figures[way]["median_ms"].append(round(statistics.median(found), 1))
                figures[way]["p99_ms"].append(round(statistics.quantiles(found, n=100)[98], 1))
            pair.progress.advance(task)
    pair.progress.remove_task(task)
    for name in ("median_ms", "p99_ms"):
        shown = ", ".join(f"{way} {statistics.median(each[name]):g}" for way, each in figures.items())
        pair.progress.console.print(f"latency at {RATE_PER_S:,} rows/s, {name}: {shown}", soft_wrap=True)
    return figures


def _way(pair: Pair, way: str, turn: int) -> tuple[DataFrame, Callable[[], Any]]:
    """The rows of a new stream or topic, and what publishes to it."""
    name, reader = f"LATENCY{turn}", pair.spark.readStream
    if way == PENSTOCK:
        create_stream(pair.penstock.port, name, f"{name}.>")
        frame = reader.format("jetstream").options(servers=pair.at.penstock, stream=name).load()
        sent = f"cast(substring(cast(data AS string), 1, {DIGITS}) AS bigint) AS sent"
        return frame.selectExpr(sent), lambda: nats_publisher(pair.penstock.port, f"{name}.rows")
    pair.topics.create(name, 1)
    frame = (
        reader.format("kafka")
        .option("kafka.bootstrap.servers", pair.at.kafka)
        .options(subscribe=name, startingOffsets="earliest")
        .load()
    )
    return frame.selectExpr("unix_micros(timestamp) * 1000 AS sent"), lambda: kafka_publisher(pair, name)
