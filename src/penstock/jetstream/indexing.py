"""Subject indexes of streams, made ready piece by piece.

A wildcard filter asks a stream's subject index, which is made when it is asked for first: a million subjects
take it half a second. Each tick does a piece of it (some milliseconds) until it is whole. Whoever asks
meanwhile gets an answer that takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


class SubjectIndexing:
    """Of one account's streams. wake: called when there is work for the next tick."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._streams: dict[str, StreamReplica] = {}

    def add(self, stream: StreamReplica) -> None:
        """A wildcard will be asked for."""
        if stream.log.unindexed_subjects:
            self._streams[stream.name] = stream
            self._wake()

    def advance(self, now: int) -> None:
        """One piece of one stream."""
        if not self._streams:
            return
        name, stream = next(iter(self._streams.items()))
        if not stream.log.index_subjects():
            del self._streams[name]
        if self._streams:
            self._wake()
