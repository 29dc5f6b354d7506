"""Two kinds of messages of a stream joined into a third stream as they come: departures with arrivals, orders
with payments.

A stream-stream join that keeps each side until its partner came or the watermark says none will: messages
may come in any order and up to `late` behind the newest one. What comes later still finds no partner and is
counted. A left message that has no partner when the watermark has passed it goes out alone (`outer`).

The pairs go into a stream exactly once (docs/spark-sink.md). Copy this function where the join is another
one: it is Spark's ordinary API throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import MisuseError
from penstock.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class JoinSide:
    """The messages whose subjects match `subject` (a filter): JSON documents with a `key` field, the same on
    both sides, and a `time` field (ISO 8601)."""

    subject: str
    key: str
    time: str


@dataclass(frozen=True)
class Enriched:
    """batches: micro-batches that ran. read: messages of both sides. late: those behind the watermark, which
    could not be joined."""

    batches: int
    read: int
    late: int


def enrich(
    spark: SparkSession,
    stream: str,
    into: str,
    options: Mapping[str, str] | None = None,
    *,
    left: JoinSide,
    right: JoinSide,
    subject: str,
    checkpoint: str,
    within: str = "1 day",
    late: str = "1 hour",
    outer: bool = False,
) -> Enriched:
    """Joins what is stored in `stream` and not yet read, and returns; run it again for what came since.

    options: of the connection. subject: a template over the column `key` for the pairs' subjects in stream
    `into`. within: how far a pair's times may be apart. late: how long to wait for messages out of order, of
    either side. A pair is `{"left": <document>, "right": <document or null>}`.

    Raises MisuseError when both sides have the same filter, and what reading and writing raise.
    """
    if left.subject == right.subject:
        raise MisuseError(f"both sides are {left.subject!r}: a message would be its own partner")
    from pyspark.sql import functions as f

    register(spark)
    given = dict(options or {})
    lefts = _side(spark, stream, given, left, late, "l")
    rights = _side(spark, stream, given, right, late, "r")
    near = f"l_key = r_key AND r_at BETWEEN l_at - INTERVAL {within} AND l_at + INTERVAL {within}"
    pairs = lefts.join(rights, f.expr(near), "leftOuter" if outer else "inner")
    document = f.concat(
        f.lit('{"left":'), "l_data", f.lit(',"right":'), f.coalesce("r_data", f.lit("null")), f.lit("}")
    )
    query = (
        pairs.select(document.alias("data"), f.col("l_key").alias("key"))
        .writeStream.format("jetstream")
        .options(**{**given, "stream": into, "subject": subject})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = list(query.recentProgress)
    dropped = [state["numRowsDroppedByWatermark"] for p in done for state in p["stateOperators"]]
    return Enriched(len(done), sum(p["numInputRows"] for p in done), sum(dropped))


def _side(
    spark: SparkSession, stream: str, given: Mapping[str, str], side: JoinSide, late: str, name: str
) -> DataFrame:
    """Columns <name>_key, <name>_at, <name>_data; a document without its key or time is nobody's partner."""
    from pyspark.sql import functions as f

    ours = {"stream": stream, "subject": side.subject, "payload": "string"}
    messages = spark.readStream.format("jetstream").options(**{**given, **ours}).load()
    at = f.try_to_timestamp(f.get_json_object("data", f"$.{side.time}"))
    return messages.select(
        f.get_json_object("data", f"$.{side.key}").alias(f"{name}_key"),
        at.alias(f"{name}_at"),
        f.col("data").alias(f"{name}_data"),
    ).withWatermark(f"{name}_at", late)
