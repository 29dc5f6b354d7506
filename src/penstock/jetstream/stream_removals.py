"""Long removals of messages from the streams of one account, in slices (slices.py): of requests, and those
that roll-ups leave over.

Invariant: a stream whose roll-up is not done applies nothing, until _end_rollups() releases it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from penstock.errors import JetStreamApiError, StoreError
from penstock.jetstream import slices
from penstock.jetstream.containment import Containment
from penstock.jetstream.deferrals import Deferrals
from penstock.jetstream.limits import EngineConfig
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.slices import Slices
from penstock.jetstream.stream.overflow import Overflow
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.protocol import error_codes as codes

log = logging.getLogger("penstock.jetstream")

T = TypeVar("T")

REMOVALS_PER_WRITE = 8192  # messages that slices remove before a tick writes their tombstones: 1.5 ms at most


class StreamRemovals:
    """The long removals of one account's engine. config: returns its present configuration."""

    def __init__(
        self,
        table: StreamTable,
        pending: PendingWork,
        containment: Containment,
        running: Slices,
        overflow: Overflow,
        deferrals: Deferrals,
        *,
        config: Callable[[], EngineConfig],
    ) -> None:
        self._table = table
        self._pending = pending
        self._containment = containment
        self._slices = running
        self._overflow = overflow
        self._deferrals = deferrals
        self._config = config

    def run(self, stream: StreamReplica, steps: Generator[int, None, T]) -> Generator[int, None, T]:
        """The slices of a request that works on the messages of a stream; returns what they return.

        Tombstones are written while it goes on: those of a million messages take a tenth of a second.
        After a crash, what was removed so far is gone.

        Raises JetStreamApiError 10059 when the stream is deleted meanwhile.
        """
        recorded = stream.log.removals
        with self._containment.changing(stream), stream.store.removing():
            while True:
                try:
                    work = next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                if stream.log.removals - recorded >= REMOVALS_PER_WRITE:
                    recorded = stream.log.removals
                    self._pending.note_stream(stream)
                yield work
                if not self._table.has(stream):
                    raise codes.STREAM_NOT_FOUND.exception(stream=stream.name)

    def roll_up(self, stream: StreamReplica) -> None:
        """Blocks the stream until slices have removed what its roll-ups replace."""
        try:
            stream.begin_rollups()
        except StoreError as error:  # after a crash, some of the replaced messages may be there again
            log.error("stream %s: its roll-ups can not be recorded: %s", stream.name, error)
        self._overflow.bound(stream, self._config())
        self._slices.add(self._roll_up(stream))

    def _roll_up(self, stream: StreamReplica) -> Generator[int, None, None]:
        yield slices.WORK  # the message is written first
        try:
            yield from self.run(stream, stream.rollups.slices())
        except JetStreamApiError:
            return  # the stream was deleted
        self._end_rollups(stream)

    def _end_rollups(self, stream: StreamReplica) -> None:
        self._overflow.bound(stream, self._config())
        self._deferrals.release(stream)

    def finish_rollups(self, apply: Callable[[], None]) -> None:
        """Removes everything at once, and applies what waits for it: the engine closes. A stream of a group
        is built from its log again."""
        while rolling := [
            one for one in self._table.open.values() if one.durability.is_rolling_up and one.group is None
        ]:
            for stream in rolling:
                deque(stream.rollups.slices(), maxlen=0)
                self._end_rollups(stream)
            apply()
            self._slices.stop()
