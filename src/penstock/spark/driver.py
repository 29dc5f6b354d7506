"""Server requests made by Spark's driver: stream bounds, the start and end of a read, first checks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import errors
from penstock.protocol import api
from penstock.spark.offsets import StreamBounds
from penstock.spark.positions import resolve
from penstock.spark.reconnecting import RetryPolicy, is_transient
from penstock.spark.source_options import SourceOptions

if TYPE_CHECKING:
    from penstock.spark.wire import BlockingConnection

T = TypeVar("T")

_NAMES_SHOWN = 10

_WRONG_ADDRESS = (errors.NoServersError, errors.JetStreamNotEnabledError)


class Driver:
    """The driver's connection: opened on first use, reopened when lost, and not pickled.

    Transient errors are retried for `retrySeconds`, as tasks do, so that a query survives the restart of a
    server and begins while a stream has no leader. If no server was ever reached, or none with JetStream, the
    error is raised at once: a wrong address is not an outage.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.known = options.connection
        """The connection's options, with the servers of the cluster that are known by now."""
        self._connection: BlockingConnection | None = None
        self._was_answered = False
        self._is_checked = False

    def __getstate__(self) -> dict[str, Any]:
        state = {"_connection": None, "_was_answered": False, "_is_checked": False}
        return {"options": self.options, "known": self.known, **state}

    def call(self, request: Callable[[BlockingConnection], T]) -> T:
        """Call `request` with a connection and return its result.

        Requests must be read-only or idempotent: they are retried on a new connection when one is lost.
        """
        from penstock.spark.wire import BlockingConnection

        retry_policy = RetryPolicy(self.options.connection.retry_s, 0)
        while True:
            try:
                if self._connection is None:
                    self._connection = BlockingConnection.open(self.known)
                    self.known = self._connection.known
                answer = request(self._connection)
                self._was_answered = True
                return answer
            except errors.PenstockError as error:
                if not is_transient(error):
                    raise
                self.close()  # another server of the cluster may be better off
                if not self._was_answered and isinstance(error, _WRONG_ADDRESS):
                    raise
                retry_policy.backoff(error, 0)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def bounds(self) -> dict[str, StreamBounds]:
        """The bounds of each stream, by name.

        Raises StreamNotFoundError, whose text lists the streams that exist, what `BlockingConnection.api`
        raises, and the first time what the checks of `driver_checks` raise.
        """
        from penstock.spark.range_sessions import bounds_of

        infos = self._infos()
        if not self._is_checked:
            self.call(partial(_check, options=self.options, infos=infos))
            self._is_checked = True
        return {info.config.name: bounds_of(info.config.name, info) for info in infos}

    def _infos(self) -> list[api.StreamInfoResponse]:
        pattern = self.options.stream_pattern
        if pattern is None:
            return [self._info(name) for name in self.options.streams]
        names = self.call(_stream_names)
        infos = []
        for name in names:
            if re.fullmatch(pattern, name):
                with contextlib.suppress(errors.StreamNotFoundError):  # deleted since
                    infos.append(self._info(name))
        if not infos and not self._is_checked:
            there = f"there are {_shown(names)}" if names else "there are none"
            raise errors.ConfigError(
                f"option 'streamPattern': no stream has a name like {pattern!r}; {there}"
            )
        return infos

    def _info(self, name: str) -> api.StreamInfoResponse:
        try:
            return self.call(lambda c: c.stream_info(name))
        except errors.StreamNotFoundError as error:
            raise errors.StreamNotFoundError(
                error.code,
                error.err_code,
                f"stream {name!r}: {error.description}; {self._available_streams()}",
            ) from error

    def _available_streams(self) -> str:
        prefix = self.options.connection.api_prefix
        hint = f"check options 'stream' and 'servers', and 'domain' (asked: {prefix})"
        try:
            names = self.call(_stream_names)
        except errors.PenstockError:
            return hint  # listing streams takes another permission; report the original error
        return f"there are {_shown(names)}; {hint}" if names else f"there are none; {hint}"

    def start_of(self, bounds: StreamBounds) -> int:
        """The first sequence of a read without a checkpoint."""
        position = self.options.starting.of(bounds.name)
        at = resolve(position, bounds.first_seq, bounds.last_seq, partial(self.sequence_at, bounds.name))
        return max(at, bounds.first_seq)

    def end_of(self, bounds: StreamBounds) -> int:
        """The end of a batch read, exclusive."""
        position = self.options.ending.of(bounds.name)
        at = resolve(position, bounds.first_seq, bounds.last_seq, partial(self.sequence_at, bounds.name))
        return min(at, bounds.last_seq + 1)

    def sequence_at(self, stream: str, when: str) -> int:
        """The first sequence of `stream` stored at or after a time (RFC3339)."""
        from penstock.spark.range_sessions import sequence_at_time

        return self.call(lambda c: sequence_at_time(c, stream, when))


def _stream_names(connection: BlockingConnection) -> list[str]:
    """The names of all streams, sorted."""
    names: list[str] = []
    while True:
        page = connection.api(
            api.StreamNamesResponse, "STREAM.NAMES", api.StreamNamesRequest(offset=len(names))
        )
        names += page.streams or []
        if not page.streams or len(names) >= page.total:
            return sorted(set(names))


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")


def _check(
    connection: BlockingConnection, options: SourceOptions, infos: list[api.StreamInfoResponse]
) -> None:
    from penstock.spark.driver_checks import check_read, check_subjects

    for info in infos:
        check_read(connection, options, info)
    check_subjects(connection, options, infos)
