"""Reads an archive as a table, alone or together with its stream, or writes it back to a stream.

The archive's end is the boundary between cold and hot data: sequences below it are read from the archive,
others from the stream. Therefore no message is duplicated or missing, whatever the stream holds below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError, MisuseError
from penstock.spark.driver import Driver
from penstock.spark.pipelines.lake_tables import lake_table
from penstock.spark.pipelines.manifest import Manifest, ManifestEntry
from penstock.spark.source import register
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "subject string, seq bigint, time timestamp, headers map<string, array<string>>, data binary, "
    "range string, day date"
)
COLUMNS = ("subject", "seq", "time", "headers", "data", "stream")

ORIGIN = "Penstock-Origin"  # header of a replayed message: <stream>:<sequence>
ORIGIN_TIME = "Penstock-Origin-Time"


@dataclass(frozen=True)
class Replayed:
    """Result of a run. rows: messages read from the archive and stored, now or by an earlier run."""

    stream: str
    rows: int


def archived(spark: SparkSession, path: str, format: str = "parquet") -> DataFrame:
    """The archive as a table: subject, seq, time, headers, data, stream.

    Raises MisuseError if there is no archive at `path`.
    """
    return _archive_at(spark, path, format)[0]


def _archive_at(spark: SparkSession, path: str, table_format: str) -> tuple[DataFrame, ManifestEntry]:
    """The messages of an archive, and its last range."""
    if table_format == "parquet":
        manifest = Manifest(spark, path)
        entries = manifest.entries()
        if entries:
            return _cold(spark, manifest, entries).select(*COLUMNS), entries[-1]
        raise MisuseError(f"{manifest.path} holds no archive: there is nothing in its folder `manifest`")
    lake = lake_table(spark, table_format, path)
    entries = lake.entries()
    if not entries:
        raise MisuseError(f"{path} holds no archive: there is no such table, or nothing in it")
    return lake.messages().select(*COLUMNS), entries[-1]


def _cold(spark: SparkSession, manifest: Manifest, entries: list[ManifestEntry]) -> DataFrame:
    from pyspark.sql import functions as f

    folders = [f"{manifest.data}/{entry.folder}" for entry in entries if entry.totals.rows]
    if folders:
        frame = spark.read.schema(SCHEMA).option("basePath", manifest.data).parquet(*folders)
    else:
        frame = spark.createDataFrame([], SCHEMA)
    return frame.drop("range", "day").withColumn("stream", f.lit(entries[0].stream))


def table(
    spark: SparkSession,
    stream: str,
    path: str,
    options: Mapping[str, str] | None = None,
    *,
    format: str = "parquet",
) -> DataFrame:
    """Archive and stream as one table without gap or overlap, with the columns of `archived`.

    Raises JetStreamError if the stream lost messages that are not archived, or is not the archived one.
    """
    register(spark)
    cold, last = _archive_at(spark, path, format)
    given = {**(options or {}), "stream": stream}
    driver = Driver(SourceOptions.parse(given))
    try:
        bounds = driver.bounds()[stream]
    finally:
        driver.close()
    if not last.is_of(bounds):
        raise JetStreamError(
            f"{path} is the archive of stream {last.stream!r} made {last.created}, stream {bounds.name!r} "
            f"was made {bounds.created}: their sequences mean other messages"
        )
    if last.is_cut_off(bounds):
        raise JetStreamError(
            f"between the archive {path}, which ends before {last.end}, and stream {stream!r}, which begins "
            f"at {bounds.first_seq}, messages are missing"
        )
    ours = {"startingSequence": str(last.end), "includeHeaders": "true"}
    hot = spark.read.format("jetstream").options(**{**given, **ours}).load()
    # A table can have more than the archive's end said when it was read.
    return cold.where(f"seq < {last.end}").unionByName(hot.select(*COLUMNS))


def replay(
    spark: SparkSession,
    path: str,
    stream: str,
    options: Mapping[str, str] | None = None,
    *,
    format: str = "parquet",
    subject: str | None = None,
    where: str | None = None,
    parallel: bool = False,
) -> Replayed:
    """Write an archive to `stream` in sequence order. Repeated runs store each message once.

    options: sink options of format `jetstream`. format: the archive's. subject: template over the archive's
    columns; default: the original subjects. where: SQL condition over subject, seq,
    time, headers, data. parallel: write with several tasks; order is then kept only within each task.

    Messages keep payloads and headers except those that begin with Nats-. The headers Penstock-Origin and
    Penstock-Origin-Time are added.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    register(spark)
    frame = archived(spark, path, format)
    if where is not None:
        frame = frame.where(where)
    origin = f.concat_ws(":", "stream", f.col("seq").cast("string"))
    own = f.map_filter("headers", lambda name, _: ~f.lower(name).startswith("nats-"))
    origin_headers = f.create_map(
        f.lit(ORIGIN), f.array(origin), f.lit(ORIGIN_TIME), f.array(f.date_format("time", _RFC3339))
    )
    rows = frame.select(
        "subject", "seq", "data", origin.alias("origin"), f.map_concat(own, origin_headers).alias("headers")
    )
    ordered = rows.repartitionByRange("seq") if parallel else rows.coalesce(1)
    counted = Observation()
    settings = {
        "messageId": "replay:{origin}",
        "writeId": _write_id(path),
        **(options or {}),
        "stream": stream,
    }
    if subject is not None:
        settings["subject"] = subject
    written = ordered.sortWithinPartitions("seq").observe(counted, f.count("*").alias("rows"))
    written.write.format("jetstream").options(**settings).mode("append").save()
    return Replayed(stream, counted.get["rows"])


_RFC3339 = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


def _write_id(path: str) -> str:
    import hashlib

    return f"replay-{hashlib.sha256(path.encode()).hexdigest()[:16]}"
