"""The PySpark data source `jetstream`: batch and streaming reads of JetStream streams.

Columns: subject string, seq bigint, time timestamp, [headers map<string, array<string>> when asked,]
data binary, stream string. A narrower schema given by the user prunes: what is not in it is not built, and
payloads that nobody wants do not cross the wire.

Where this code runs (measured, not documented by Spark): a DataSource is pickled from process to process and
its readers are made anew in each; offsets and partitions are asked in one long-lived driver-side process;
`read()` runs in executor processes. Hence nothing here connects before it must, connections never travel in
a pickle, and `stop()` is not relied upon: consumers expire by themselves.

Invariants: a batch read covers the sequences planned on the driver, whatever arrives meanwhile; a micro-batch
is fully determined by its two offsets, so Spark may run it again after a failure and get the same rows.

Rejected: filter push-down (Spark refuses every read of a source that offers it while
spark.sql.python.filterPushdown.enabled is false, its default): use the options subject, startingSequence
and startingTime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock import errors
from penstock.spark.offsets import (
    Offset,
    SequenceRange,
    StreamBounds,
    StreamPosition,
    cap,
    decode_offset,
    encode_offset,
    resume_at,
    split,
)
from penstock.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.spark.wire import Connection

T = TypeVar("T")

FORMAT_NAME = "jetstream"

_TYPES: dict[str, DataType] = {
    "subject": StringType(),
    "seq": LongType(),
    "time": TimestampType(),
    "headers": MapType(StringType(), ArrayType(StringType(), False), False),
    "data": BinaryType(),
    "stream": StringType(),
}


class RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, span: SequenceRange) -> None:
        super().__init__(span)
        self.span = span


class JetStreamSource(DataSource):
    """`spark.read.format("jetstream")` and `spark.readStream.format("jetstream")`; options: SourceOptions."""

    @property
    def parsed(self) -> SourceOptions:
        return SourceOptions.parse(dict(self.options))

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        return StructType(
            [
                StructField(name, kind, nullable=False)
                for name, kind in _TYPES.items()
                if name != "headers" or self.parsed.include_headers
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return JetStreamReader(self.parsed, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.parsed.ending_sequence is not None:
            raise errors.ConfigError("option 'endingSequence' is for batch reads; a stream has no end")
        return JetStreamStreamReader(self.parsed, check_schema(schema))


def register(spark: SparkSession) -> None:
    """Makes format `jetstream` known to a session. Not needed where `pyspark_jetstream` is importable and no
    other package of that kind is broken (Spark then gives up discovery altogether)."""
    spark.dataSource.register(JetStreamSource)


def check_schema(schema: StructType) -> StructType:
    """The schema itself; ConfigError for a column the source has not, or of another type."""
    for field in schema.fields:
        kind = _TYPES.get(field.name)
        if kind is None:
            known = ", ".join(_TYPES)
            raise errors.ConfigError(f"the jetstream source has no column {field.name!r}; it has {known}")
        # simpleString leaves nullability out, which may differ
        is_text, given_text = kind.simpleString(), field.dataType.simpleString()
        if is_text != given_text:
            raise errors.ConfigError(
                f"column {field.name!r} is {is_text}, the given schema says {given_text}"
            )
    return schema


def read_range(options: SourceOptions, schema: StructType, span: SequenceRange) -> Iterator[pa.RecordBatch]:
    """The rows of `span` as record batches of exactly `schema`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from penstock.spark.arrow import record_batch
    from penstock.spark.reader import RangeReader

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    columns = [name for name in schema.fieldNames() if name != "stream"]
    for rows, buffers in RangeReader(options, span, columns).batches():
        yield record_batch(arrow_schema, rows, buffers, stream=span.stream)


def plan(options: SourceOptions, spans: Sequence[SequenceRange]) -> list[InputPartition]:
    busy = [span for span in spans if span.end > span.start]
    parts_min = -(-options.min_partitions // len(busy)) if busy else 1
    return [
        RangePartition(part)
        for span in busy
        for part in split(span, parts_min=parts_min, records_max=options.records_per_partition)
    ]


class _Driver:
    """The driver's questions to the server. Its connection is made when first used, made anew when it was
    lost between two triggers, and left behind when pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_connection": None}

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Questions only read, so one that met a dead connection is asked again on a new one."""
        from penstock.spark.wire import Connection

        for attempt in (1, 2):
            if self._connection is None:
                self._connection = Connection.open(self.options.connection)
            try:
                return question(self._connection)
            except (errors.DisconnectedError, errors.RequestTimeoutError, errors.ProtocolError):
                self.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def bounds(self) -> dict[str, StreamBounds]:
        from penstock.spark.sessions import stream_bounds

        return {name: self.ask(partial(stream_bounds, stream=name)) for name in self.options.streams}

    def start_of(self, bounds: StreamBounds) -> int:
        """Where a read that has no checkpoint begins."""
        from penstock.spark.sessions import sequence_at_time

        options = self.options
        at = bounds.first_seq
        when = options.starting_time
        if options.starting_sequence is not None:
            at = options.starting_sequence
        elif when is not None:
            at = self.ask(lambda c: sequence_at_time(c, bounds.name, when))
        elif options.starting_offsets == "latest":
            at = bounds.last_seq + 1
        return max(at, bounds.first_seq)


class JetStreamReader(DataSourceReader):
    """Batch: everything stored when the query is planned, within the options' start and end."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.starting_offsets == "latest":
            raise errors.ConfigError("option 'startingOffsets' is latest: that batch read never has rows")
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        driver = _Driver(self.options)
        try:
            spans = []
            for bounds in driver.bounds().values():
                end = bounds.last_seq + 1
                if self.options.ending_sequence is not None:
                    end = min(end, self.options.ending_sequence + 1)
                spans.append(SequenceRange(bounds.name, bounds.created, driver.start_of(bounds), end))
        finally:
            driver.close()
        # Spark takes an empty list for one partition without a range; an empty range says it plainly.
        return plan(self.options, spans) or [RangePartition(replace(spans[0], end=spans[0].start))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        if partition.span.end <= partition.span.start:
            return iter(())
        return read_range(self.options, self.schema, partition.span)


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming: offsets are sequences, admission by `maxRecordsPerTrigger`, AvailableNow reads up to what is
    stored when the query starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._driver = _Driver(options)
        self._frozen: dict[str, StreamBounds] | None = None

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._driver.bounds()
        return encode_offset(
            {name: StreamPosition(self._driver.start_of(b), b.created) for name, b in bounds.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self.options.max_records_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._driver.bounds()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raises DataLossError when what is still to be read is gone (failOnDataLoss)."""
        position = decode_offset(start)
        bounds = self._driver.bounds()
        available: dict[str, tuple[int, int]] = {}
        for name, now in bounds.items():
            at = self._resume(now, position)
            available[name] = (at, self._last_seq(now) + 1)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        new = sum(end - at for at, end in available.values())
        if isinstance(limit, ReadMinRows) and self._frozen is None and new < limit.min_rows:
            return start
        ends = cap(available, rows_max)
        return encode_offset({name: StreamPosition(ends[name], b.created) for name, b in bounds.items()})

    def reportLatestOffset(self) -> dict[str, Any]:
        bounds = self._driver.bounds()
        return encode_offset({name: StreamPosition(b.last_seq + 1, b.created) for name, b in bounds.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Planned from the offsets alone, plus the streams' first messages: a batch replayed after a failure
        gets the same rows, or a DataLossError."""
        begin, finish = decode_offset(start), decode_offset(end)
        if begin == finish:
            return []
        bounds = self._driver.bounds()
        spans = []
        for name, until in finish.items():
            if name not in bounds:
                raise errors.ConfigError(
                    f"the checkpoint reads stream {name!r}, which option 'stream' does not name: "
                    "name it, or use a new checkpoint"
                )
            now = bounds[name]
            at = self._resume(now, begin)
            if now.created == until.created:
                spans.append(SequenceRange(name, now.created, at, until.next))
            elif self.options.fail_on_data_loss:
                resume_at(now, until, fail_on_data_loss=True)
        return plan(self.options, spans)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self.options, self.schema, partition.span)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: offsets live in Spark's checkpoint, and nothing is acked."""

    def stop(self) -> None:
        self._driver.close()

    def _resume(self, now: StreamBounds, position: Offset) -> int:
        known = position.get(now.name)
        return resume_at(now, known, fail_on_data_loss=self.options.fail_on_data_loss)

    def _last_seq(self, now: StreamBounds) -> int:
        """AvailableNow sees nothing that came after it began."""
        if self._frozen is None:
            return now.last_seq
        frozen = self._frozen.get(now.name)
        if frozen is None or frozen.created != now.created:
            return now.first_seq - 1
        return min(now.last_seq, frozen.last_seq)
