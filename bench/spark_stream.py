"""A streaming query compared with a batch read of the same stream, and the source's cost per micro-batch.

`local[1]`. Rates: 1 M messages of 128 B into Spark's `noop` sink, alternately as a batch and with
AvailableNow from start to end of the query; medians. A query starts a Python process for the source's driver
side: the time until the first micro-batch is reported for this source and for one without data, and the rate
is also given without it. Overhead: micro-batches of one message each, alternating with those of a source with
one constant row; difference of the medians. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cputime import load_average
from spark_read import STREAM, filled_server, read, session
from spark_sources import IdleSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MICRO_BATCHES = 15
TURNS = 3


def run(frame: DataFrame, folder: Path) -> tuple[float, list[Any]]:
    """Seconds until the first micro-batch started, and the progress of each one that read messages."""
    started_s = time.time()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [progress for progress in query.recentProgress if progress.numInputRows]
    return datetime.fromisoformat(found[0].timestamp).timestamp() - started_s, found


def stream_rate(spark: SparkSession, port: int, messages: int, folder: Path) -> tuple[float, float]:
    """Rows per second of the whole query, and from its first micro-batch on."""
    frame = (
        spark.readStream.format("jetstream")
        .options(servers=f"nats://127.0.0.1:{port}", stream=STREAM, recordsPerPartition=messages)
        .load()
    )
    started = time.perf_counter()
    begin_s, found = run(frame, folder)
    took_s = time.perf_counter() - started
    rows = sum(progress.numInputRows for progress in found)
    assert rows == messages, (rows, messages)
    return rows / took_s, rows / (took_s - begin_s)


def trigger_ms(frame: DataFrame, folder: Path) -> tuple[float, list[int]]:
    """The time until the first micro-batch, and of each one, without the first ones."""
    begin_s, found = run(frame, folder)
    return begin_s * 1e3, [int(progress.durationMs["triggerExecution"]) for progress in found][3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--server", choices=["penstock", "official"], default="penstock")
    options = parser.parse_args()
    batch, stream, after_begin = [], [], []
    begins: dict[str, list[float]] = {"ours": [], "idle": []}
    ours: list[int] = []
    idle: list[int] = []
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as name:
        folder = Path(name)
        with filled_server(options.server, folder, options.messages) as server:
            port = server.port
            spark = session(1)
            spark.dataSource.register(IdleSource)
            one_each = spark.readStream.format("jetstream").options(
                servers=f"nats://127.0.0.1:{port}",
                stream=STREAM,
                columns="seq,data",
                maxRecordsPerTrigger=1,
                startingSequence=options.messages - MICRO_BATCHES + 1,
            )
            nothing = spark.readStream.format("idle").option("batches", MICRO_BATCHES)
            for turn in range(options.turns + 1):
                rates = (
                    read(spark, port, options.messages, 1),
                    stream_rate(spark, port, options.messages, folder / f"stream{turn}"),
                )
                times = (
                    trigger_ms(one_each.load(), folder / f"one{turn}"),
                    trigger_ms(nothing.load(), folder / f"idle{turn}"),
                )
                if turn == 0:
                    continue  # warm-up of the JVM
                batch.append(rates[0])
                stream.append(rates[1][0])
                after_begin.append(rates[1][1])
                for source, (begin_ms, _) in zip(begins, times, strict=True):
                    begins[source].append(begin_ms)
                ours += times[0][1]
                idle += times[1][1]
            spark.stop()
    rows = statistics.median(batch), statistics.median(stream)
    shares = [round(one / other, 2) for one, other in zip(stream, batch, strict=True)]
    later = [round(one / other, 2) for one, other in zip(after_begin, batch, strict=True)]
    medians = statistics.median(ours), statistics.median(idle)
    print(
        json.dumps(
            {
                "batch_rows_per_s": round(rows[0]),
                "stream_rows_per_s": round(rows[1]),
                "share": round(statistics.median(shares), 2),
                "shares": shares,
                "shares_after_begin": later,
                "begin_ms": {name: round(statistics.median(each)) for name, each in begins.items()},
                "micro_batch_ms": medians[0],
                "idle_micro_batch_ms": medians[1],
                "overhead_ms": round(medians[0] - medians[1], 1),
                "messages": options.messages,
                "server": options.server,
                "load": load_average(),
            }
        )
    )


if __name__ == "__main__":
    main()
