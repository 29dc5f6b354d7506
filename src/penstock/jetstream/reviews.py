"""Finds the messages of an interest or work-queue stream that no consumer needs after an interest ended at
once.

A consumer that ends or changes its filters may have been the last one to need any message of its stream. All
messages are examined, in slices (slices.py): a million messages and a thousand consumers take seconds.

Messages come and go between two slices. New ones have an interested consumer; removed ones need no review.
When another interest ends meanwhile, everything is examined again: a removal may be repeated or deferred
(kernels/ingest/storing.pyx). A crash in between is harmless, because every start reviews the stream.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.jetstream.containment import Containment
from penstock.jetstream.pending_work import PendingWork
from penstock.jetstream.slices import Slices
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable

PART_WORK = 64 * 1024  # in the units of slices.py


class Reviews:
    """Reviews of one account's streams."""

    def __init__(
        self, table: StreamTable, slices: Slices, pending: PendingWork, containment: Containment
    ) -> None:
        self._table = table
        self._slices = slices
        self._pending = pending
        self._containment = containment
        self._again: dict[
            StreamReplica, bool
        ] = {}  # streams that are reviewed, and whether they have to be again

    def begin(self, stream: StreamReplica) -> None:
        """Starts a review after an interest ended, or repeats the one in flight."""
        if stream in self._again:
            self._again[stream] = True
        elif stream.interest_state is not None:
            self._again[stream] = False
            self._slices.add(self._steps(stream))

    def wait(self, stream: StreamReplica) -> Generator[int, None, None]:
        """Yields slices until the stream's review ended, for a request that is answered after it."""
        while stream in self._again:
            yield PART_WORK

    def _steps(self, stream: StreamReplica) -> Generator[int, None, None]:
        seq, found = 1, False
        try:
            with self._containment.changing(stream):
                while stream.interest_state is not None and self._table.has(stream):
                    settled, seq = stream.interest_state.unneeded(seq, PART_WORK)
                    if settled.count and stream.remove_settled(settled):
                        found = True
                        self._pending.note_stream(stream)
                    if not seq:
                        if found:
                            self._pending.touch_stream(stream, at_once=False)
                        if not self._again[stream]:
                            return
                        self._again[stream] = found = False
                    yield PART_WORK
        finally:
            del self._again[stream]
