"""The streaming reader of option `durable`: micro-batches are what a durable consumer delivers.

The driver claims messages when Spark asks for the end of the next micro-batch, and writes their sequences
into that offset; tasks read them by ranges of sequences, as without a consumer. Spark asks again only after
the micro-batch before is in its commit log, so that is when its claims are acked.

Invariants: a claim is acked only after the commit of its micro-batch; a repeated micro-batch has the rows of
the first time, because unacked messages stay in a work queue and the offset names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from penstock import errors
from penstock.protocol import api
from penstock.spark.driver import Driver
from penstock.spark.durable_offsets import DurableOffset
from penstock.spark.offsets import DataLossError, SequenceRange
from penstock.spark.sequence_sets import SequenceSet
from penstock.spark.source_options import SourceOptions
from penstock.spark.spark_versions import (
    LimitedStreamReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.durable_consumer import ClaimedMessages

HOLE_MAX = 10_000
"""Sequences of others that a task reads and drops rather than open another connection."""


class ClaimPartition(InputPartition):
    """Input partition: the claims one task reads. span: of the stream, whose ends do not count. options: of
    the task; all claims match their subjects."""

    def __init__(self, span: SequenceRange, claims: SequenceSet, options: SourceOptions) -> None:
        super().__init__(str(claims))
        self.span = span
        self.claims = claims
        self.options = options


class DurableStreamReader(LimitedStreamReader):
    """Streaming reader by a durable consumer of one stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        assert options.durable is not None
        self.options = options
        self.schema = schema
        self.stream = options.streams[0]
        self.durable = options.durable
        self._driver = Driver(options)
        self._acked = SequenceSet()
        self._left: int | None = None  # with AvailableNow: messages still to claim

    def initialOffset(self) -> dict[str, Any]:
        from penstock.spark.durable_consumer import create_durable

        bounds = self._driver.bounds()[self.stream]
        info = self._driver.call(partial(create_durable, options=self.options))
        prefix = f"$JS.ACK.{self.stream}.{self.durable}"
        return DurableOffset(self.stream, bounds.created, self.durable, info.created, prefix).encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit Spark passes to latestOffset, unless the trigger reads everything."""
        if self.options.max_records_per_trigger is not None:
            return ReadMaxRows(self.options.max_records_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        from penstock.spark.durable_consumer import create_durable

        info = self._driver.call(partial(create_durable, options=self.options))
        self._left = info.num_pending + info.num_ack_pending

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what was committed, and claim the next micro-batch. Raises DataLossError."""
        from penstock.spark.durable_consumer import acknowledge

        position = DurableOffset.decode(start, self.stream, self.durable)
        if position.claims and position.claims != self._acked:
            self._driver.call(
                lambda c: acknowledge(c, position.ack_prefix, position.claims, position.delivered)
            )
            if self._left is not None and not self._acked:
                info = self._info(position)  # the claims of the run before were counted as to be delivered
                self._left = info.num_pending + info.num_ack_pending
            self._acked = position.claims
        info = self._info(position)
        floor = info.ack_floor.stream_seq
        count = self._count(info, limit)
        if count < 1:
            return start
        found = self._claim(count)
        if self._left is not None:
            self._left = self._left - len(found.sequences) if found.sequences else 0
        fresh = position.fresh(found.sequences)
        again = found.sequences - fresh
        if again:
            self._driver.call(lambda c: acknowledge(c, found.ack_prefix, again, found.delivered))
        if not fresh:
            return start
        return position.following(
            fresh, floor=floor, ack_prefix=found.ack_prefix, delivered=found.delivered
        ).encode()

    def _count(self, info: api.ConsumerInfoResponse, limit: ReadLimit) -> int:
        """How many messages to claim: what there is, within the limits. Unacked ones may come again."""
        from penstock.spark.durable_consumer import MAX_ACK_PENDING

        count = min(info.num_pending + info.num_ack_pending, MAX_ACK_PENDING)
        if info.config.max_ack_pending > 0:
            count = min(count, info.config.max_ack_pending)
        if info.config.max_batch > 0:
            count = min(count, info.config.max_batch)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_records_per_trigger
        if self._left is not None:
            count = min(count, self._left)
        if rows_max is not None:
            count = min(count, rows_max)
        if self.options.max_bytes_per_trigger is not None and count > 0:
            size = max(1.0, self._driver.bounds()[self.stream].record_bytes)
            count = min(count, max(1, int(self.options.max_bytes_per_trigger // size)))
        return count

    def _claim(self, count: int) -> ClaimedMessages:
        from penstock.spark.durable_consumer import claim

        return self._driver.call(lambda c: claim(c, self.stream, self.durable, count))

    def _info(self, position: DurableOffset) -> api.ConsumerInfoResponse:
        """The consumer. Raises DataLossError if it is not the one of the checkpoint."""
        from penstock.spark.durable_consumer import consumer_info

        info = self._driver.call(lambda c: consumer_info(c, self.options))
        if info is None or info.created != position.consumer_created:
            what = "was deleted" if info is None else f"was recreated at {info.created}"
            raise DataLossError(
                f"consumer {self.durable!r} of stream {self.stream!r} {what}, the checkpoint reads by the "
                f"one created {position.consumer_created}: use a new checkpoint, whose query reads what the "
                "consumer has not acked (a missing one is created)"
            )
        return info

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Nothing: `nats consumer info` shows what is unread and unacked."""
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan from the claims in the end offset only, so that a repeated micro-batch has the same rows."""
        if start == end:
            return []
        from penstock.spark.range_sessions import bounds_of

        finish = DurableOffset.decode(end, self.stream, self.durable)
        info = self._driver.call(lambda c: c.stream_info(self.stream))
        if info.created != finish.stream_created:
            raise DataLossError(
                f"stream {self.stream!r} was recreated at {info.created}, the checkpoint is of the one "
                f"created {finish.stream_created}: use a new checkpoint"
            )
        access, subjects = self.options.access, self.options.subjects
        if info.config.retention == api.RetentionPolicy.WORKQUEUE:
            access = "direct"
        if access == "direct" and len(subjects) > 1:
            subjects = ()  # a direct get takes one filter; the claims say what is read
        length = min(
            self.options.records_per_partition, -(-len(finish.claims) // self.options.min_partitions)
        )
        bounds = bounds_of(self.stream, info)
        span = SequenceRange(self.stream, bounds.created, 0, 0, bounds.replicas)
        tasks = replace(self.options, access=access, subjects=subjects).of_tasks(self._driver.known)
        return [ClaimPartition(span, part, next(tasks)) for part in finish.claims.chunks(max(1, length))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ClaimPartition)
        return _read_claims(self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark commits late and never the last one, so latestOffset acks."""

    def stop(self) -> None:
        self._driver.close()


def spans_of(claims: SequenceSet) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) that cover the claims, without holes longer than HOLE_MAX."""
    first = until = 0
    for start, end in claims.ranges:
        if first and start - until > HOLE_MAX:
            yield first, until
            first = start
        first, until = first or start, end
    if first:
        yield first, until


def _read_claims(schema: StructType, part: ClaimPartition) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    from penstock.spark.source import read_range

    names = schema.fieldNames()
    wide = schema if "seq" in names else StructType([*schema.fields, StructField("seq", LongType(), False)])
    starts = np.array([start for start, _ in part.claims.ranges], dtype=np.int64)
    ends = np.array([end for _, end in part.claims.ranges], dtype=np.int64)
    for start, end in spans_of(part.claims):
        for batch in read_range(part.options, wide, replace(part.span, start=start, end=end)):
            seqs = batch.column(wide.fieldNames().index("seq")).to_numpy()
            at = np.searchsorted(starts, seqs, side="right") - 1
            keep = (at >= 0) & (seqs < ends[at])
            mine = batch if keep.all() else batch.filter(pa.array(keep))
            yield mine if "seq" in names else mine.select(names)


def check_durable(options: SourceOptions, *, has_limits: bool) -> None:
    """Raises ConfigError where Spark does not tell a source what is committed."""
    if options.durable is not None and not has_limits:
        raise errors.ConfigError(
            "option 'durable' needs Spark 4.2 or later: before, Spark does not say to a Python source which "
            "micro-batch is committed"
        )
