"""Inspects and republishes dead letters (consumer metadata `penstock.dead_letter`).

The headers of a dead letter hold its origin and the reason. Re-driving publishes its payload and original
headers to its original subject. The message id `redrive:<stream>:<sequence>` prevents duplicates when a run
is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import MessageNotFoundError
from penstock.protocol import api
from penstock.spark.connection_options import ConnectionOptions
from penstock.spark.pipelines.steps import Steps
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.source import register
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

PREFIX = "Penstock-Dead-Letter-"
_FACTS = {
    "origin": "Stream",
    "consumer": "Consumer",
    "origin_subject": "Subject",
    "origin_seq": "Sequence",
    "deliveries": "Deliveries",
    "reason": "Reason",
}


@dataclass(frozen=True)
class Redriven:
    """messages: count of republished dead letters by target stream. removed: those deleted afterwards."""

    messages: Mapping[str, int]
    removed: int


def dead_letters(spark: SparkSession, stream: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Dead letters as a table, without other messages.

    Columns: seq, time, origin (a stream), consumer, origin_subject, origin_seq, deliveries, reason, headers,
    data.
    """
    from pyspark.sql import functions as f

    register(spark)
    given = {**(options or {}), "stream": stream, "includeHeaders": "true"}
    frame = spark.read.format("jetstream").options(**given).load()
    facts = [f.col("headers")[PREFIX + header][0].alias(name) for name, header in _FACTS.items()]
    found = frame.select("seq", "time", *facts, "headers", "data").where("origin is not null")
    return found.withColumns({name: f.col(name).cast("bigint") for name in ("origin_seq", "deliveries")})


def analyse(
    spark: SparkSession, stream: str, options: Mapping[str, str] | None = None
) -> dict[str, DataFrame]:
    """Counts of dead letters `by_reason` (origin, consumer, reason), `by_subject`, and `by_hour`."""
    from pyspark.sql import functions as f

    found = dead_letters(spark, stream, options)
    counted = [f.count("*").alias("messages"), f.min("time").alias("first"), f.max("time").alias("last")]
    return {
        "by_reason": found.groupBy("origin", "consumer", "reason").agg(*counted).orderBy(f.desc("messages")),
        "by_subject": found.groupBy("origin_subject").agg(*counted).orderBy(f.desc("messages")),
        "by_hour": found.groupBy(f.date_trunc("hour", "time").alias("hour"))
        .agg(f.count("*").alias("messages"))
        .orderBy("hour"),
    }


def redrive(
    spark: SparkSession,
    stream: str,
    options: Mapping[str, str] | None = None,
    *,
    where: str | None = None,
    remove: bool = False,
    console: Console | None = None,
) -> Redriven:
    """Publishes dead letters to their original subjects, in stream order.

    options: connection options. where: SQL condition over the columns of `dead_letters`. remove: delete the
    republished ones. Raises what writing to format `jetstream` raises, for example if an original stream
    no longer exists.
    """
    from pyspark.sql import functions as f

    found = dead_letters(spark, stream, options)
    if where is not None:
        found = found.where(where)
    found = found.persist()
    try:
        counts = {row.origin: row["count"] for row in found.groupBy("origin").count().collect()}
        own = f.map_filter(
            "headers", lambda name, _: ~name.startswith(PREFIX) & ~f.lower(name).startswith("nats-")
        )
        with Steps(console, f"re-driving {stream}", sum(counts.values())) as steps:
            for origin, count in sorted(counts.items()):
                rows = found.where(f.col("origin") == origin).select(
                    f.col("origin_subject").alias("subject"), "data", own.alias("headers"), "seq"
                )
                settings = {
                    "messageId": f"redrive:{stream}:{{seq}}",
                    "writeId": f"redrive-{stream}",
                    **(options or {}),
                    "stream": origin,
                }
                ordered = rows.coalesce(1).sortWithinPartitions("seq")
                ordered.write.format("jetstream").options(**settings).mode("append").save()
                steps.advance(count)
        removed = 0
        if remove:
            connection = SourceOptions.parse({**(options or {}), "stream": stream}).connection
            removed = _remove(connection, stream, [row.seq for row in found.select("seq").collect()])
    finally:
        found.unpersist()
    return Redriven(counts, removed)


def _remove(options: ConnectionOptions, stream: str, sequences: list[int]) -> int:
    removed = 0
    with ReconnectingConnection(options) as connection:
        for seq in sequences:
            connection.call(partial(_delete, stream=stream, seq=seq))
            removed += 1
    return removed


def _delete(connection: BlockingConnection, stream: str, seq: int) -> None:
    with contextlib.suppress(MessageNotFoundError):  # deleted by an earlier attempt whose answer was lost
        request = api.MsgDeleteRequest(seq=seq, no_erase=True)
        connection.api(api.SuccessResponse, f"STREAM.MSG.DELETE.{stream}", request)
