"""Archives a stream to partitioned Parquet, Delta or Iceberg: incremental, verified, repeatable.

A run continues after the last range that is archived. Each range of sequences is read once, written, and read
back: count, bytes and hash of the messages read must equal those of the files or the table.

Parquet is partitioned by day. The range's entry in the manifest is written after its files are verified, so
a run that fails leaves an archive of complete, verified ranges. A range of Delta and Iceberg is one commit,
which is verified after it is made (lake_tables.py): a wrong one is an error that names it, and nothing is
purged. With `purge`, archived messages are then removed from the stream.

Rejected: a streaming query to Parquet (its file sink has no ranges, so nothing can be verified or joined to
the stream without a gap).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, JetStreamError, MisuseError
from penstock.protocol import api
from penstock.spark.driver import Driver
from penstock.spark.offsets import StreamBounds
from penstock.spark.pipelines.lake_tables import COLUMNS, LAKE_FORMATS, LakeTable, lake_table
from penstock.spark.pipelines.manifest import Manifest, ManifestEntry, RangeTotals
from penstock.spark.pipelines.steps import Steps
from penstock.spark.source import register
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from rich.console import Console

RANGE_RECORDS = 1_000_000
FORMATS = ("parquet", *LAKE_FORMATS)


@dataclass(frozen=True)
class Archived:
    """Result of a run.

    entries: ranges added. strays: incomplete ranges of failed runs that were removed. purged: messages
    removed from the stream.
    """

    stream: str
    path: str
    entries: tuple[ManifestEntry, ...]
    strays: int
    purged: int

    @property
    def rows(self) -> int:
        """Messages archived by this run."""
        return sum(entry.totals.rows for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Payload bytes archived by this run."""
        return sum(entry.totals.bytes for entry in self.entries)


def archive(
    spark: SparkSession,
    stream: str,
    path: str,
    options: Mapping[str, str] | None = None,
    *,
    format: str = "parquet",
    range_records: int = RANGE_RECORDS,
    purge: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> Archived:
    """Archive the messages of `stream` after the archive's end, up to its current last message.

    path: a directory Spark can write; for format iceberg, a table's name (catalog.database.table). options:
    connection options of format `jetstream`. format: parquet, delta or iceberg. range_records: sequences per
    range. purge: remove archived messages from the stream; rejected while a consumer has not acked them,
    unless `force`. console: for progress.

    Raises JetStreamError if the stream lost messages that are not archived, was recreated, or the archive
    differs from what was read; MisuseError if a purge is rejected; ConfigError for a format that is not known
    or whose jar is missing.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format!r}: {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    if range_records < 1:
        raise MisuseError(f"range_records is {range_records}; it must be 1 or more")
    register(spark)
    given = {**(options or {}), "stream": stream}
    driver = Driver(SourceOptions.parse(given))
    try:
        target = Manifest(spark, path) if format == "parquet" else lake_table(spark, format, path)
        known = target.entries()
        strays = target.remove_strays(known) if isinstance(target, Manifest) else 0
        bounds = driver.bounds()[stream]
        start = _resume(known, bounds, path)
        end = bounds.last_seq + 1
        added: list[ManifestEntry] = []
        with Steps(console, f"archiving {stream}", max(0, end - start)) as steps:
            while start < end:
                until = min(start + range_records, end)
                if isinstance(target, Manifest):
                    totals = _archive_range(spark, given, target, bounds, start, until)
                    entry = ManifestEntry(stream, bounds.created, start, until, totals)
                    target.add(entry)
                else:
                    entry = _range_to_table(spark, given, target, bounds, start, until)
                added.append(entry)
                steps.advance(until - start)
                start = until
        purged = 0
        if purge and known and isinstance(target, LakeTable):
            _verify(target, known[-1])  # a run that was killed may have committed it and not verified it
        if purge and (known or added):
            purged = driver.call(lambda c: _purge(c, stream, [*known, *added][-1].end, force=force))
    finally:
        driver.close()
    place = target.path if isinstance(target, Manifest) else target.where
    return Archived(stream, place, tuple(added), strays, purged)


def _resume(known: list[ManifestEntry], bounds: StreamBounds, path: str) -> int:
    if not known:
        return bounds.first_seq
    last = known[-1]
    if last.stream != bounds.name:
        raise MisuseError(f"{path} is the archive of stream {last.stream!r}, not of {bounds.name!r}")
    if not last.is_of(bounds):
        raise JetStreamError(
            f"stream {bounds.name!r} was recreated at {bounds.created}; {path} holds the one made "
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
    frame = _messages(spark, given, start, end).drop("stream")
    observation = Observation()
    observed = frame.observe(observation, *_totals()).withColumn("day", f.to_date("time"))
    observed.write.mode("overwrite").partitionBy("day").parquet(folder)
    read = _observed(observation.get)
    if read.rows:
        written = totals_of(spark.read.parquet(folder))
        if written != read:
            raise JetStreamError(
                f"{folder} does not hold what was read of stream {bounds.name!r}: read {read}, it holds "
                f"{written}; nothing was purged, and the range is not part of the archive"
            )
    return read


def _messages(spark: SparkSession, given: Mapping[str, str], start: int, end: int) -> DataFrame:
    ours = {"startingSequence": str(start), "endingSequence": str(end - 1), "includeHeaders": "true"}
    return spark.read.format("jetstream").options(**{**given, **ours}).load()


def _range_to_table(
    spark: SparkSession,
    given: Mapping[str, str],
    table: LakeTable,
    bounds: StreamBounds,
    start: int,
    end: int,
) -> ManifestEntry:
    """Add a range to a table. A range without messages is a commit too: it says how far the archive is."""
    table.create(bounds.name, bounds.created)
    # Kept while it is written: these formats run their writes as queries of their own, which observe nothing.
    rows = _messages(spark, given, start, end).select(*COLUMNS).persist()
    try:
        entry = ManifestEntry(bounds.name, bounds.created, start, end, totals_of(rows))
        table.append(rows, entry)
    finally:
        rows.unpersist()
    _verify(table, entry)
    return entry


def _verify(table: LakeTable, entry: ManifestEntry) -> None:
    """Raises JetStreamError if the table does not hold the messages of the range."""
    written = totals_of(table.messages().where(f"seq >= {entry.start} AND seq < {entry.end}"))
    if written != entry.totals:
        raise JetStreamError(
            f"table {table.where} does not hold what was read of stream {entry.stream!r}, sequences "
            f"{entry.start} to {entry.end - 1}: read {entry.totals}, it holds {written}; nothing was purged. "
            "Restore the table to the version before"
        )


def _totals() -> list[Column]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("rows"),
        f.coalesce(f.sum(f.length("data")), f.lit(0)).alias("bytes"),
        f.coalesce(f.bit_xor(f.xxhash64("seq", "subject", "time", "data")), f.lit(0)).alias("hash"),
    ]


def totals_of(frame: DataFrame) -> RangeTotals:
    """Count, bytes and hash of the messages in a table with the archive's columns."""
    row = frame.agg(*_totals()).collect()[0]
    return RangeTotals(row.rows, row.bytes, row.hash)


def _observed(found: Mapping[str, int]) -> RangeTotals:
    return RangeTotals(found["rows"], found["bytes"], found["hash"])


def _purge(connection: BlockingConnection, stream: str, end: int, *, force: bool) -> int:
    """Purge messages before sequence `end`. Raises MisuseError if a consumer has not acked them."""
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


def _consumers(connection: BlockingConnection, stream: str) -> list[api.ApiConsumerInfo]:
    found: list[api.ApiConsumerInfo] = []
    while True:
        page = connection.api(
            api.ConsumerListResponse,
            f"CONSUMER.LIST.{stream}",
            {"offset": len(found)},
        )
        found += page.consumers
        if not page.consumers or len(found) >= page.total:
            return found
