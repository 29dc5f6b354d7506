"""Reads one range of a stream's sequences over the wire, as column buffers.

The kernel turns what arrives into columns; a session (sessions.py) asks for it on one connection; the reader
makes a new session when one is lost.

Invariant: every live message of [start, end) that a filter matches comes out exactly once, in order. A
missing delivery ends the session (the kernel sees the consumer's own count jump); the next one goes on at
the first sequence not seen. Without progress for `retrySeconds` the task fails with the cause.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from penstock import errors
from penstock.kernels.columns import ColumnBuilder
from penstock.spark.offsets import SequenceRange
from penstock.spark.options import SourceOptions
from penstock.spark.sessions import DATA_SID, Batch, ConsumerSession, DirectSession, Session
from penstock.spark.wire import Connection

RETRY_PAUSE_FIRST_S = 0.05
RETRY_PAUSE_MAX_S = 2.0

# What a new connection and a new consumer may cure.
_RETRYABLE = (
    errors.DisconnectedError,
    errors.NoServersError,
    errors.RequestTimeoutError,
    errors.ConsumerGoneError,
    errors.ConsumerNotFoundError,
    errors.ProtocolError,
)


class RangeReader:
    """Reads `span` of a stream. `columns` are those the kernel builds; `batches` may be iterated once."""

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
        # Payloads nobody wants need not cross the wire. With headers wanted they must: the server's
        # Nats-Msg-Size would show up among the publisher's own.
        self.headers_only = "data" not in columns and "headers" not in columns

    def batches(self) -> Iterator[Batch]:
        """Batches of at least one row until the range is read.

        Raises DataLossError (failOnDataLoss), StreamNotFoundError, AuthorizationError, PermissionsError at
        once, and the last connection error after `retrySeconds` without progress.
        """
        progress_s, seen, pause_s = time.monotonic(), self.builder.next_seq, RETRY_PAUSE_FIRST_S
        while True:
            try:
                with Connection.open(self.options.connection) as connection:
                    yield from self.session(connection).batches()
                return
            except (*_RETRYABLE, errors.JetStreamApiError) as error:
                if not _is_passing(error):
                    raise
                now = time.monotonic()
                if self.builder.next_seq > seen:
                    progress_s, seen, pause_s = now, self.builder.next_seq, RETRY_PAUSE_FIRST_S
                elif now - progress_s > self.options.connection.retry_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_PAUSE_MAX_S)

    def session(self, connection: Connection) -> Session:
        if self.options.access == "direct":
            return DirectSession(self.options, self.span, self.builder, connection)
        return ConsumerSession(
            self.options, self.span, self.builder, connection, headers_only=self.headers_only
        )


def _is_passing(error: Exception) -> bool:
    """503 is a stream without a leader just now, or a server that has too much to do."""
    return isinstance(error, _RETRYABLE) or (
        isinstance(error, errors.JetStreamApiError) and error.code == 503
    )
