"""What the leader of a stream's group gives the next one besides its log: what its consumers delivered and
got acks for, while it handed over, when nothing can be proposed.

The commands of this time go to the next leader by mail (`HandedOver`), which proposes them before it serves:
its consumers begin where the others ended. They continue the log of the old leader exactly, so the next one
takes them only when the last entry that it has is the one that they follow.

Acks that ask for a confirmation, and acks that arrive late, are kept as they came (`AckKeeper`), and given to
the next leader as other requests are: it confirms what it has. An ack that is applied twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock import faults
from penstock.errors import MalformedCommandError, StoreError
from penstock.jetstream.commands import CheckState, ProgressConsumer, decode
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.engine import JetStreamEngine
from penstock.jetstream.group_commands import split
from penstock.jetstream.replicated_stream import ReplicatedStream
from penstock.kernels.ingest.ingest import IngestBatch
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.acks import ACK, TERM
from penstock.protocol.api import AckPolicy
from penstock.protocol.ids import short_hash

LATE_NS = 200_000_000
"""So long after its end a leader takes acks for the next one: other servers may not know of it yet."""
WAIT_NS = 100_000_000
"""So long a new leader waits for what the one before hands over."""
_LENGTH_BYTES = 4

TakeAck = Callable[[bytes, bytes, bytes, bytes], object]


def progress_of(entry: bytes, but: frozenset[str]) -> bytes:
    """What of an entry that was not proposed the next leader is to propose: the consumers' progress, up to
    the first command on which it may depend. Publishes go another way. b"": nothing.

    but: consumers that send only what is committed: this server did not send what they recorded.
    """
    kept: list[bytes] = []
    try:
        for start, end in split(entry):
            command, _ = decode(entry, start, end)
            if isinstance(command, ProgressConsumer):
                if command.name in but:
                    continue
                kept.append((end - start).to_bytes(_LENGTH_BYTES, "little") + entry[start:end])
            elif not isinstance(command, (IngestBatch, CheckState)):
                break
    except MalformedCommandError:
        return b""
    return b"".join([entry[:1], *kept]) if kept else b""


def is_progress(entry: bytes) -> bool:
    """Whether an entry of another server holds nothing but consumers' progress."""
    try:
        return all(isinstance(decode(entry, *span)[0], ProgressConsumer) for span in split(entry))
    except MalformedCommandError:
        return False


class PrivateSubscriptions:
    """Subscriptions of a sink that are not announced to other servers. index: of the account."""

    def __init__(self, index: SubscriptionIndex, sink: ServiceSink) -> None:
        self._index = index
        self._sink = sink
        self._subscriptions: list[SinkSubscription] = []

    @property
    def is_active(self) -> bool:
        """Whether there are any."""
        return bool(self._subscriptions)

    def begin(self, subjects: Iterable[bytes]) -> None:
        """Subscribes to more subjects."""
        for subject in subjects:
            subscription = SinkSubscription(self._sink, subject)
            subscription.keep_private()
            self._index.insert(subscription)
            self._subscriptions.append(subscription)

    def end(self) -> None:
        """Ends all of them."""
        for subscription in self._subscriptions:
            self._index.remove(subscription)
        self._subscriptions.clear()


class AckKeeper:
    """Takes the acks of a stream's consumers without announcing it to other servers.

    Args:
        index: of the account, account and domain: their names are in the longer subjects.
        take: gets subject, reply, header and payload of each.
    """

    def __init__(
        self, index: SubscriptionIndex, account: str, domain: str, stream: str, take: TakeAck
    ) -> None:
        self._index = index
        self._take = take
        place = f"{domain or '_'}.{short_hash(account)}."
        self._subjects = [f"$JS.ACK.{part}{stream}.>".encode() for part in ("", place)]
        self._subscriptions = PrivateSubscriptions(index, ServiceSink(self._on_ack))
        self.is_late = False

    @property
    def is_active(self) -> bool:
        """Whether it takes acks."""
        return self._subscriptions.is_active

    def begin(self, *, is_late: bool) -> None:
        """Takes acks from now on. is_late: all of them; else those that ask for a confirmation, and change
        nothing when they come twice, because the leader that hands over applies them as well."""
        self.is_late = is_late
        if not self.is_active:
            self._subscriptions.begin(self._subjects)

    def end(self) -> None:
        """Takes no more."""
        self._subscriptions.end()

    def _on_ack(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        if self.is_late and isinstance(origin, ClientSink) and self._index.match(subject).elsewhere:
            return  # the next leader has it already
        is_plain = not payload or payload.startswith((ACK, TERM))
        if self.is_late or (reply and is_plain):
            self._take(subject, reply, header, payload)


class LeavingConsumers:
    """The consumers of a stream on its leader, at the end of its leadership. take: gets acks that are kept.

    acks: keeps them.
    """

    def __init__(self, engine: JetStreamEngine, stream: str, take: TakeAck) -> None:
        self._engine = engine
        config = engine.config
        self.acks = AckKeeper(engine.index, config.account, config.domain, stream, take)

    def settle(self, replica: ReplicatedStream) -> None:
        """Applies the acks that have arrived, submits what that changed, and sends the confirmations of what
        is committed."""
        routing = self._engine.tick.routing
        if routing.is_active:
            return
        for consumer in list(replica.stream.consumers.values()):
            faults.contain(self._settle, _not_settled, consumer)

    def _settle(self, consumer: ConsumerReplica) -> None:
        consumer.apply(self._engine.clock())
        consumer.write()
        if consumer.effects.waiting:
            with self._engine.tick.routing:
                consumer.effects.release()


def sending_late(replica: ReplicatedStream) -> frozenset[str]:
    """Names of the consumers that send only what is committed."""
    consumers = replica.stream.consumers.values()
    return frozenset(one.name for one in consumers if one.config.ack_policy is AckPolicy.NONE)


def _not_settled(error: Exception, consumer: ConsumerReplica) -> None:
    if not isinstance(error, StoreError):
        faults.note(f"acks of consumer {consumer.name}", error)
