"""What waits until a stream's sync or roll-up is done: its publishes, its consumers, and requests.

API requests wait for every sync in flight, so that they see every publish that came before them. (A request
between a publish and the write of its tick reads the log, and may return a message that a power failure takes
back. Reads do not promise durability, here as on the official server; consumers deliver only durable
messages.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.waiting import Queue, WaitingRequests


class Deferrals:
    """Deferred work of one account's engine. wake: requests the end of a tick. requests: where requests
    wait, with the server's limits. ready: deferred streams that may be applied."""

    def __init__(self, wake: Callable[[], None], requests: WaitingRequests) -> None:
        self._wake = wake
        self._requests = requests
        self._streams: dict[StreamReplica, None] = {}  # with publishes to apply
        self.ready: list[StreamReplica] = []  # those of them that may be applied again
        self._consumers: dict[ConsumerReplica, None] = {}  # that had work while their stream was syncing
        self.has_requests = False

    def defer(self, stream: StreamReplica) -> None:
        """Defers a stream's publishes until its sync or its roll-up is done."""
        self._streams[stream] = None

    def defer_consumer(self, consumer: ConsumerReplica) -> None:
        """Defers a consumer's deliveries until its stream's sync is done."""
        self._consumers[consumer] = None

    def take_consumers(self, stream: StreamReplica) -> list[ConsumerReplica]:
        """Removes and returns the deferred consumers of a stream."""
        taken = [one for one in self._consumers if one.stream is stream]
        for one in taken:
            del self._consumers[one]
        return taken

    def synced(self, stream: StreamReplica) -> None:
        """Lets the next tick apply the stream's publishes if they were deferred."""
        if stream in self._streams:
            del self._streams[stream]
            self.ready.append(stream)

    def release(self, stream: StreamReplica) -> None:
        """Lets the next tick apply the stream's publishes: its roll-ups are done."""
        self._streams.pop(stream, None)
        self.ready.append(stream)
        self._wake()

    def take_ready(self) -> list[StreamReplica]:
        """Returns the deferred streams that may be applied."""
        ready, self.ready = self.ready, []
        return ready

    def begin_again(self, streams: Iterable[StreamReplica]) -> None:
        """The next tick applies all of them: a step failed and lost track of them."""
        self.ready = list(streams)

    def drop(self, stream: StreamReplica) -> None:
        """Forgets a stream that is deleted or set aside."""
        self._streams.pop(stream, None)
        self.take_consumers(stream)

    def after(self, request: Callable[[], object], queue: Queue = Queue.NONE) -> None:
        """Runs a request when no sync is in flight; rejects it when its queue is full."""
        self.has_requests = True
        self._requests.add(self, request, queue)

    def take_requests(self) -> list[Callable[[], object]]:
        """Returns the requests that waited. They may read any stream, so the caller waits for the last sync
        in flight.

        Each tick asks (has_requests). If the end of a sync released them, an exception in it would block
        requests for all streams of the account.
        """
        requests = self._requests.take(self)
        self.has_requests = False
        return requests
