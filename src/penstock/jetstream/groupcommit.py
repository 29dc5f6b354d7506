"""`sync: always`: acks wait for the disk, and one sync covers all that arrived meanwhile.

A stream that was written starts a sync in the background. While it is under way the stream is left alone:
its publishes gather in its sink, its acks are held, its consumers deliver nothing; other streams go on. When
the sync is done the stream gets the rest of its tick (acknowledge, deliver), in which everything its log
holds is on the disk; then what gathered is applied as one batch, and written, and synced.

Requests wait as well, so that they see every publish that came before them. (One that arrives between a
publish and the write of its tick is answered from the log, by a message that a power failure can still take
back: reads promise nothing that acks promise, there as on the official server. Consumers deliver only what is
on the disk.) What a request changed is synced before its response leaves, without the background: it is
seldom, and the response would have to be held.

Invariant: between apply and the end of a sync, nothing of a stream leaves the server.
Rejected: applying on while a sync is under way (consumers would have to be kept from the messages above the
last synced one, which every look at the log would have to know).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StoreWriteError
from penstock.jetstream.api.waiting import Queue

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.stream.stream_replica import StreamReplica

log = logging.getLogger("penstock.jetstream")


class GroupCommit:
    """Of one engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._waiting: dict[StreamReplica, None] = {}  # streams with publishes to apply
        self.ready: list[StreamReplica] = []  # those of them that may be applied again
        self._consumers: dict[ConsumerReplica, None] = {}  # that had work while their stream was syncing
        self.count = 0  # streams on their way to the disk
        self._starting = False

    @property
    def in_flight(self) -> bool:
        """Is a stream on its way to the disk?"""
        return self.count > 0

    def hold(self, stream: StreamReplica) -> None:
        """Its publishes are applied when its sync is done."""
        self._waiting[stream] = None

    def take_ready(self) -> list[StreamReplica]:
        """Streams that were held and may be applied."""
        ready, self.ready = self.ready, []
        return ready

    def hold_consumer(self, consumer: ConsumerReplica) -> None:
        """It delivers when its stream's sync is done."""
        self._consumers[consumer] = None

    def after(self, request: Callable[[], object], queue: Queue = Queue.NONE) -> None:
        """Runs it when no sync is under way, unless too many wait in its queue."""
        self._engine.requests.add(self, request, queue)

    def sync(self, stream: StreamReplica) -> None:
        """Brings what was written to the disk. Raises StoreWriteError when it didn't wait and failed."""
        if stream.sync_at_once:
            stream.sync_at_once = False
            stream.store.sync()
            return
        failed: list[StoreWriteError] = []

        def done(error: StoreWriteError | None) -> None:
            if not stream.syncing:
                return  # it was dropped meanwhile
            stream.syncing = False
            self.count -= 1
            self._engine.overflow.bound(stream, self._engine.config, is_held=False)
            if self._starting:
                failed.extend([error] if error is not None else [])
            else:
                self._finish(stream, error)

        stream.syncing = True
        self._engine.overflow.bound(stream, self._engine.config, is_held=True)
        self.count += 1
        self._starting = True
        try:
            stream.store.start_sync(done)
        finally:
            self._starting = False
        if failed:
            raise failed[0]

    def _finish(self, stream: StreamReplica, error: StoreWriteError | None) -> None:
        """The rest of the tick in which the stream was written."""
        engine = self._engine
        if engine.streams.get(stream.name) is stream:
            engine.tick.synced(stream, error, [one for one in self._consumers if one.stream is stream])
        self._consumers = {one: None for one in self._consumers if one.stream is not stream}
        if stream in self._waiting:
            del self._waiting[stream]
            self.ready.append(stream)
        self._release_requests()

    def _release_requests(self) -> None:
        if not self.count:
            for request in self._engine.requests.take(self):
                self._engine.tick.defer(request)
        self._engine.wake()

    def drop(self, stream: StreamReplica) -> None:
        """The stream goes away: nobody waits for its sync any longer."""
        self._waiting.pop(stream, None)
        self._consumers = {one: None for one in self._consumers if one.stream is not stream}
        if stream.syncing:
            stream.syncing = False
            self.count -= 1
            self._release_requests()
