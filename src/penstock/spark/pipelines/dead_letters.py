"""A stream of dead letters (consumer metadata `penstock.dead_letter`): what is in it, and back with it.

Letters say in their headers where they came from and why. To re-drive one is to publish its payload and its
own headers to its original subject again; the message id `redrive:<stream>:<sequence>` keeps a run that is
repeated from doing it twice.
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
    """letters: published again, by the stream they went to. removed: letters deleted afterwards."""

    letters: Mapping[str, int]
    removed: int


def letters(spark: SparkSession, stream: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """The letters as a table: seq, time, origin (a stream), consumer, origin_subject, origin_seq, deliveries,
    reason, headers, data. Messages that are no letters are left out."""
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
    """Counts of letters `by_reason` (origin, consumer, reason), `by_subject`, and `by_hour`."""
    from pyspark.sql import functions as f

    found = letters(spark, stream, options)
    counted = [f.count("*").alias("letters"), f.min("time").alias("first"), f.max("time").alias("last")]
    return {
        "by_reason": found.groupBy("origin", "consumer", "reason").agg(*counted).orderBy(f.desc("letters")),
        "by_subject": found.groupBy("origin_subject").agg(*counted).orderBy(f.desc("letters")),
        "by_hour": found.groupBy(f.date_trunc("hour", "time").alias("hour"))
        .agg(f.count("*").alias("letters"))
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
    """Publishes letters to their original subjects again, in the order they were written.

    options: of the connection. where: a condition in SQL over the columns of `letters`. remove: delete the
    letters that were published. Raises what writing to format `jetstream` raises, as when an original stream
    is gone.
    """
    from pyspark.sql import functions as f

    found = letters(spark, stream, options)
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
    with ReconnectingConnection(options) as link:
        for seq in sequences:
            link.ask(partial(_delete, stream=stream, seq=seq))
            removed += 1
    return removed


def _delete(connection: BlockingConnection, stream: str, seq: int) -> None:
    with contextlib.suppress(MessageNotFoundError):  # an answer that was lost
        request = api.MsgDeleteRequest(seq=seq, no_erase=True)
        connection.api(api.SuccessResponse, f"STREAM.MSG.DELETE.{stream}", request)
