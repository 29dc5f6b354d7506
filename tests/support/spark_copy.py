"""A stream that a streaming query copies the numbers of EVENTS into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.spark import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELIVERIES = ("publish", "fast", "atomic")


def make_copy(port: int) -> None:
    feed = Feed(port)
    feed.create("COPY", ["copy.>"], storage="file", allow_atomic=True, allow_batched=True)
    feed.close()


def copy_options(servers: str, delivery: str) -> dict[str, str]:
    options = {
        "servers": servers,
        "stream": "COPY",
        "subject": "copy.rows.{seq}",
        "delivery": delivery,
        "ackWindow": "64",
        "flow": "50",
    }
    if delivery == "atomic":
        options |= {"markerSubject": "copy.markers", "atomicRows": "100"}
    return options


def read_copy(spark: SparkSession, servers: str, subject: str = "copy.rows.>") -> list[int]:
    frame = spark.read.format("jetstream").options(servers=servers, subject=subject)
    return [int(row.data) for row in frame.load("COPY").select("data").collect()]
