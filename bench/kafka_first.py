"""Seconds of the first query, and of the first stream, of a Spark session: penstock beside Kafka.

    kafka_first.py query|stream|fill penstock|kafka PENSTOCK_PORT KAFKA_PORT JARS ROWS

`first` starts this file in a new process, and so in a new JVM, for each figure. The time begins when the
SparkSession is ready (for penstock before `register`), and ends with the result: five columns of a small
stream or topic of one partition in Spark's `noop` sink. The session with Kafka's source has the connector's
jars. `fill` fills a topic and prints nothing of use. The last line of the output is JSON.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka_broker import Jars, running_broker
from kafka_ways import KAFKA, PENSTOCK, Addresses, available_now, discard, fill, source
from load import LoadError
from rich.progress import Progress
from spark_read import bare_session, running_server

from penstock.spark import register

KINDS = ("query", "stream")
WAYS = (PENSTOCK, KAFKA)
STREAM = "FIRST"
SIZE_BYTES = 128
WARM_UP_ROUNDS = 1
CORES = 2
TIMEOUT_S = 300.0


def first(folder: Path, jars: Jars, rows: int, rounds: int, progress: Progress) -> dict[str, Any]:
    """Seconds by kind and way."""
    figures: dict[str, dict[str, list[float]]] = {kind: {way: [] for way in WAYS} for kind in KINDS}
    connector = ",".join(map(str, jars.connector))
    with running_server("penstock", folder) as penstock, running_broker(folder, jars.broker) as kafka:
        at = Addresses(penstock.port, kafka.port)
        task = progress.add_task("filling", total=(WARM_UP_ROUNDS + rounds) * len(KINDS) * len(WAYS))
        in_new_process("fill", KAFKA, at, connector, rows)
        for turn in range(WARM_UP_ROUNDS + rounds):
            for kind in KINDS:
                for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                    progress.update(task, description=f"first {kind}: {way}")
                    took_s = in_new_process(kind, way, at, connector if way == KAFKA else "", rows)
                    if turn >= WARM_UP_ROUNDS:
                        figures[kind][way].append(round(took_s, 3))
                    progress.advance(task)
        progress.remove_task(task)
    for kind, found in figures.items():
        shown = ", ".join(f"{way} {statistics.median(each):.2f}" for way, each in found.items())
        progress.console.print(f"first {kind} of a session, s: {shown}", soft_wrap=True)
    return figures


def in_new_process(kind: str, way: str, at: Addresses, jars: str, rows: int) -> float:
    """What `measure` of a new process returns. Its JVM ends too, also if this process is interrupted."""
    ports = str(at.penstock_port), str(at.kafka_port)
    command = [sys.executable, __file__, kind, way, *ports, jars, str(rows)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise LoadError(f"first {kind}, {way}: ended with {process.returncode}")
        return float(json.loads(output.strip().splitlines()[-1]))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure(kind: str, way: str, at: Addresses, jars: str, rows: int) -> float:
    """The seconds that a query or stream took; how long `fill` took means nothing."""
    spark = bare_session(CORES, {"spark.jars": jars} if jars else {})
    started = time.perf_counter()
    if kind == "fill":
        fill(spark, at, STREAM, rows, SIZE_BYTES, (1,))
        return time.perf_counter() - started
    if way == PENSTOCK:
        register(spark)
    reader = spark.read if kind == "query" else spark.readStream
    frame = source(reader, at, way, STREAM, rows, 1)
    if kind == "query":
        discard(frame)
        return time.perf_counter() - started
    with tempfile.TemporaryDirectory(prefix="penstock-kafka-") as folder:
        query = available_now(frame, Path(folder) / "checkpoint")
        took_s = time.perf_counter() - started
    read = sum(progress.numInputRows for progress in query.recentProgress)
    assert read == rows, (read, rows)
    return took_s


if __name__ == "__main__":
    _, kind, way, penstock_port, kafka_port, jars, rows = sys.argv
    print(json.dumps(measure(kind, way, Addresses(int(penstock_port), int(kafka_port)), jars, int(rows))))
