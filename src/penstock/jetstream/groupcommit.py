"""`sync: always`: acks wait for the disk, and one sync covers everything that arrived in the meantime.

A stream that was written starts a sync in the background. While it is in flight, the stream is blocked:
publishes collect in its sink, its acks are deferred, and its consumers deliver nothing; other streams
continue. When the sync completes, the stream runs the rest of its tick (acknowledge, deliver), in which
everything in its log is durable. Then the collected publishes are applied as one batch, written and synced.

API requests wait as well, so that they see every publish that came before them. (A request between a publish
and the write of its tick reads the log, and may return a message that a power failure takes back. Reads do
not promise durability, here as on the official server; consumers deliver only durable messages.) What a
request changes is synced inline before its response: such changes are rare, and a background sync would have
to defer the response.

Invariant: between apply and the end of a sync, nothing of a stream leaves the server.

Rejected: applying publishes during a sync (every read of the log would have to exclude the messages above the
last durable one for consumers).
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
    """Group-commit state of one account's engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._waiting: dict[StreamReplica, None] = {}  # streams with publishes to apply
        self.ready: list[StreamReplica] = []  # those of them that may be applied again
        self._consumers: dict[ConsumerReplica, None] = {}  # that had work while their stream was syncing
        self.count = 0  # streams whose sync is in flight
        self._has_requests = False
        self._starting = False

    @property
    def in_flight(self) -> bool:
        """Whether the sync of any stream is in flight."""
        return self.count > 0

    def defer(self, stream: StreamReplica) -> None:
        """Defers a stream's publishes until its sync completes, or its roll-ups."""
        self._waiting[stream] = None

    def take_ready(self) -> list[StreamReplica]:
        """Returns the deferred streams whose sync completed."""
        ready, self.ready = self.ready, []
        return ready

    def release(self, stream: StreamReplica) -> None:
        """Lets the next tick apply a stream's publishes: its roll-ups are done."""
        self._waiting.pop(stream, None)
        self.ready.append(stream)
        self._engine.wake()

    def defer_consumer(self, consumer: ConsumerReplica) -> None:
        """Defers a consumer's deliveries until its stream's sync completes."""
        self._consumers[consumer] = None

    def after(self, request: Callable[[], object], queue: Queue = Queue.NONE) -> None:
        """Runs a request when no sync is in flight; rejects it when its queue is full."""
        self._has_requests = True
        self._engine.requests.add(self, request, queue)

    def take_requests(self) -> list[Callable[[], object]]:
        """Returns the requests that waited, once no sync is in flight.

        Each tick asks. If the end of a sync released them, an exception in it would block requests for all
        streams of the account.
        """
        if self.count or not self._has_requests:
            return []  # requests may read any stream, so they wait for the last sync in flight
        requests = self._engine.requests.take(self)
        self._has_requests = False
        return requests

    def sync(self, stream: StreamReplica) -> None:
        """Makes what was written durable. Raises StoreWriteError when the sync ran inline and failed."""
        # A request's response follows in this tick and must not precede durability: sync inline.
        if stream.sync_at_once:
            stream.sync_at_once = False
            stream.store.sync()
            return
        failed: list[StoreWriteError] = []

        def done(error: StoreWriteError | None) -> None:
            if not stream.syncing:
                return  # drop() ended it: the stream was deleted or set aside during the sync
            stream.syncing = False
            self.count -= 1
            if not self._starting:
                self._engine.wake()  # before what may raise: the next tick runs the requests that waited
            self._engine.overflow.bound(stream, self._engine.config, is_syncing=stream.rolling)
            # A store may complete the sync inside start_sync(). The caller is then still writing: it gets the
            # error as an exception, and its tick sends the acks itself.
            if self._starting:
                failed.extend([error] if error is not None else [])
            else:
                self._finish(stream, error)

        # Block the stream before the sync starts: from here until done(), nothing of it may leave the server.
        stream.syncing = True
        self._engine.overflow.bound(stream, self._engine.config, is_syncing=True)
        self.count += 1
        self._starting = True
        try:
            stream.store.start_sync(done)
        finally:
            self._starting = False
        if failed:
            raise failed[0]

    def _finish(self, stream: StreamReplica, error: StoreWriteError | None) -> None:
        """Runs the rest of the tick in which the stream was written."""
        engine = self._engine
        # Another stream may have taken the name; acks of a deleted one must not be sent.
        if engine.streams.get(stream.name) is stream:
            engine.tick.synced(stream, error, [one for one in self._consumers if one.stream is stream])
        self._consumers = {one: None for one in self._consumers if one.stream is not stream}
        if stream in self._waiting:
            del self._waiting[stream]
            self.ready.append(stream)

    def drop(self, stream: StreamReplica) -> None:
        """Forgets a stream that is deleted or set aside, and unblocks what waited for its sync."""
        self._waiting.pop(stream, None)
        self._consumers = {one: None for one in self._consumers if one.stream is not stream}
        if stream.syncing:
            stream.syncing = False
            self.count -= 1
            self._engine.wake()
