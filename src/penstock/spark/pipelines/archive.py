"""A stream into partitioned Parquet: incremental, verified, safe to run again.

A run goes on behind the last range of the manifest. Each range of sequences is read once, written as Parquet
by day, and read back: number, bytes and hash of what came out of the stream must equal those of the files.
Only then its entry is written, so that a run that fails anywhere leaves an archive of whole, verified ranges.
With `purge`, messages that are archived are then removed from the stream.

Rejected: a streaming query into Parquet (its file sink knows no ranges, so nothing can be verified or joined
to the stream without a gap); Delta (delta-spark has no release for the Spark versions this package takes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError, MisuseError
from penstock.protocol import api
from penstock.spark.driver import Driver
from penstock.spark.offsets import StreamBounds
from penstock.spark.pipelines.manifest import Manifest, ManifestEntry, RangeTotals
from penstock.spark.pipelines.steps import Steps
from penstock.spark.source import register
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from rich.console import Console

RANGE_RECORDS = 1_000_000


@dataclass(frozen=True)
class Archived:
    """What a run did. `entries`: the ranges it added. purged: messages it removed from the stream."""

    stream: str
    path: str
    entries: tuple[ManifestEntry, ...]
    strays: int
    purged: int

    @property
    def rows(self) -> int:
        return sum(entry.totals.rows for entry in self.entries)

    @property
    def bytes(self) -> int:
        return sum(entry.totals.bytes for entry in self.entries)


def archive(
    spark: SparkSession,
    stream: str,
    path: str,
    options: Mapping[str, str] | None = None,
    *,
    range_records: int = RANGE_RECORDS,
    purge: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> Archived:
    """Archives what `stream` holds behind the archive's end, up to its last message of now.

    path: a folder Spark can write. options: of the connection, as for format `jetstream`. range_records:
    sequences of one range. purge: remove from the stream what is archived; refused while a consumer has not
    acked it, unless `force`.

    Raises JetStreamError when the stream lost messages that are not archived, was made anew, or what was read
    is not what the files hold; MisuseError when a purge is refused.
    """
    if range_records < 1:
        raise MisuseError(f"range_records is {range_records}; it must be 1 or more")
    register(spark)
    given = {**(options or {}), "stream": stream}
    driver = Driver(SourceOptions.parse(given))
    try:
        manifest = Manifest(spark, path)
        known = manifest.entries()
        strays = manifest.remove_strays(known)
        bounds = driver.bounds()[stream]
        start = _resume(known, bounds, path)
        end = bounds.last_seq + 1
        added: list[ManifestEntry] = []
        with Steps(console, f"archiving {stream}", max(0, end - start)) as steps:
            while start < end:
                until = min(start + range_records, end)
                totals = _archive_range(spark, given, manifest, bounds, start, until)
                entry = ManifestEntry(stream, bounds.created, start, until, totals)
                manifest.add(entry)
                added.append(entry)
                steps.advance(until - start)
                start = until
        purged = 0
        if purge and (known or added):
            purged = driver.ask(lambda c: _purge(c, stream, [*known, *added][-1].end, force=force))
    finally:
        driver.close()
    return Archived(stream, manifest.path, tuple(added), strays, purged)


def _resume(known: list[ManifestEntry], bounds: StreamBounds, path: str) -> int:
    if not known:
        return bounds.first_seq
    last = known[-1]
    if last.stream != bounds.name:
        raise MisuseError(f"{path} is the archive of stream {last.stream!r}, not of {bounds.name!r}")
    if not last.is_of(bounds):
        raise JetStreamError(
            f"stream {bounds.name!r} was made anew at {bounds.created}; {path} holds the one made "
            f"{last.created}: archive to another folder"
        )
    if last.is_cut_off(bounds):
        raise JetStreamError(
            f"stream {bounds.name!r} begins at {bounds.first_seq}, the archive {path} ends before "
            f"{last.end}: what lies between was removed before it was archived; archive to another folder"
        )
    return last.end


def _archive_range(
    spark: SparkSession,
    given: Mapping[str, str],
    manifest: Manifest,
    bounds: StreamBounds,
    start: int,
    end: int,
) -> RangeTotals:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    entry = ManifestEntry(bounds.name, bounds.created, start, end, RangeTotals(0, 0, 0))
    folder = f"{manifest.data}/{entry.folder}"
    ours = {"startingSequence": str(start), "endingSequence": str(end - 1), "includeHeaders": "true"}
    frame = spark.read.format("jetstream").options(**{**given, **ours}).load().drop("stream")
    observation = Observation()
    observed = frame.observe(observation, *_totals()).withColumn("day", f.to_date("time"))
    observed.write.mode("overwrite").partitionBy("day").parquet(folder)
    read = _told(observation.get)
    if read.rows:
        written = totals_of(spark.read.parquet(folder))
        if written != read:
            raise JetStreamError(
                f"{folder} does not hold what was read of stream {bounds.name!r}: read {read}, it holds "
                f"{written}; nothing was purged, and the range is not part of the archive"
            )
    return read


def _totals() -> list[Column]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("rows"),
        f.coalesce(f.sum(f.length("data")), f.lit(0)).alias("bytes"),
        f.coalesce(f.bit_xor(f.xxhash64("seq", "subject", "time", "data")), f.lit(0)).alias("hash"),
    ]


def totals_of(frame: DataFrame) -> RangeTotals:
    """Number, bytes and hash of the messages in a table with the archive's columns."""
    row = frame.agg(*_totals()).collect()[0]
    return RangeTotals(row.rows, row.bytes, row.hash)


def _told(found: Mapping[str, int]) -> RangeTotals:
    return RangeTotals(found["rows"], found["bytes"], found["hash"])


def _purge(connection: BlockingConnection, stream: str, end: int, *, force: bool) -> int:
    """Removes what lies before sequence `end`; MisuseError when a consumer still needs it."""
    if not force:
        behind = [
            f"{consumer.name} (acked up to {consumer.ack_floor.stream_seq})"
            for consumer in _consumers(connection, stream)
            if consumer.ack_floor.stream_seq < end - 1 and (consumer.num_pending or consumer.num_ack_pending)
        ]
        if behind:
            raise MisuseError(
                f"not purged: consumers of stream {stream!r} are behind {end - 1}: {', '.join(behind)}; wait "
                "for them, or purge with force"
            )
    answer = connection.api(
        api.StreamPurgeResponse, f"STREAM.PURGE.{stream}", api.StreamPurgeRequest(seq=end)
    )
    return answer.purged


def _consumers(connection: BlockingConnection, stream: str) -> list[api.ConsumerInfo]:
    found: list[api.ConsumerInfo] = []
    while True:
        page = connection.api(
            api.ConsumerListResponse,
            f"CONSUMER.LIST.{stream}",
            {"offset": len(found)},
        )
        found += page.consumers
        if not page.consumers or len(found) >= page.total:
            return found
