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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica

PART_WORK = 64 * 1024  # in the units of slices.py


class Reviews:
    """Reviews of one account's streams."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._again: dict[
            StreamReplica, bool
        ] = {}  # streams that are reviewed, and whether they have to be again

    def begin(self, stream: StreamReplica) -> None:
        """Starts a review after an interest ended, or repeats the one in flight."""
        if stream in self._again:
            self._again[stream] = True
        elif stream.interest_state is not None:
            self._again[stream] = False
            self._engine.slices.add(self._steps(stream))

    def wait(self, stream: StreamReplica) -> Generator[int, None, None]:
        """Yields slices until the stream's review ended, for a request that is answered after it."""
        while stream in self._again:
            yield PART_WORK

    def _steps(self, stream: StreamReplica) -> Generator[int, None, None]:
        engine = self._engine
        seq, found = 1, False
        try:
            with engine.containment.changing(stream):
                while stream.interest_state is not None and engine.streams.get(stream.name) is stream:
                    gone, seq = stream.interest_state.review_part(seq, PART_WORK)
                    if gone:
                        found = True
                        engine.tick.note_removals(stream)
                    if not seq:
                        if found:
                            engine.tick.touch_stream(stream, at_once=False)
                        if not self._again[stream]:
                            return
                        self._again[stream] = found = False
                    yield PART_WORK
        finally:
            del self._again[stream]
