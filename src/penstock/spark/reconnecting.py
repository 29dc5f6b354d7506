"""A connection that is made anew when it was lost, and how long one goes on trying.

Invariant: without progress for `retrySeconds` the last error is raised; what is wrong for good (no stream, no
permission, a refused row) is raised at once.
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


def is_passing(error: Exception) -> bool:
    """May another try do better? 503 is a stream without a leader, 429 one that has too much to do."""
    return isinstance(error, CONNECTION_LOST) or (
        isinstance(error, errors.JetStreamApiError) and error.code in (429, 503)
    )


class RetryPolicy:
    """How long errors that may pass are borne: `retry_s` without progress, which is any number that grows as
    work gets done; `progress` is where it stands."""

    def __init__(self, retry_s: float, progress: int) -> None:
        self._retry_s = retry_s
        self._seen = progress
        self._progress_s = time.monotonic()
        self._pause_s = PAUSE_FIRST_S

    def bear(self, error: Exception, progress: int) -> None:
        """Pauses, longer from time to time; raises the error when nothing has moved for too long."""
        now = time.monotonic()
        if progress > self._seen:
            self._seen, self._progress_s, self._pause_s = progress, now, PAUSE_FIRST_S
        elif now - self._progress_s > self._retry_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)


class ReconnectingConnection:
    """One connection at a time."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._patience = RetryPolicy(options.retry_s, -1)
        self._connection: BlockingConnection | None = None

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def connection(self) -> BlockingConnection:
        """The connection there is, or a new one. Raises NoServersError, AuthorizationError."""
        if self._connection is None:
            self._connection = BlockingConnection.open(self.options)
        return self._connection

    @contextmanager
    def trying(self, progress: int, retry_policy: RetryPolicy | None = None) -> Iterator[None]:
        """Around one step of work: swallows an error that may pass, after a pause; the connection is gone
        then. Raises it when nothing has moved for too long, and all others."""
        try:
            yield
        except errors.PenstockError as error:
            if not is_passing(error):
                raise
            self.drop()
            (retry_policy or self._patience).bear(error, progress)

    def ask(self, question: Callable[[BlockingConnection], T]) -> T:
        """A question that may be asked again, on a new connection when it has to be."""
        retry_policy = RetryPolicy(self.options.retry_s, -1)
        while True:
            with self.trying(0, retry_policy):
                return question(self.connection())

    def drop(self) -> None:
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
