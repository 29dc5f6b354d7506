"""Writing to format `jetstream`: `df.write` and `df.writeStream`.

A Spark task writes its partition's rows by one of three deliveries. delivery.py, atomic_delivery.py and
ledger.py describe how each achieves exactly-once, docs/spark-sink.md describes it for users. In short: rows
have ids, or batches have markers, made of query, micro-batch, partition and row, which are the same when
Spark runs the task again.

Processes: writers are created on the driver for each micro-batch, pickled, and used in executor processes;
`commit` runs in yet another process. They share only the pickled state. Commit does nothing: a row is stored
when its task ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock import errors
from penstock.protocol import api
from penstock.spark.atomic_delivery import AtomicDelivery
from penstock.spark.delivery import FastDelivery, PublishDelivery, SinkDelivery, Written
from penstock.spark.driver_checks import check_write
from penstock.spark.ledger import Ledger
from penstock.spark.reconnecting import ReconnectingConnection, is_transient
from penstock.spark.sink_options import SinkOptions
from penstock.spark.sink_rows import Layout
from penstock.spark.spark_versions import DataSourceStreamArrowWriter, arrow_schema_of
from penstock.spark.task_identity import TaskIdentity
from penstock.spark.wire import BlockingConnection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("penstock.spark")


@dataclass
class TaskWritten(WriterCommitMessage):
    """Commit message of a task to the driver."""

    written: Written


def checked_stream(options: SinkOptions, connection: ReconnectingConnection) -> api.StreamInfoResponse:
    """The stream's info. Raises ConfigError if it does not fit the options, StreamNotFoundError."""
    info = connection.call(lambda c: c.stream_info(options.stream))
    check_stream(options, info.config)
    return info


def check_stream(options: SinkOptions, config: api.ApiStreamConfig) -> None:
    """Raises ConfigError if a stream does not fit the options."""
    if config.mirror is not None:
        raise errors.ConfigError(
            f"stream {options.stream!r} is a mirror: write to {config.mirror.name!r}, which it copies"
        )
    if options.delivery == "atomic" and not config.allow_atomic:
        raise errors.ConfigError(f"option 'delivery' is atomic: stream {options.stream!r} needs allow_atomic")
    if options.delivery == "fast" and not config.allow_batched:
        raise errors.ConfigError(f"option 'delivery' is fast: stream {options.stream!r} needs allow_batched")
    if config.no_ack:
        raise errors.ConfigError(
            f"stream {options.stream!r} has no_ack: without acks it is unknown which rows are stored"
        )
    if options.exactly_once and options.delivery != "atomic" and not config.duplicate_window:
        raise errors.ConfigError(
            f"stream {options.stream!r} has no duplicate window: set one, use 'delivery' atomic, or say "
            "'exactlyOnce' = false"
        )


def check_on_driver(options: SinkOptions, schema: StructType, *, streaming: bool) -> SinkOptions:
    """Check on the driver, before a task starts, that rows of `schema` can be written. Returns the options
    for the tasks, with the servers of the cluster.

    Raises ConfigError for missing columns, a subject that is none of the stream's, or a stream that does not
    fit the options; StreamNotFoundError; PermissionsError; AuthorizationError; and for batch writes
    NoServersError. Streaming queries leave lost connections to their tasks, which retry.
    """
    Layout(options, arrow_schema_of(schema))
    try:
        with BlockingConnection.open(options.connection) as connection:
            info = connection.api(api.StreamInfoResponse, f"STREAM.INFO.{options.stream}")
            check_stream(options, info.config)
            check_write(connection, options, info.config)
            return replace(options, connection=connection.known)
    except errors.StreamNotFoundError as error:
        raise errors.StreamNotFoundError(
            error.code,
            error.err_code,
            f"stream {options.stream!r}: {error.description}; create it, or check the options 'stream', "
            f"'servers' and 'domain' (asked: {options.connection.api_prefix})",
        ) from error
    except errors.PenstockError as error:
        if not streaming or not is_transient(error):
            raise
        return options


def write_rows(options: SinkOptions, identity: TaskIdentity, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of a task; rows stored by an earlier attempt are skipped.

    Raises ConfigError and MisuseError for rows that cannot be messages, JetStreamApiError if the server
    rejects one, NoStreamError, MaxPayloadError, and the last connection error after `retrySeconds`.
    """
    with ReconnectingConnection(options.connection) as connection:
        info = checked_stream(options, connection)
        if options.delivery == "atomic":
            return _write_atomic(options, identity, batches, connection, rollup=info.config.allow_rollup_hdrs)
        delivery: SinkDelivery = (FastDelivery if options.delivery == "fast" else PublishDelivery)(
            options, connection
        )
        stored: frozenset[bytes] = frozenset()
        if options.exactly_once and options.ledger is not None:
            stored = Ledger(options, connection, identity, info).stored_ids()
        return _write_ids(options, identity, batches, delivery, stored)


def _write_atomic(
    options: SinkOptions,
    identity: TaskIdentity,
    batches: Iterable[pa.RecordBatch],
    connection: ReconnectingConnection,
    *,
    rollup: bool,
) -> Written:
    delivery = AtomicDelivery(options, connection, identity, rollup=rollup)
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


class _WriterBase:
    """Common base of batch and streaming writers."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        identity = TaskIdentity.of_task(self.options.write_id)
        try:
            return TaskWritten(write_rows(self.options, identity, iterator))
        except errors.PermissionsError as error:
            raise errors.PermissionsError(
                f"stream {self.options.stream!r}: {error}", operation=error.operation, subject=error.subject
            ) from error

    def report(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message.written for message in messages if isinstance(message, TaskWritten)]
        rows, again = sum(w.rows for w in done), sum(w.duplicates for w in done)
        log.info("%s rows to stream %s, %s of them were there already", rows, self.options.stream, again)


class JetStreamWriter(_WriterBase, DataSourceArrowWriter):
    """Batch writes, mode append."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: stored rows cannot be withdrawn, and the next run skips them."""


class JetStreamStreamWriter(_WriterBase, DataSourceStreamArrowWriter):
    """Streaming writes, output modes append and complete."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: Spark repeats the micro-batch, which skips stored rows."""
