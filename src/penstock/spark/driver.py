"""The driver's questions to the server: what the streams hold, and where a read begins and ends in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import errors
from penstock.protocol import api
from penstock.spark.offsets import StreamBounds
from penstock.spark.positions import resolve
from penstock.spark.reconnecting import CONNECTION_LOST, RetryPolicy
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from penstock.spark.wire import BlockingConnection

T = TypeVar("T")

_NAMES_SHOWN = 10

# What a server that was restarted, or another one of its cluster, may answer in a moment.
_PASSING = (*CONNECTION_LOST, errors.JetStreamNotEnabledError)


class Driver:
    """Its connection is made when first used, made anew when it was lost between two triggers, and left
    behind when pickled.

    A server that has answered before is waited for, `retrySeconds` long, as the tasks do: a query outlives
    its restart. One that never did is an error at once: a wrong address is no outage.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._connection: BlockingConnection | None = None
        self._was_answered = False

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_connection": None, "_was_answered": False}

    def ask(self, question: Callable[[BlockingConnection], T]) -> T:
        """Questions only read, so one that met a dead connection is asked again on a new one."""
        from penstock.spark.wire import BlockingConnection

        retry_policy = RetryPolicy(self.options.connection.retry_s, 0)
        while True:
            try:
                if self._connection is None:
                    self._connection = BlockingConnection.open(self.options.connection)
                answer = question(self._connection)
                self._was_answered = True
                return answer
            except _PASSING as error:
                self.close()
                if not self._was_answered:
                    raise
                retry_policy.bear(error, 0)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def bounds(self) -> dict[str, StreamBounds]:
        """The first and last sequence of each stream.

        Raises:
            StreamNotFoundError: it lists the streams that exist. Also what `BlockingConnection.api` raises.
        """
        from penstock.spark.range_sessions import stream_bounds

        found = {}
        for name in self.options.streams:
            try:
                found[name] = self.ask(partial(stream_bounds, stream=name))
            except errors.StreamNotFoundError as error:
                raise errors.StreamNotFoundError(
                    error.code,
                    error.err_code,
                    f"stream {name!r}: {error.description}; {self._what_there_is()}",
                ) from error
        return found

    def _what_there_is(self) -> str:
        prefix = self.options.connection.api_prefix
        hint = f"check options 'stream' and 'servers', and 'domain' (asked: {prefix})"
        try:
            names = self.ask(lambda c: c.api(api.StreamNamesResponse, "STREAM.NAMES")).streams
        except errors.PenstockError:
            return hint  # that is another right, and not what was asked
        shown = ", ".join(sorted(names)[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        return f"there are {shown}; {hint}" if names else f"there are none; {hint}"

    def start_of(self, bounds: StreamBounds) -> int:
        """Where a read that has no checkpoint begins."""
        position = self.options.starting.of(bounds.name)
        at = resolve(position, bounds.first_seq, bounds.last_seq, partial(self.sequence_at, bounds.name))
        return max(at, bounds.first_seq)

    def end_of(self, bounds: StreamBounds) -> int:
        """The first sequence a batch read does not read."""
        position = self.options.ending.of(bounds.name)
        at = resolve(position, bounds.first_seq, bounds.last_seq, partial(self.sequence_at, bounds.name))
        return min(at, bounds.last_seq + 1)

    def sequence_at(self, stream: str, when: str) -> int:
        """The first sequence of `stream` stored at or after a time (RFC3339)."""
        from penstock.spark.range_sessions import sequence_at_time

        return self.ask(lambda c: sequence_at_time(c, stream, when))
