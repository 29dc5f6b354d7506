"""Writes a stream to Parquet, Delta and Iceberg in every way there is, and dies where it is asked to:

    python -m tests.support.spark_lakes_query <server port> <folder> <step> <packages>

step: `before` the write of a range or micro-batch; `after` it, when Spark and the archive do not know of it;
`none`; or `purge`: none, and the stream is purged in the end.
All ways run at once. Those that can stop at a step wait there for each other, then the process kills itself
and its JVM. Otherwise it prints as JSON what each table has.

tests/integration/spark/test_lakes.py runs it, with the Spark that the jars of `packages` are for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMATS = ("parquet", "delta", "iceberg")
TIMEOUT_S = 240.0
STREAM = "LAKE"


class Steps:
    """Kills the process group when as many ways as there are have reached the step."""

    def __init__(self, step: str, ways: int) -> None:
        self.step = step
        self._barrier = threading.Barrier(ways, action=self._die, timeout=TIMEOUT_S)

    def reach(self, step: str) -> None:
        if step == self.step:
            self._barrier.wait()

    @staticmethod
    def _die() -> None:
        os.killpg(0, signal.SIGKILL)


def session(folder: Path, packages: str) -> Any:
    from penstock.spark import ensure_spark, register

    ensure_spark()
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.lake_tables import settings_of

    delta, iceberg = settings_of("delta", "", {}), settings_of("iceberg", "lake.db.t", {})
    extensions = ",".join(settings["spark.sql.extensions"] for settings in (delta, iceberg))
    builder = SparkSession.builder.master("local[4,2]")
    for name, value in {
        **delta,
        **iceberg,
        "spark.sql.extensions": extensions,
        "spark.sql.catalog.lake.warehouse": str(folder / "lake"),
        "spark.jars.packages": packages,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.databricks.delta.snapshotPartitions": "1",  # of its log; 50 tasks by default
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        **({"spark.jars.ivy": os.environ["SPARK_LAKES_IVY"]} if "SPARK_LAKES_IVY" in os.environ else {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


class Ways:
    """The ways to write, each a function that returns when all that is stored is written."""

    def __init__(self, spark: Any, port: str, folder: Path, steps: Steps) -> None:
        self.spark = spark
        self.options = {"servers": f"127.0.0.1:{port}", "stream": STREAM}
        self.folder = folder
        self.steps = steps

    def place(self, way: str, table_format: str) -> str:
        if table_format == "iceberg":
            return f"lake.db.{way}"
        return str(self.folder / f"{way}-{table_format}")

    def query(self, way: str, table_format: str) -> Any:
        frame = self.spark.readStream.format("jetstream").options(**self.options).load()
        checkpoint = str(self.folder / f"checkpoint-{way}-{table_format}")
        writer = frame.select("stream", "seq", "data").writeStream.trigger(availableNow=True)
        return writer.option("checkpointLocation", checkpoint)

    def batches(self, table_format: str) -> None:
        """The recipes for foreachBatch."""
        from penstock.spark.pipelines import batch_writes

        place = self.place("batches", table_format)
        if table_format == "parquet":
            write = batch_writes.parquet_batches(place)
        elif table_format == "delta":
            write = batch_writes.delta_batches(place, name="lakes")
        else:
            write = batch_writes.iceberg_batches(place, name="Lakes")

        def stopping(rows: Any, batch_id: int) -> None:
            self.steps.reach("before")
            write(rows, batch_id)
            self.steps.reach("after")

        self.query("batches", table_format).foreachBatch(stopping).start().awaitTermination()

    def sink(self, table_format: str) -> None:
        """The sink of the format itself."""
        writer, place = self.query("sink", table_format), self.place("sink", table_format)
        query = (
            writer.toTable(place) if table_format == "iceberg" else writer.format(table_format).start(place)
        )
        query.awaitTermination()

    def archive(self, table_format: str, *, purge: bool = False) -> None:
        from penstock.spark.pipelines.archive import archive

        archive(
            self.spark, STREAM, self.place("archive", table_format), {"servers": self.options["servers"]},
            format=table_format, range_records=40, purge=purge,
        )  # fmt: skip

    def read(self, way: str, table_format: str) -> list[int]:
        from penstock.spark.pipelines.replay import archived, table

        place = self.place(way, table_format)
        if way == "archive":
            frame = archived(self.spark, place, table_format)
        elif way == "table":
            place = self.place("archive", table_format)
            options = {"servers": self.options["servers"]}
            frame = table(self.spark, STREAM, place, options, format=table_format)
        elif table_format == "iceberg":
            frame = self.spark.table(place)
        else:
            frame = self.spark.read.format(table_format).load(place)
        return [row.seq for row in frame.select("seq").orderBy("seq").collect()]


def stop_archives(steps: Steps) -> None:
    """Makes archives stop before and after what writes a range for good."""
    from penstock.spark.pipelines.lake_tables import DeltaArchive, IcebergArchive
    from penstock.spark.pipelines.manifest import Manifest

    def around(kind: Any, name: str) -> None:
        done: Callable[..., None] = getattr(kind, name)

        def stopping(self: Any, *arguments: Any) -> None:
            steps.reach("before")
            done(self, *arguments)
            steps.reach("after")

        setattr(kind, name, stopping)

    for kind, name in ((DeltaArchive, "append"), (IcebergArchive, "append"), (Manifest, "add")):
        around(kind, name)


def main(port: str, folder: Path, step: str, packages: str) -> None:
    spark = session(folder, packages)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    for way in ("batches", "sink"):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS lake.db.{way} (stream string, seq bigint, data binary) USING iceberg"
        )
    steps = Steps(step, 2 * len(FORMATS))
    stop_archives(steps)
    ways = Ways(spark, port, folder, steps)
    failed: list[str] = []

    def run(way: Callable[[str], None], table_format: str) -> None:
        try:
            way(table_format)
        except Exception as error:  # noqa: BLE001  of one thread; the test shows it
            failed.append(f"{way.__name__} {table_format}: {error}")

    threads = [
        threading.Thread(target=run, args=(way, table_format))
        for way in (ways.sink, ways.batches, ways.archive)
        for table_format in FORMATS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, "\n".join(failed)
    if step == "purge":
        for table_format in FORMATS:
            ways.archive(table_format, purge=True)
    shown = ("sink", "batches", "archive", "table")
    found = {f"{way} {kind}": ways.read(way, kind) for way in shown for kind in FORMATS}
    print(json.dumps({"version": spark.version, "found": found}))
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
