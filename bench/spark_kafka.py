"""penstock's Spark source and sink beside Spark's Kafka source and sink, interleaved.

    spark_kafka.py reads|streams|writes|latency|first [--messages N] [--rounds N]

A penstock server and a Kafka broker (kafka_broker.py) run on the same two cores as Spark. Each round
measures every way (kafka_ways.py) once, and the first one rotates; the rounds before are warm-up. All read
and write the same rows with as many tasks: a topic has the partitions, a stream is split into them.

    reads       rows/s of a batch read into Spark's `noop` sink, payloads of 128 B and 1 KiB
    streams     rows/s of AvailableNow into `noop`, from start to end of the query, 128 B
    writes      rows/s written, 128 B: penstock's deliveries exactly once, and `once`: at least once, which is
                what Kafka's sink is
    latency     ms from publish to the rows in foreachBatch, at 1,000 rows/s (kafka_latency.py)
    first       s of the first query, and the first stream, of a session (kafka_first.py)

The last line of the output is JSON. It has `missing`, and no figures, if this machine has no Java or cannot
get the jars.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka_first
import kafka_latency
from cputime import Figures, load_average, measured
from kafka_broker import KAFKA_VERSION, Jars, MissingError, found_jars, new_topics, running_broker
from kafka_ways import (
    FURTHER,
    KAFKA,
    PENSTOCK,
    TUNED,
    WAYS,
    Pair,
    available_now,
    discard,
    fill,
    payloads,
    source,
    tasks,
    to_kafka,
    to_penstock,
)
from load import AFTER_DELETE_S, LoadError
from rich.console import Console
from rich.progress import Progress
from spark_read import running_server, session
from spark_write import DELIVERIES, STREAM, check_stored, make_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORES = 2
TASKS = 4  # of local[4]: as many as a read has partitions at most
PARTITIONS = (1, 4)
WARM_UP_ROUNDS = 2
SMALL_BYTES, LARGE_BYTES = 128, 1024
LARGE_SHARE = 4  # so many times fewer large rows


def rounds_of(ways: Sequence[str], rounds: int) -> Iterator[tuple[bool, str]]:
    """Whether it counts, and the way to measure."""
    for turn in range(WARM_UP_ROUNDS + rounds):
        first = turn % len(ways)
        for way in (*ways[first:], *ways[:first]):
            yield turn >= WARM_UP_ROUNDS, way


@dataclass
class Run:
    """A run of one way: what comes before and after it is not measured."""

    begin: Callable[[], None]
    check: Callable[[], None] = lambda: None


def compare(
    pair: Pair, name: str, ways: Sequence[str], rounds: int, rows: int, prepared: Callable[[str], Run]
) -> dict[str, Any]:
    """Measures each way in turn. Returns the figures of each."""
    figures = {way: Figures() for way in ways}
    task = pair.progress.add_task(name, total=(WARM_UP_ROUNDS + rounds) * len(ways))
    for counts, way in rounds_of(ways, rounds):
        pair.progress.update(task, description=f"{name}: {way}")
        server_pid, idle = pair.pids(way)
        run = prepared(way)
        with measured(server_pid, figures[way] if counts else Figures(), rows, idle):
            run.begin()
        run.check()
        pair.progress.advance(task)
    pair.progress.remove_task(task)
    found = {way: each.summary() for way, each in figures.items()}
    shown = ", ".join(f"{way} {each['rows_per_s']:,}" for way, each in found.items())
    pair.progress.console.print(f"{name}, rows/s: {shown}", soft_wrap=True)
    return found


def fill_all(pair: Pair, stream: str, rows: int, size_bytes: int) -> None:
    task = pair.progress.add_task(f"filling {size_bytes} B", total=1 + 2 * len(PARTITIONS))
    fill(pair.spark, pair.at, stream, rows, size_bytes, PARTITIONS, lambda: pair.progress.advance(task))
    pair.progress.remove_task(task)


def reads(pair: Pair, rows: int, rounds: int) -> dict[str, Any]:
    """By payload size and partitions."""
    small, large = ("SMALL", SMALL_BYTES, rows), ("LARGE", LARGE_BYTES, rows // LARGE_SHARE)
    found: dict[str, Any] = {}
    for stream, size_bytes, count in (small, large):
        fill_all(pair, stream, count, size_bytes)
        found[str(size_bytes)] = {
            str(partitions): read_by_all(pair, stream, size_bytes, count, partitions, rounds)
            for partitions in PARTITIONS
        }
    return found


def read_by_all(
    pair: Pair, stream: str, size_bytes: int, rows: int, partitions: int, rounds: int
) -> dict[str, Any]:
    def frame_of(way: str) -> DataFrame:
        return source(pair.spark.read, pair.at, way, stream, rows, partitions)

    def prepared(way: str) -> Run:
        frame = frame_of(way)
        return Run(lambda: discard(frame))

    for way in WAYS:
        frame = frame_of(way)
        if (frame.rdd.getNumPartitions(), frame.count()) != (partitions, rows):
            raise LoadError(f"{way} does not read {rows} rows with {partitions} tasks")
    return compare(pair, f"batch read, {size_bytes} B, {tasks(partitions)}", WAYS, rounds, rows, prepared)


def streams(pair: Pair, rows: int, rounds: int) -> dict[str, Any]:
    """By partitions."""
    fill_all(pair, "SMALL", rows, SMALL_BYTES)
    found: dict[str, Any] = {}
    for partitions in PARTITIONS:

        def prepared(way: str, partitions: int = partitions) -> Run:
            frame = source(pair.spark.readStream, pair.at, way, "SMALL", rows, partitions)
            queries: list[Any] = []

            def begin() -> None:
                queries.append(available_now(frame, pair.folder / f"query-{time.time_ns()}"))

            def check() -> None:
                read = sum(progress.numInputRows for progress in queries[0].recentProgress)
                if read != rows:
                    raise LoadError(f"{way}: {read} rows of {rows} were read")

            return Run(begin, check)

        name = f"AvailableNow, {SMALL_BYTES} B, {tasks(partitions)}"
        found[str(partitions)] = compare(pair, name, (PENSTOCK, KAFKA, TUNED), rounds, rows, prepared)
    return found


def writes(pair: Pair, rows: int, rounds: int) -> dict[str, Any]:
    """By partitions."""
    found: dict[str, Any] = {}
    for partitions in PARTITIONS:
        frame = payloads(pair.spark, STREAM, rows, SMALL_BYTES, partitions)

        def prepared(way: str, frame: DataFrame = frame, partitions: int = partitions) -> Run:
            if way in DELIVERIES:
                make_stream(pair.penstock)
                return Run(
                    lambda: to_penstock(pair.at, frame, STREAM, DELIVERIES[way]),
                    lambda: check_stored(pair.penstock, rows),
                )
            topic = f"{STREAM}-{time.time_ns()}"
            pair.topics.create(topic, partitions)
            time.sleep(AFTER_DELETE_S)  # as before the stream is made

            def check() -> None:
                stored = pair.topics.stored(topic, partitions)
                pair.topics.delete(topic)
                if stored != rows:
                    raise LoadError(f"{way}: {stored} rows are stored, {rows} were written")

            return Run(lambda: to_kafka(pair.at, frame, topic, way), check)

        name = f"write, {SMALL_BYTES} B, {tasks(partitions)}"
        ways = (*DELIVERIES, KAFKA, TUNED, FURTHER)
        found[str(partitions)] = compare(pair, name, ways, rounds, rows, prepared)
    return found


@contextmanager
def running_pair(folder: Path, progress: Progress, jars: Jars) -> Iterator[Pair]:
    with running_server("penstock", folder) as penstock, running_broker(folder, jars.broker) as kafka:
        spark = session(TASKS, {"spark.jars": ",".join(map(str, jars.connector))})
        try:
            with new_topics(spark, f"127.0.0.1:{kafka.port}") as topics:
                yield Pair(penstock, kafka, spark, topics, folder, progress)
        finally:
            spark.stop()


MEASUREMENTS: dict[str, Callable[[Pair, int, int], dict[str, Any]]] = {
    "reads": reads,
    "streams": streams,
    "writes": writes,
    "latency": kafka_latency.latency,
}
ROWS = {"reads": 1_000_000, "streams": 1_000_000, "writes": 500_000, "latency": 8_000, "first": 20_000}


def measure(name: str, rows: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """Raises MissingError."""
    jars = found_jars()
    if jars.version != jars.spark:
        progress.console.print(
            f"no connector {jars.spark}, as Spark is: that of Spark {jars.version} is used"
        )
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        if name == "first":
            figures = kafka_first.first(Path(folder), jars, rows, rounds, progress)
        else:
            with running_pair(Path(folder), progress, jars) as pair:
                figures = MEASUREMENTS[name](pair, rows, rounds)
    return {name: figures, "messages": rows, "kafka": KAFKA_VERSION, "connector": jars.version}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measure", choices=list(ROWS))
    parser.add_argument(
        "--messages", type=int, help=", ".join(f"{name} {rows:,}" for name, rows in ROWS.items())
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # servers and Spark inherit it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped
    rows = options.messages or ROWS[options.measure]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        try:
            result = measure(options.measure, rows, options.rounds, progress)
        except MissingError as error:
            result = {"missing": str(error)}
    print(json.dumps(result | {"load": load_average()}))


if __name__ == "__main__":
    main()
