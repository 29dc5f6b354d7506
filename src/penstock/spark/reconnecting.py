"""A connection that reconnects, and the retry policy for transient errors.

Invariant: without progress for `retrySeconds` the last error is raised. Permanent errors (no stream, no
permission, a rejected row) are raised at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from penstock import errors
from penstock.spark.connection_options import ConnectionOptions
from penstock.spark.wire import BlockingConnection

T = TypeVar("T")

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0

CONNECTION_LOST = (
    errors.DisconnectedError,
    errors.NoServersError,
    errors.RequestTimeoutError,
    errors.ProtocolError,
)


def is_transient(error: Exception) -> bool:
    """Whether a retry may succeed. 503: the stream has no leader; 429: the server is overloaded."""
    return isinstance(error, CONNECTION_LOST) or (
        isinstance(error, errors.JetStreamApiError) and error.code in (429, 503)
    )


class RetryPolicy:
    """Retry budget for transient errors: `retry_s` seconds without progress.

    progress: a number that grows as work is done.
    """

    def __init__(self, retry_s: float, progress: int) -> None:
        self._retry_s = retry_s
        self._seen = progress
        self._progress_s = time.monotonic()
        self._pause_s = PAUSE_FIRST_S

    def backoff(self, error: Exception, progress: int) -> None:
        """Sleep before the next attempt, with exponential backoff.

        Raises `error` if there was no progress for `retry_s`.
        """
        now = time.monotonic()
        if progress > self._seen:
            self._seen, self._progress_s, self._pause_s = progress, now, PAUSE_FIRST_S
        elif now - self._progress_s > self._retry_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)


class ReconnectingConnection:
    """At most one open connection, reopened on demand."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._retry_policy = RetryPolicy(options.retry_s, -1)
        self._connection: BlockingConnection | None = None

    @property
    def is_up(self) -> bool:
        """Whether a connection is open."""
        return self._connection is not None

    def current(self) -> BlockingConnection:
        """The open connection, or a new one. Raises NoServersError, AuthorizationError."""
        if self._connection is None:
            self._connection = BlockingConnection.open(self.options)
            self.options = self._connection.known
        return self._connection

    @contextmanager
    def trying(self, progress: int, retry_policy: RetryPolicy | None = None) -> Iterator[None]:
        """Context for one step of work.

        On a transient error: closes the connection, backs off and suppresses the error, so that the caller
        can repeat the step. Raises it when the retry budget is used up. Other errors propagate.
        """
        try:
            yield
        except errors.PenstockError as error:
            if not is_transient(error):
                raise
            self.drop()
            (retry_policy or self._retry_policy).backoff(error, progress)

    def call(self, request: Callable[[BlockingConnection], T]) -> T:
        """Call an idempotent `request` with a connection; retry on a new one after transient errors."""
        retry_policy = RetryPolicy(self.options.retry_s, -1)
        while True:
            with self.trying(0, retry_policy):
                return request(self.current())

    def drop(self) -> None:
        """Close the connection, if any."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def __enter__(self) -> ReconnectingConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
