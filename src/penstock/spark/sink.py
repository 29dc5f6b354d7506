"""Writing to format `jetstream`: `df.write` and `df.writeStream`.

A Spark task brings its partition's rows into the stream by one of three deliveries; what makes each of them
exactly once is said in delivery.py, atomic_delivery.py and ledger.py, and for users in docs/spark-sink.md. In
short: a task's rows have ids or markers made of the query, the micro-batch, the partition and the row, which
are the same when Spark runs the task again.

Where this code runs: writers are made on the driver for each micro-batch, pickled, and used in executor
processes; `commit` runs in yet another process. They share nothing but what is in the pickle, and there is
nothing to do at commit: a row is in the stream for good when its task ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import errors
from penstock.protocol import api
from penstock.spark.atomic_delivery import AtomicDelivery
from penstock.spark.delivery import FastDelivery, PublishDelivery, SinkDelivery, Written
from penstock.spark.ledger import Ledger
from penstock.spark.reconnecting import ReconnectingConnection
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_rows import Layout
from penstock.spark.task_identity import TaskIdentity

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("penstock.spark")


@dataclass
class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


def checked_stream(options: SinkOptions, link: ReconnectingConnection) -> api.StreamInfoResponse:
    """What the stream is and holds; ConfigError when it does not fit the options, StreamNotFoundError."""
    info = link.ask(
        lambda connection: connection.api(api.StreamInfoResponse, f"STREAM.INFO.{options.stream}")
    )
    config = info.config
    if options.delivery == "atomic" and not config.allow_atomic:
        raise errors.ConfigError(f"option 'delivery' is atomic: stream {options.stream!r} needs allow_atomic")
    if options.delivery == "fast" and not config.allow_batched:
        raise errors.ConfigError(f"option 'delivery' is fast: stream {options.stream!r} needs allow_batched")
    if config.no_ack:
        raise errors.ConfigError(
            f"stream {options.stream!r} has no_ack: nobody can tell which rows are stored"
        )
    if options.exactly_once and options.delivery != "atomic" and not config.duplicate_window:
        raise errors.ConfigError(
            f"stream {options.stream!r} has no duplicate window: set one, use 'delivery' atomic, or say "
            "'exactlyOnce' = false"
        )
    return info


def write_rows(options: SinkOptions, identity: TaskIdentity, batches: Iterable[pa.RecordBatch]) -> Written:
    """Brings the rows of a task into the stream; those an earlier try of it brought are left out.

    Raises ConfigError and MisuseError for rows that can't be messages, JetStreamApiError when the server
    refuses one, NoStreamError, MaxPayloadError, and the last connection error after `retrySeconds`."""
    with ReconnectingConnection(options.connection) as link:
        info = checked_stream(options, link)
        if options.delivery == "atomic":
            return _write_atomic(options, identity, batches, link, rollup=info.config.allow_rollup_hdrs)
        delivery: SinkDelivery = (FastDelivery if options.delivery == "fast" else PublishDelivery)(
            options, link
        )
        stored: frozenset[bytes] = frozenset()
        if options.exactly_once and options.ledger is not None:
            stored = Ledger(options, link, identity, info).stored_ids()
        return _write_ids(options, identity, batches, delivery, stored)


def _write_atomic(
    options: SinkOptions,
    identity: TaskIdentity,
    batches: Iterable[pa.RecordBatch],
    link: ReconnectingConnection,
    *,
    rollup: bool,
) -> Written:
    delivery = AtomicDelivery(options, link, identity, rollup=rollup)
    there = delivery.start()
    row, layout = 0, None
    for batch in batches:
        layout = layout or Layout(options, batch.schema)
        new = batch.slice(min(max(there - row, 0), batch.num_rows))
        if new.num_rows:
            first = row + batch.num_rows - new.num_rows
            delivery.send(layout.columns(new, first).rows(b"", first))
        row += batch.num_rows
    if row < there:
        raise errors.JetStreamError(
            f"{identity} has {row} rows, and {there} of it are in stream {options.stream!r}: the query gives "
            "other rows than when it was run first; nothing was written"
        )
    return delivery.finish()


def _write_ids(
    options: SinkOptions,
    identity: TaskIdentity,
    batches: Iterable[pa.RecordBatch],
    delivery: SinkDelivery,
    stored: frozenset[bytes],
) -> Written:
    prefix = identity.id_prefix if options.exactly_once else b""
    row, skipped, layout = 0, 0, None
    for batch in batches:
        layout = layout or Layout(options, batch.schema)
        columns = layout.columns(batch, row)
        rows = columns.rows(prefix, row)
        if stored:
            import numpy as np
            import pyarrow as pa

            new = np.array([found not in stored for found in rows.message_ids()])
            skipped += int(batch.num_rows - new.sum())
            rows = columns.filter(pa.array(new)).rows(
                prefix, row, (row + np.flatnonzero(new)).astype(np.int64).data
            )
        delivery.send(rows)
        row += batch.num_rows
    written = delivery.finish()
    return Written(written.rows, written.duplicates + skipped, written.last_seq)


class _Writing:
    """What batch and streaming writers have in common."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        identity = TaskIdentity.of_task(self.options.write_id)
        return TaskWritten(write_rows(self.options, identity, iterator))

    def report(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message.written for message in messages if isinstance(message, TaskWritten)]
        rows, again = sum(w.rows for w in done), sum(w.duplicates for w in done)
        log.info("%s rows to stream %s, %s of them were there already", rows, self.options.stream, again)


class JetStreamWriter(_Writing, DataSourceArrowWriter):
    """Batch writes, mode append."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was written stays: a stream has no way to take it back, and a run again leaves it out."""


class JetStreamStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Streaming writes, output modes append and complete."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Spark runs the micro-batch again; what was written is left out then."""
