"""The PySpark data source `jetstream`: batch and streaming reads of JetStream streams.

Columns: subject string, seq bigint, time timestamp, headers map<string, array<string>> (with option
`includeHeaders`), data binary (or decoded by option `payload`), stream string. Option `columns` or a narrower
user schema prunes columns: they are not built, and unneeded payloads are not sent by the server.

Processes (measured, not documented by Spark): a DataSource is pickled from process to process and creates its
readers in each; one long-lived driver-side process plans offsets and partitions; `read()` runs in executor
processes. Therefore connections are opened lazily and never pickled, and nothing relies on `stop()`:
consumers expire. Modules that a read does not need (the sink, Arrow's compute functions: 0.1 s of CPU) are
imported late, because the driver side of each query is a fresh Python process.

Invariants: a batch read covers the sequences planned on the driver, regardless of later messages; a
micro-batch is fully determined by its two offsets, so Spark can repeat it after a failure with the same rows.

Filters are pushed down (pushdown.py) while the setting spark.sql.python.filterPushdown.enabled is true, which
`register` sees to. While it is false, Spark's default, Spark rejects every batch read by a class that has the
method `pushFilters`; FilterTaker keeps that from happening.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from penstock import errors
from penstock.spark.driver import Driver
from penstock.spark.durable_offsets import decode_plain_offset
from penstock.spark.offsets import (
    DataLossError,
    Offset,
    SequenceRange,
    StreamBounds,
    StreamPosition,
    cap,
    encode_offset,
    resume_at,
    split,
)
from penstock.spark.positions import LATEST, Positions
from penstock.spark.progress import LagReport
from penstock.spark.schema import TYPES, check_schema, schema_of
from penstock.spark.session_setup import (
    PUSHDOWN_SETTING,
    is_connect,
    is_discovered,
    run_this_python,
    share_archive,
    unpacked_folder,
)
from penstock.spark.source_options import SourceOptions
from penstock.spark.spark_versions import (
    HAS_LIMITS,
    LimitedStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    arrow_schema_of,
    check_limits,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

    from penstock.spark.connection_options import ConnectionOptions
    from penstock.spark.pushdown import Pushed

FORMAT_NAME = "jetstream"
COMMIT_MODULE = "pyspark.sql.worker.python_streaming_sink_runner"


class RangePartition(InputPartition):
    """Input partition: the range one task reads. options: of the task."""

    def __init__(self, span: SequenceRange, options: SourceOptions) -> None:
        super().__init__(span)
        self.span = span
        self.options = options


class JetStreamSource(DataSource):
    """`spark.read.format("jetstream")` and `spark.readStream.format("jetstream")`; options: SourceOptions."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Spark pickles the source for the driver's process of a streaming query, and gives that process no
        files of `--py-files` or `addArtifact`. So a source from an archive says where it is unpacked.
        """
        folder = unpacked_folder()
        if folder is None:
            return super().__reduce_ex__(protocol)
        return _source_from, (folder, self.options)

    @property
    def parsed(self) -> SourceOptions:
        """The validated options. Raises ConfigError."""
        return SourceOptions.parse(dict(self.options))

    @property
    def resolved(self) -> SourceOptions:
        """The validated options, with the reader's schema from a registry. Raises ConfigError, and
        SchemaRegistryError if the registry does not have it."""
        options = self.parsed
        if options.payload.registry is None:
            return options
        from penstock.spark.payloads.reader_schemas import with_reader_schema

        return replace(options, payload=with_reader_schema(options.payload))

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType | str:
        return schema_of(self.resolved)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.resolved
        if options.durable is not None:
            raise errors.ConfigError(
                "option 'durable' is for streaming queries, which ack what they committed: use readStream, "
                "with trigger(availableNow=True) for one run"
            )
        kind = PushingReader if options.push_filters else JetStreamReader
        return kind(options, checked(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = self.resolved
        if options.ending != Positions(LATEST):
            raise errors.ConfigError(
                "options 'endingOffsets', 'endingSequence' and 'endingTime' are for batch reads; a "
                "stream has no end"
            )
        check_limits(options)
        if options.durable is not None:
            from penstock.spark.durable_source import DurableStreamReader, check_durable

            check_durable(options, has_limits=HAS_LIMITS)
            return DurableStreamReader(options, checked(schema, options))
        kind = JetStreamStreamReader if HAS_LIMITS else UnlimitedStreamReader
        return kind(options, checked(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise errors.ConfigError(
                "mode overwrite would have to empty the stream: purge it yourself if you mean that, and "
                "write with mode append"
            )
        from penstock.spark.sink import JetStreamWriter, check_on_driver
        from penstock.spark.sink_options import SinkOptions

        options = SinkOptions.parse(dict(self.options))
        return JetStreamWriter(check_on_driver(options, schema, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.spark.sink import JetStreamStreamWriter, check_on_driver
        from penstock.spark.sink_options import SinkOptions

        options = SinkOptions.parse(dict(self.options))
        # Spark calls this twice per micro-batch; a process that only commits has nothing left to check.
        if COMMIT_MODULE not in sys.modules:
            options = check_on_driver(options, schema, streaming=True)
        return JetStreamStreamWriter(options)


def _source_from(folder: str, options: dict[str, str]) -> Any:
    """A source whose module is found in `folder`."""
    import sys

    if folder not in sys.path:
        sys.path.insert(0, folder)
    from penstock.spark.source import JetStreamSource

    return JetStreamSource(options)


# cloudpickle takes functions of this module by value: where it is called, penstock can't be imported yet.
_source_from.__module__ = "__main__"


def register(spark: SparkSession) -> None:
    """Register format `jetstream` with a session and enable filter pushdown in it
    (spark.sql.python.filterPushdown.enabled).

    A source that Spark discovered (`pyspark_jetstream`) is not registered again: Spark would log a warning,
    once more with every streaming query. In a local session without a chosen interpreter (PYSPARK_PYTHON,
    spark.pyspark.python), Python processes that start later run this one.
    """
    spark.conf.set(PUSHDOWN_SETTING, "true")
    if not is_connect(spark):
        run_this_python(spark)
        share_archive(spark)
        if is_discovered(spark, FORMAT_NAME):
            return
    spark.dataSource.register(JetStreamSource)


def checked(schema: StructType, options: SourceOptions) -> StructType:
    """Return `schema` if it can be read. Raises ConfigError for a column that the source does not have, or
    that the payloads do not make."""
    check_schema(schema, options.payload)
    payload = options.payload
    if payload.kind in ("avro", "protobuf") and "data" in schema.fieldNames():
        from penstock.spark.decoders import decoder_for

        decoder_for(payload, arrow_schema_of(schema).field("data").type)
    return schema


def read_range(options: SourceOptions, schema: StructType, span: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Read `span` as record batches of exactly `schema`."""
    from penstock.protocol.arrow_columns import record_batch
    from penstock.spark.decoders import payload_decoder
    from penstock.spark.reader import RangeReader

    arrow_schema = arrow_schema_of(schema)
    names = schema.fieldNames()
    if "cloudevent" in names or (options.cloud_events and "data" in names):
        yield from read_events(options, arrow_schema, span)
        return
    columns = [name for name in names if name != "stream"]
    decode = payload_decoder(options.payload, arrow_schema.field("data").type) if "data" in columns else None
    for rows, buffers in RangeReader(options, span, columns).batches():
        yield record_batch(arrow_schema, rows, buffers, stream=span.stream, decode=decode)


def read_events(options: SourceOptions, schema: pa.Schema, span: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Read `span` as record batches of exactly `schema`, whose payloads are CloudEvents."""
    import pyarrow as pa

    from penstock.protocol.arrow_columns import record_batch
    from penstock.spark.decoders import RawDecoder, decoder_for
    from penstock.spark.payloads.cloud_events import EventColumns
    from penstock.spark.payloads.decompression import Decompressor
    from penstock.spark.reader import RangeReader

    payload = options.payload
    decompress = None
    if payload.compression != "none":
        decompress = Decompressor(payload.compression, payload.plain_bytes_max)
    decoder = None
    if "data" in schema.names:
        kind = schema.field("data").type
        decoder = decoder_for(payload, kind) or RawDecoder(payload, kind)
    events = EventColumns(decompress, decoder)
    # An event needs both, whatever the query reads.
    kept = [field for field in schema if field.name not in ("headers", "data", "cloudevent")]
    headers = arrow_schema_of(StructType([StructField("headers", TYPES["headers"], False)])).field(0)
    wide = pa.schema([*kept, headers, pa.field("data", pa.binary(), False)])
    columns = [name for name in wide.names if name != "stream"]
    for rows, buffers in RangeReader(options, span, columns).batches():
        yield events.record_batch(record_batch(wide, rows, buffers, stream=span.stream), schema)


def plan(
    options: SourceOptions, spans: Sequence[SequenceRange], known: ConnectionOptions
) -> list[InputPartition]:
    """Split ranges into input partitions by options `minPartitions` and `recordsPerPartition`. known: the
    driver's connection, with the servers that it has discovered."""
    busy = [span for span in spans if span.end > span.start]
    parts_min = -(-options.min_partitions // len(busy)) if busy else 1
    parts = [
        part
        for span in busy
        for part in split(span, parts_min=parts_min, records_max=options.records_per_partition)
    ]
    tasks = options.of_tasks(known)
    return [RangePartition(part, next(tasks)) for part in parts]


class FilterTaker:
    """The method `pushFilters` of a reader that reads with the setting for pushdown on or off.

    Spark rejects a batch read if the function of the reader's bound method is not that of its base class and
    the setting is off, which the reader can't know. This object has the base class's function, and takes the
    filters if Spark calls it, which it only does while the setting is on.
    """

    def __init__(self, reader: JetStreamReader) -> None:
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)  # not of the class: it would be bound
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


class JetStreamReader(DataSourceReader):
    """Batch reader: the messages stored when the query is planned, within the options' bounds."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if LATEST in options.starting.all():
            raise errors.ConfigError("option 'startingOffsets' is latest: that batch read never has rows")
        self.given = options
        self.options = options
        self.schema = schema
        self.pushed: Pushed | None = None

    @property
    def pushFilters(self) -> FilterTaker:
        return FilterTaker(self)

    def take_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept filters; return those that Spark must still evaluate. None with `pushFilters` false."""
        from penstock.spark.pushdown import SUBJECTS_MAX, Pushed

        options = self.given
        if options.push_filters is False:
            return filters
        self.pushed = Pushed(
            subjects=options.subjects or None,
            subjects_max=0 if options.fail_on_gaps else 1 if options.access == "direct" else SUBJECTS_MAX,
        )
        left = self.pushed.take(filters)
        if self.pushed.subjects:
            self.options = replace(options, subjects=self.pushed.subjects)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        driver = Driver(self.given)
        try:
            spans = [self.span(driver, bounds) for bounds in driver.bounds().values()]
        finally:
            driver.close()
        # Spark treats an empty list as one partition without a range, so return an explicit empty range.
        parts = plan(self.options, spans, driver.known)
        return parts or [RangePartition(replace(spans[0], end=spans[0].start), self.options)]

    def span(self, driver: Driver, bounds: StreamBounds) -> SequenceRange:
        """The range to read of one stream, narrowed by options and pushed filters."""
        start, end = driver.start_of(bounds), driver.end_of(bounds)
        pushed = self.pushed
        if pushed is not None:
            start, end = max(start, pushed.start), min(end, pushed.end)
            if not pushed.wants(bounds.name):
                end = start
            # Each lookup is a request to the server; skip it if the range is already empty.
            if pushed.after is not None and start < end:
                start = max(start, driver.sequence_at(bounds.name, pushed.after))
            if pushed.before is not None and start < end:
                end = min(end, driver.sequence_at(bounds.name, pushed.before))
        return SequenceRange(bounds.name, bounds.created, start, end, bounds.replicas)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        if partition.span.end <= partition.span.start:
            return iter(())
        return read_range(partition.options, self.schema, partition.span)


class PushingReader(JetStreamReader):
    """Batch reader of option `pushFilters` true: Spark rejects it while the setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # type: ignore[override]
        return self.take_filters(filters)


class JetStreamStreamReader(LimitedStreamReader):
    """Streaming reader. Offsets are sequences; `maxRecordsPerTrigger` and its like limit micro-batches;
    AvailableNow reads what is stored when the query starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._driver = Driver(options)
        self._frozen: dict[str, StreamBounds] | None = None
        self._waiting_since_s: float | None = None
        self._report = LagReport()

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._driver.bounds()
        return encode_offset(
            {name: StreamPosition(self._driver.start_of(b), b.created) for name, b in bounds.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit Spark passes to latestOffset, unless the trigger reads everything (ReadAllAvailable).

        It can hold one limit only; latestOffset reads the others from the options.
        """
        options = self.options
        if options.max_records_per_trigger is not None:
            return ReadMaxRows(options.max_records_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_records_per_trigger > 1:
            return ReadMinRows(options.min_records_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._driver.bounds()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch. Raises DataLossError if unread messages are gone."""
        position = decode_plain_offset(start)
        bounds = self._driver.bounds()
        available: dict[str, tuple[int, int]] = {}
        for name, now in bounds.items():
            at = self._resume(now, position)
            available[name] = (at, self._last_seq(now) + 1)
        end = position if self._is_waiting(available, limit) else self._end(bounds, available, limit)
        self._report.taken(end)
        return start if end is position else encode_offset(end)

    def _end(
        self, bounds: dict[str, StreamBounds], available: dict[str, tuple[int, int]], limit: ReadLimit
    ) -> Offset:
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            bytes_max = self.options.max_bytes_per_trigger
        ends = cap(available, rows_max)
        within = {name: (start, ends[name]) for name, (start, _) in available.items()}
        ends = cap(within, bytes_max, {name: b.record_bytes for name, b in bounds.items()})
        return {name: StreamPosition(ends[name], b.created) for name, b in bounds.items()}

    def _is_waiting(self, available: dict[str, tuple[int, int]], limit: ReadLimit) -> bool:
        """Whether to wait for `minRecordsPerTrigger`, at most `maxTriggerDelay`. Never with AvailableNow."""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self.options.min_records_per_trigger
        new = sum(end - at for at, end in available.values())
        now_s = time.monotonic()
        if isinstance(limit, ReadAllAvailable) or self._frozen is not None or not 0 < new < least:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if now_s - self._waiting_since_s < self.options.max_trigger_delay_s:
            return True
        self._waiting_since_s = None
        return False

    def reportLatestOffset(self) -> dict[str, Any]:
        """The latest offset in `lastProgress`: the ends of the streams and the lag."""
        return self._report.latest(self._driver.bounds(), time.monotonic())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan from the offsets and the streams' first sequences only, so that a repeated micro-batch has the
        same rows, or raises DataLossError."""
        begin, finish = decode_plain_offset(start), decode_plain_offset(end)
        if begin == finish:
            return []
        bounds = self._driver.bounds()
        spans = []
        for name, until in finish.items():
            if name not in bounds and self.options.stream_pattern is not None:
                if self.options.fail_on_data_loss:
                    raise DataLossError(
                        f"stream {name!r}, which the checkpoint reads, was deleted. "
                        "Set failOnDataLoss to false to go on without it"
                    )
                continue
            if name not in bounds:
                raise errors.ConfigError(
                    f"the checkpoint reads stream {name!r}, which option 'stream' does not name: "
                    "name it, or use a new checkpoint"
                )
            now = bounds[name]
            at = self._resume(now, begin)
            if now.created == until.created:
                spans.append(SequenceRange(name, now.created, at, until.next, now.replicas))
            elif self.options.fail_on_data_loss:
                resume_at(now, until, fail_on_data_loss=True)
        return plan(self.options, spans, self._driver.known)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(partition.options, self.schema, partition.span)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint holds the offsets, and nothing is acked."""

    def stop(self) -> None:
        self._driver.close()

    def _resume(self, now: StreamBounds, position: Offset) -> int:
        known = position.get(now.name)
        return resume_at(now, known, fail_on_data_loss=self.options.fail_on_data_loss)

    def _last_seq(self, now: StreamBounds) -> int:
        """The last sequence to read; with AvailableNow, that of the query's start."""
        if self._frozen is None:
            return now.last_seq
        frozen = self._frozen.get(now.name)
        if frozen is None or frozen.created != now.created:
            return now.first_seq - 1
        return min(now.last_seq, frozen.last_seq)


class UnlimitedStreamReader(JetStreamStreamReader):
    """Streaming reader of Spark 4.0 and 4.1: a micro-batch reads all that is there.

    AvailableNow is one micro-batch: Spark takes the offset of the query's start as its end.
    """

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """The end of the next micro-batch."""
        bounds = self._driver.bounds()
        return encode_offset({name: StreamPosition(b.last_seq + 1, b.created) for name, b in bounds.items()})
