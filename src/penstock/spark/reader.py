"""Reads one range of a stream's sequences into column buffers.

The kernel builds columns from the received messages. A session (range_sessions.py) requests messages on one
connection. The reader opens a new session when one is lost.

Invariant: every live message of [start, end) that a filter matches is returned exactly once, in order. A
missing delivery ends the session (the kernel detects a gap in the consumer sequence), and the next session
resumes at the first sequence not read. Without progress for `retrySeconds` the task fails with the last
error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from penstock import errors
from penstock.kernels.spark.columns import ColumnBuilder
from penstock.spark.offsets import DataLossError, SequenceRange
from penstock.spark.range_sessions import DATA_SID, Batch, ConsumerSession, DirectSession, RangeSession
from penstock.spark.reconnecting import RetryPolicy, is_transient
from penstock.spark.source_options import SourceOptions
from penstock.spark.wire import BlockingConnection

_log = logging.getLogger(__name__)

# Errors that a new consumer may resolve, in addition to transient ones.
_CONSUMER_LOST = (errors.ConsumerGoneError, errors.ConsumerNotFoundError)


class RangeReader:
    """Reads `span`. columns: those the kernel builds. `batches` may be iterated once."""

    def __init__(self, options: SourceOptions, span: SequenceRange, columns: Sequence[str]) -> None:
        self.options = options
        self.span = span
        self.builder = ColumnBuilder(
            columns,
            sid=DATA_SID,
            direct=options.access == "direct",
            rows_max=options.batch_rows,
            bytes_max=options.batch_bytes,
        )
        self.builder.restart(span.start, span.end)
        # Skip payloads that are not read. Not if headers are: a headers-only consumer adds Nats-Msg-Size,
        # which would appear among the publisher's headers.
        self.headers_only = "data" not in columns and "headers" not in columns

    def batches(self) -> Iterator[Batch]:
        """Yield batches of at least one row until the range is read.

        Raises DataLossError (failOnDataLoss), StreamNotFoundError, AuthorizationError and PermissionsError
        at once, and the last connection error after `retrySeconds` without progress.
        """
        known = self.options.connection
        # Each replica answers direct gets itself; a consumer is at one server, whichever one passes it on.
        replicas = self.span.replicas if self.options.access == "direct" else ()
        retry_policy = RetryPolicy(known.retry_s, self.builder.next_seq)
        rows = 0
        while True:
            try:
                with BlockingConnection.open(known, replicas) as connection:
                    known = connection.known
                    for batch in self.session(connection).batches():
                        rows += batch[0]
                        yield batch
                self.account(rows)
                return
            except errors.PenstockError as error:
                if not is_transient(error) and not isinstance(error, _CONSUMER_LOST):
                    raise
                known = known.next_turn()
                retry_policy.backoff(error, self.builder.next_seq)

    def account(self, rows: int) -> None:
        """Log sequences without a row. Raises DataLossError if failOnDataLoss is strict."""
        span = self.span
        missing = span.end - span.start - rows
        if not missing:
            return
        text = (
            f"stream {span.stream!r}: {missing} of the sequences {span.start} to {span.end - 1} have no row"
        )
        if self.options.fail_on_gaps:
            raise DataLossError(
                f"{text}: they were deleted, expired or replaced, and failOnDataLoss is strict. Set it "
                "to true to fail only when a stream lost its beginning"
            )
        if self.options.subjects:
            text += " (subject filters among the reasons)"
        _log.info(text)

    def session(self, connection: BlockingConnection) -> RangeSession:
        """A session for the rest of the range, by option `access`."""
        if self.options.access == "direct":
            return DirectSession(self.options, self.span, self.builder, connection)
        return ConsumerSession(
            self.options, self.span, self.builder, connection, headers_only=self.headers_only
        )
