"""An archive as a table, together with its stream, or back into a stream.

The boundary between cold and hot is the archive's end: sequences below it come from Parquet, the others from
the stream, so nothing is there twice and nothing is left out, whatever the stream still holds below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import JetStreamError, MisuseError
from penstock.spark.driver import Driver
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
    """rows: read from the archive and now in the stream, those that were there before included."""

    stream: str
    rows: int


def archived(spark: SparkSession, path: str) -> DataFrame:
    """The archive as a table: subject, seq, time, headers, data, stream. Raises MisuseError when there is
    none."""
    manifest = Manifest(spark, path)
    return _cold(spark, manifest, _entries(manifest))


def _entries(manifest: Manifest) -> list[ManifestEntry]:
    entries = manifest.entries()
    if not entries:
        raise MisuseError(f"{manifest.path} holds no archive: there is nothing in its folder `manifest`")
    return entries


def _cold(spark: SparkSession, manifest: Manifest, entries: list[ManifestEntry]) -> DataFrame:
    from pyspark.sql import functions as f

    folders = [f"{manifest.data}/{entry.folder}" for entry in entries if entry.totals.rows]
    if folders:
        frame = spark.read.schema(SCHEMA).option("basePath", manifest.data).parquet(*folders)
    else:
        frame = spark.createDataFrame([], SCHEMA)
    return frame.drop("range", "day").withColumn("stream", f.lit(entries[0].stream))


def table(spark: SparkSession, stream: str, path: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Archive and stream as one table, without gap or overlap; the columns of `archived`.

    Raises JetStreamError when the stream lost messages that are not archived, or is not the one archived.
    """
    register(spark)
    manifest = Manifest(spark, path)
    entries = _entries(manifest)
    given = {**(options or {}), "stream": stream}
    driver = Driver(SourceOptions.parse(given))
    try:
        bounds = driver.bounds()[stream]
    finally:
        driver.close()
    last = entries[-1]
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
    cold = _cold(spark, manifest, entries)
    return cold.select(*COLUMNS).unionByName(hot.select(*COLUMNS))


def replay(
    spark: SparkSession,
    path: str,
    stream: str,
    options: Mapping[str, str] | None = None,
    *,
    subject: str | None = None,
    where: str | None = None,
    parallel: bool = False,
) -> Replayed:
    """Writes an archive into `stream`, in the order of its sequences, each message once however often it is
    run.

    options: of the sink (format `jetstream`). subject: a template over the archive's columns; default: the
    messages' own subjects. where: a condition in SQL over subject, seq, time, headers, data. parallel: more
    than one task writes, and the order is that of the sequences within each alone.

    Messages keep their payloads and headers, but those that begin with Nats-, and say where they came from:
    Penstock-Origin, Penstock-Origin-Time.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    register(spark)
    frame = archived(spark, path)
    if where is not None:
        frame = frame.where(where)
    origin = f.concat_ws(":", "stream", f.col("seq").cast("string"))
    own = f.map_filter("headers", lambda name, _: ~f.lower(name).startswith("nats-"))
    told = f.create_map(
        f.lit(ORIGIN), f.array(origin), f.lit(ORIGIN_TIME), f.array(f.date_format("time", _RFC3339))
    )
    rows = frame.select(
        "subject", "seq", "data", origin.alias("origin"), f.map_concat(own, told).alias("headers")
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
