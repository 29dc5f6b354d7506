"""Joins two kinds of messages of a stream into a third stream, such as orders with payments.

A stream-stream join keeps each message until its partner arrives or the watermark passes. Messages may arrive
in any order and up to `late` behind the newest one; later ones are not joined but counted. With `outer`, a
left message without a partner is written alone once the watermark has passed it.

Pairs are written exactly once (docs/spark-sink.md). For other joins copy this function: it uses only Spark's
ordinary API.
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
    """One side of the join: JSON documents with a join key and a time (ISO 8601).

    subject: subject filter. key, time: names of the fields.
    """

    subject: str
    key: str
    time: str


@dataclass(frozen=True)
class Enriched:
    """Result of a run. batches: micro-batches. read: messages of both sides. late: messages behind the
    watermark, which were not joined."""

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
    """Join the stored, unread messages of `stream` and return. Run it again for later messages.

    options: connection options. subject: template over column `key` for the subjects of pairs in stream
    `into`. within: largest time difference of a pair. late: how long to wait for out-of-order messages of
    either side. A pair is `{"left": <document>, "right": <document or null>}`.

    Raises MisuseError if both sides have the same filter, and what reading and writing raise.
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
    """Columns <name>_key, <name>_at, <name>_data. Without a key or time a document joins nothing."""
    from pyspark.sql import functions as f

    ours = {"stream": stream, "subject": side.subject, "payload": "string"}
    messages = spark.readStream.format("jetstream").options(**{**given, **ours}).load()
    at = f.try_to_timestamp(f.get_json_object("data", f"$.{side.time}"))
    return messages.select(
        f.get_json_object("data", f"$.{side.key}").alias(f"{name}_key"),
        at.alias(f"{name}_at"),
        f.col("data").alias(f"{name}_data"),
    ).withWatermark(f"{name}_at", late)
