"""Rows per second that Spark reads from a stream: payloads of 128 B, all columns.

With one task (`local[1]`): a server process, one Python worker and one JVM thread. Rows go to Spark's `noop`
sink, which reads every column and discards it, so that the source is measured. The first reads warm up the
JVM. Alternating with it, a plain nats-py reader in `mapPartitions` reads a twentieth of the same stream. The
CPU time of each process is reported too: on a busy machine it is the more stable figure. The last line of the
output is JSON.

--server official measures nats-server; --partitions 1,2,4 reads with so many tasks in turn (`local[4]`), to
find the limit of server or machine; the other figures belong to the first number.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cputime import Figures, load_average, measured
from load import fill_stream
from servers import ServerProcess, official_server, penstock_server
from spark_sources import ROWS, read_with_nats_py

from penstock.spark import ensure_compiled_spark, ensure_java, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "SPARK"
SIZE_BYTES = 128
WARM_UP_READS = 2


def session(cores: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session in which penstock's source is registered, with more settings of Spark."""
    spark = bare_session(cores, settings)
    register(spark)
    return spark


def bare_session(cores: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    ensure_java()
    ensure_compiled_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers find the modules beside this one.
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def read(spark: SparkSession, port: int, messages: int, partitions: int) -> float:
    """Rows per second of one complete read, including its planning."""
    frame = (
        spark.read.format("jetstream")
        .options(servers=f"nats://127.0.0.1:{port}", stream=STREAM)
        .options(recordsPerPartition=-(-messages // partitions))
        .load()
    )
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - started)


def read_by_nats_py(spark: SparkSession, port: int, messages: int, partitions: int) -> float:
    """Rows per second of a plain nats-py reader in mapPartitions."""
    share = messages // partitions
    spans = [(i * share + 1, (i + 1) * share) for i in range(partitions)]

    def rows(given: Iterator[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(read_with_nats_py(port, STREAM, span) for span in given)

    frame = spark.createDataFrame(spark.sparkContext.parallelize(spans, partitions).mapPartitions(rows), ROWS)
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return share * partitions / (time.perf_counter() - started)


@contextmanager
def running_server(kind: str, folder: Path) -> Iterator[ServerProcess]:
    server = penstock_server(folder) if kind == "penstock" else official_server(folder)
    if server is None:
        sys.exit("no nats-server on PATH and no go to install it")
    if kind == "penstock":
        # Also works with PYTHONPATH instead of an installed package.
        server.command = [sys.executable, "-m", "penstock", "serve"]
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def filled_server(kind: str, folder: Path, messages: int) -> Iterator[ServerProcess]:
    """A server with `messages` messages in stream STREAM."""
    with running_server(kind, folder) as server:
        fill_stream(server.port, messages=messages, size_bytes=SIZE_BYTES, name=STREAM)
        yield server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--reads", type=int, default=3)
    parser.add_argument("--partitions", default="1", help="numbers of tasks, comma-separated")
    parser.add_argument("--server", choices=["penstock", "official"], default="penstock")
    options = parser.parse_args()
    partitions = [int(text) for text in options.partitions.split(",")]
    figures = {count: Figures() for count in partitions}
    plain: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-spark-") as name,
        filled_server(options.server, Path(name), options.messages) as server,
    ):
        spark = session(max(partitions))
        for _ in range(WARM_UP_READS):
            read(spark, server.port, options.messages, partitions[0])
        for _ in range(options.reads):
            for count in partitions:
                with measured(server.pid, figures[count], options.messages):
                    read(spark, server.port, options.messages, count)
            plain.append(read_by_nats_py(spark, server.port, options.messages // 20, partitions[0]))
        spark.stop()
    first = figures[partitions[0]].summary()
    result = first | {
        "rows_per_s": first["rows_per_s"] // partitions[0],
        "nats_py_rows_per_s": round(statistics.median(plain) / partitions[0]),
        "times_nats_py": round(first["rows_per_s"] / statistics.median(plain), 1),
        "by_partitions": {count: found.summary() for count, found in figures.items()},
        "messages": options.messages,
        "server": options.server,
        "load": load_average(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
