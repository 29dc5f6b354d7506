"""Publishes that reach a server which does not serve their stream, around a change of leaders.

Other servers, and clients of this one, send to the leader that they know. What is in flight when a leader
ends, or comes before the next one serves, would have no receiver: its publishers would wait in vain.
So both servers take it for a moment, without announcing that to others, and the next leader gets it.

No publish may be stored twice. A client's own server sends its publish to every server with interest. So
one that came from a client of this server is certain to be here only, while no other server has announced
interest. One that came from another server may have gone to the next leader as well, but not before that one
announced itself. The next leader takes it therefore only while it does not serve yet, and only from the
leader right before it; otherwise only with a message id, by which a second one is recognized.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.route_links import RouteSink
from penstock.kernels.wire.sinks import Sink
from penstock.protocol import headers
from penstock.server.replicated.hand_over import PrivateSubscriptions


class LatePublishes:
    """Takes the publishes of one stream.

    Args:
        index: of the account.
        arrived: called when the first one since take() is there.
    """

    def __init__(self, index: SubscriptionIndex, arrived: Callable[[], object]) -> None:
        self._index = index
        self._arrived = arrived
        self._subscriptions = PrivateSubscriptions(index, ServiceSink(self._on_publish))
        self._map: Callable[[bytes], bytes] = bytes
        self._takes_remote = False
        self._waiting: dict[bool, IngestBatch] = {}

    def begin(self, stream: StreamReplica, *, takes_remote: bool) -> None:
        """Takes publishes from now on. takes_remote: those of other servers, too, which sent them because
        this one led."""
        self.end()
        self._takes_remote = takes_remote
        mapper = stream.sink.mapper
        self._map = bytes if mapper is None else mapper.map
        self._subscriptions.begin(subject.encode() for subject in dict.fromkeys(stream.config.subjects))

    def end(self) -> None:
        """Takes no more."""
        self._subscriptions.end()

    def take(self) -> list[tuple[IngestBatch, bool]]:
        """Removes and returns what was taken, and whether it is certain that no other server has it."""
        waiting, self._waiting = self._waiting, {}
        return [(batch, is_certain) for is_certain, batch in waiting.items()]

    def _on_publish(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        # What another server sends has no origin here, or the link to a leaf node or gateway.
        is_own = isinstance(origin, ClientSink) and not isinstance(origin, RouteSink)
        if is_own and self._index.match(subject).elsewhere:
            return  # other servers have it, probably the leader among them
        if not is_own and not self._takes_remote:
            return
        is_first = not self._waiting
        batch = self._waiting.setdefault(is_own, IngestBatch())
        batch.append(self._map(subject), reply, header, payload)
        if is_first:
            self._arrived()


def with_message_ids(batch: IngestBatch) -> IngestBatch:
    """The publishes of a batch that have a message id."""
    kept = IngestBatch(batch.since)
    while (publish := batch.take_one()) is not None:
        if headers.value_of(publish[2], headers.MSG_ID):
            kept.append(*publish)
    return kept
