"""What the standalone test runs in a driver of its own: `python -m tests.support.spark_cluster_query <master>
<folder> <port> …`; for each server a batch read, a streaming query into files, and one into a second stream
whose last micro-batch runs twice. Writes <folder>/found.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STREAM = "EVENTS"
COPY = "COPY"
PER_TRIGGER = "1500"


def executors(frame: Any) -> list[str]:
    """Which executors read the frame's partitions."""

    def name(batches: Any) -> Any:
        import os

        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        if rows:
            yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()]})

    return sorted({row.folder for row in frame.mapInArrow(name, "folder string").collect()})


def copied(spark: Any, options: dict[str, str], checkpoint: Path) -> int:
    """Streams everything into COPY; returns how many rows the micro-batches of this run read."""
    query = (
        spark.readStream.format("jetstream")
        .options(**options, maxRecordsPerTrigger=PER_TRIGGER)
        .load()
        .selectExpr("concat('copy.', split_part(subject, '.', 2)) AS subject", "data")
        .writeStream.format("jetstream")
        .option("servers", options["servers"])
        .option("stream", COPY)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died when all tasks had written and the commit had not been."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in [*commits.glob(f"{last}*"), *commits.glob(f".{last}*")]:
        path.unlink()


def main(master: str, folder: Path, ports: list[str]) -> None:
    from pyspark.sql import SparkSession

    from penstock.spark import register

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "60s")
        .config("spark.locality.wait", "0s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    register(spark)
    found = {}
    for port in ports:
        options = {
            "servers": f"127.0.0.1:{port}",
            "stream": STREAM,
            "minPartitions": "4",
            "payload": "string",
        }
        frame = spark.read.format("jetstream").options(**options).load()
        out = folder / port
        query = (
            spark.readStream.format("jetstream")
            .options(**options, maxRecordsPerTrigger=PER_TRIGGER)
            .load()
            .writeStream.format("parquet")
            .option("path", str(out / "rows"))
            .option("checkpointLocation", str(out / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        first = copied(spark, options, out / "copying")
        forget_last_commit(out / "copying")
        again = copied(spark, options, out / "copying")
        copy = spark.read.format("jetstream").options(**options | {"stream": COPY}).load()
        found[port] = {
            "written": [first, again],
            "copy": sorted((int(row.data), row.subject) for row in copy.collect()),
            "batch": sorted((row.seq, row.data) for row in frame.collect()),
            "pushed": frame.where("seq > 10 and subject = 'events.1'").count(),
            "streamed": sorted((r.seq, r.data) for r in spark.read.parquet(str(out / "rows")).collect()),
            "executors": executors(frame),
        }
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
