"""Builds the subject indexes of streams incrementally.

A wildcard filter uses a stream's subject index, which is built on first use: a million subjects take half a
second. Each tick builds a part of it (a few milliseconds). Lookups in the meantime are correct, but slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


class SubjectIndexing:
    """Index construction for one account's streams. `wake`: called when the next tick has work.

    streams: those whose index is incomplete, by name.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.streams: dict[str, StreamReplica] = {}

    def add(self, stream: StreamReplica) -> None:
        """Schedules the stream's index: a wildcard lookup will follow."""
        if stream.log.unindexed_subjects:
            self.streams[stream.name] = stream
            self._wake()

    def advance(self, now: int) -> None:
        """Builds one part of one stream's index."""
        if not self.streams:
            return
        name, stream = next(iter(self.streams.items()))
        if not stream.log.index_subjects():
            del self.streams[name]
        if self.streams:
            self._wake()
