"""The Spark job: departures and delays by carrier and month, from the stream and from the data frame.

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

from penstock.spark import ensure_spark, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ["carrier", "month", "flights", "departures", "mean_delay", "p95_delay"]
TOLERANCE_MINUTES = 1e-6  # the two sum in different orders

# The fields that the job needs; from_json ignores the others.
DOCUMENT_SCHEMA = "carrier string, month int, dep_delay int"


class MismatchError(AssertionError):
    """The stream's messages differ from the published ones."""


def start_spark() -> SparkSession:
    """A local session on all cores, with the system's Java or the packaged one, and compiled modules."""
    ensure_spark()
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
        # C1 only: the job ends before C2 pays off
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    register(spark)
    return spark


def by_carrier_and_month(messages: DataFrame) -> DataFrame:
    """One row per carrier and month, in that order, with COLUMNS. messages: a table with a column data."""
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
    """The same table computed from the data frame."""
    groups = flights.groupby(["carrier", "month"])["dep_delay"]
    table = groups.agg(flights="size", departures="count", mean_delay="mean")
    table["p95_delay"] = groups.quantile(0.95)
    return table.reset_index()[COLUMNS]


def write(table: DataFrame, folder: Path) -> pd.DataFrame:
    """Run the job: write the table as Parquet to `folder` and return it as a pandas frame."""
    table.coalesce(1).write.mode("overwrite").parquet(str(folder))
    written = pd.read_parquet(folder)
    return written.sort_values(["carrier", "month"], ignore_index=True)[COLUMNS]


def time_read(spark: SparkSession, url: str, stream: str) -> float:
    """Seconds to read every column of every message."""
    messages = spark.read.format("jetstream").option("servers", url).option("stream", stream).load()
    started = time.perf_counter()
    messages.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def check(found: pd.DataFrame, flights: pd.DataFrame, rows: int) -> None:
    """Raise MismatchError if the stream has another number of rows than `rows`, or a value differs."""
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
