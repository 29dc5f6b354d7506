"""Statistics of a stream: rates over time, top subjects, sequence gaps, latencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GAP_SPAN = 100_000  # sequences per span when gaps are counted
PERCENTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Statistics:
    """Tables of statistics.

    totals: one row (messages, bytes, first_seq, last_seq, first, last). rates: start, messages, bytes.
    subjects: subject, messages, bytes, first, last. gaps: first_seq, last_seq, missing, per span with missing
    sequences. latencies: messages, p50 ... p999 in milliseconds; None if not requested.
    """

    totals: DataFrame
    rates: DataFrame
    subjects: DataFrame
    gaps: DataFrame
    latencies: DataFrame | None


def statistics(
    spark: SparkSession,
    stream: str,
    options: Mapping[str, str] | None = None,
    *,
    window: str = "1 minute",
    top: int = 20,
    latency_header: str | None = None,
) -> Statistics:
    """Compute statistics of `stream`.

    options: source options, such as subject and startingTime. window: interval of the rates in Spark's
    notation. top: number of subjects. latency_header: header with the send time, ISO 8601 or milliseconds
    since the epoch; latency is the store time minus the send time.
    """
    from pyspark.sql import functions as f

    register(spark)
    given = {**(options or {}), "stream": stream, "includeHeaders": str(latency_header is not None).lower()}
    frame = spark.read.format("jetstream").options(**given).load()
    amounts = [f.count("*").alias("messages"), f.sum(f.length("data")).alias("bytes")]
    times = [f.min("time").alias("first"), f.max("time").alias("last")]
    totals = frame.agg(*amounts, f.min("seq").alias("first_seq"), f.max("seq").alias("last_seq"), *times)
    rates = frame.groupBy(f.window("time", window).start.alias("start")).agg(*amounts).orderBy("start")
    subjects = frame.groupBy("subject").agg(*amounts, *times).orderBy(f.desc("messages")).limit(top)
    return Statistics(totals, rates, subjects, _gaps(frame), _latencies(frame, latency_header))


def _gaps(frame: DataFrame) -> DataFrame:
    """Spans with missing sequences, not counting those before the first or after the last message."""
    from pyspark.sql import functions as f

    span = f.floor(f.col("seq") / GAP_SPAN).alias("span")
    ends = frame.agg(f.min("seq").alias("low"), f.max("seq").alias("high"))
    counted = frame.groupBy(span).agg(f.count("*").alias("there")).crossJoin(f.broadcast(ends))
    first = f.greatest(f.col("span") * GAP_SPAN, f.col("low"))
    last = f.least(f.col("span") * GAP_SPAN + GAP_SPAN - 1, f.col("high"))
    missing = counted.select(
        first.alias("first_seq"), last.alias("last_seq"), (last - first + 1 - f.col("there")).alias("missing")
    )
    return missing.where("missing > 0").orderBy("first_seq")


def _latencies(frame: DataFrame, header: str | None) -> DataFrame | None:
    if header is None:
        return None
    from pyspark.sql import functions as f

    text = f.col("headers")[header][0]
    millis = f.try_to_number(text, f.lit("9" * 18))
    sent = f.coalesce(
        f.when(text.rlike("^[0-9]+$"), f.timestamp_millis(millis.cast("bigint"))), f.try_to_timestamp(text)
    )
    latency = (f.unix_micros("time") - f.unix_micros(sent)) / 1000
    names = [f"p{str(p * 100).rstrip('0').replace('.', '')}" for p in PERCENTILES]
    found = frame.select(latency.alias("latency_ms")).where("latency_ms is not null")
    quantiles = f.percentile_approx("latency_ms", f.array(*(f.lit(p) for p in PERCENTILES))).alias("q")
    return found.agg(f.count("*").alias("messages"), quantiles).select(
        "messages", *(f.col("q")[i].alias(name) for i, name in enumerate(names))
    )
