"""The Spark job: departures and delays by carrier and month, from the stream; and the same from the table.

A delay is the departure's, in minutes; flights that did not depart (cancelled) have none and count only in
`flights`. p95 is the exact 95th percentile with linear interpolation, which is what Spark's `percentile` and
pandas' `quantile` both compute.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from penstock.spark import ensure_compiled_spark, ensure_java, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ["carrier", "month", "flights", "departures", "mean_delay", "p95_delay"]
TOLERANCE_MINUTES = 1e-6  # the two sum in different orders

# What the job needs of a document; from_json leaves the rest aside.
DOCUMENT_SCHEMA = "carrier string, month int, dep_delay int"


class MismatchError(AssertionError):
    """What came out of the stream is not what went in."""


def start_spark() -> SparkSession:
    """A local session on every core, on the machine's Java or the packaged one, with compiled modules."""
    ensure_java()
    ensure_compiled_spark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    spark: SparkSession = (
        SparkSession.builder.master("local[*]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        # the quick compiler only: this job is over before the thorough one pays off
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    register(spark)
    return spark


def by_carrier_and_month(messages: DataFrame) -> DataFrame:
    """One row a carrier and month, in that order; columns COLUMNS. messages: a table with a column data."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    flight = F.from_json(F.col("data").cast("string"), DOCUMENT_SCHEMA, {"mode": "FAILFAST"})
    return (
        messages.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier", "month")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departures"),
            F.avg("dep_delay").alias("mean_delay"),
            F.expr("percentile(dep_delay, 0.95)").alias("p95_delay"),
        )
        .orderBy("carrier", "month")
    )


def expected(flights: pd.DataFrame) -> pd.DataFrame:
    """The same table, straight from the data frame."""
    groups = flights.groupby(["carrier", "month"])["dep_delay"]
    table = groups.agg(flights="size", departures="count", mean_delay="mean")
    table["p95_delay"] = groups.quantile(0.95)
    return table.reset_index()[COLUMNS]


def write(table: DataFrame, folder: Path) -> pd.DataFrame:
    """Runs the job: the table goes to Parquet in `folder`, and comes back as pandas has it."""
    table.coalesce(1).write.mode("overwrite").parquet(str(folder))
    written = pd.read_parquet(folder)
    return written.sort_values(["carrier", "month"], ignore_index=True)[COLUMNS]


def time_read(spark: SparkSession, url: str, stream: str) -> float:
    """Seconds to read every column of every message, and nothing else."""
    messages = spark.read.format("jetstream").option("servers", url).option("stream", stream).load()
    started = time.perf_counter()
    messages.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def check(found: pd.DataFrame, flights: pd.DataFrame, rows: int) -> None:
    """Raises MismatchError when the stream's rows are not exactly `rows`, or a figure differs."""
    total = int(found["flights"].sum())
    if total != rows:
        raise MismatchError(f"the stream gave {total:,} rows, {rows:,} flights were published")
    want = expected(flights)
    try:
        pd.testing.assert_frame_equal(
            found, want, check_dtype=False, check_exact=False, rtol=0, atol=TOLERANCE_MINUTES
        )
    except AssertionError as error:
        raise MismatchError(f"the stream's table differs from the one of the data frame: {error}") from None
