"""The streaming query: aggregates flights by day and airport from one stream into another.

A streaming query reads the flights in the order of their planned hours, counts them in windows of a day, and
writes a window to the stream FLIGHT_DAYS once the watermark says that no more flights of that day will come.
A last message far in the future (`publish_end`) closes the last windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from flights_publish import STREAM
from flights_table import MismatchError

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS_STREAM = "FLIGHT_DAYS"
END_SUBJECT = "flights.end"
FLIGHT_SUBJECTS = "flights.*.*.*"  # all but the end
DOCUMENT_SCHEMA = "origin string, dep_delay int, time_hour timestamp"
DAY_SCHEMA = "day date, origin string, flights bigint, departures bigint, mean_delay double"
COLUMNS = ["day", "origin", "flights", "departures", "mean_delay"]
PER_BATCH = 50_000


async def publish_end(url: str) -> None:
    """Publish the message that closes the last windows, and create the target stream."""
    async with penstock.connect(url) as client:
        js = client.jetstream()
        await js.create_stream(DAYS_STREAM, subjects=["flight-days.>"])
        await js.publish(END_SUBJECT, b'{"origin":"end","time_hour":"2100-01-01T00:00:00Z"}')


def stream_days(spark: SparkSession, url: str, checkpoint: Path) -> list[dict[str, Any]]:
    """Run the query over all stored messages; return the progress of its micro-batches."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    messages = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("maxRecordsPerTrigger", PER_BATCH)
        .load(STREAM)
    )
    flight = F.from_json(F.col("data").cast("string"), DOCUMENT_SCHEMA, {"mode": "FAILFAST"})
    days = (
        messages.select(flight.alias("flight"))
        .select("flight.*")
        .withWatermark("time_hour", "1 day")
        .groupBy(F.window("time_hour", "1 day"), "origin")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departures"),
            F.avg("dep_delay").alias("mean_delay"),
        )
    )
    day = F.struct(F.to_date("window.start").alias("day"), "origin", "flights", "departures", "mean_delay")
    query = (
        days.select(F.to_json(day).alias("data"), "origin")
        .writeStream.format("jetstream")
        .option("servers", url)
        .option("stream", DAYS_STREAM)
        .option("subject", "flight-days.{origin}")
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return list(query.recentProgress)


def read_days(spark: SparkSession, url: str) -> pd.DataFrame:
    """The query's output: one row per day and airport, in that order."""
    from pyspark.sql import functions as F  # noqa: N812

    messages = spark.read.format("jetstream").option("servers", url).load(DAYS_STREAM)
    day = F.from_json(F.col("data").cast("string"), DAY_SCHEMA, {"mode": "FAILFAST"})
    return messages.select(day.alias("day")).select("day.*").orderBy("day", "origin").toPandas()[COLUMNS]


def check_days(found: pd.DataFrame, flights: pd.DataFrame) -> None:
    """Raise MismatchError if the windows differ from those of the data frame."""
    day = pd.to_datetime(flights["time_hour"], utc=True).dt.date.rename("day")
    groups = flights.groupby([day, "origin"])["dep_delay"]
    want = groups.agg(flights="size", departures="count", mean_delay="mean").reset_index()[COLUMNS]
    try:
        pd.testing.assert_frame_equal(found, want, check_dtype=False, check_exact=False, atol=1e-6)
    except AssertionError as error:
        raise MismatchError(f"the days of the stream differ from the data frame's: {error}") from None
