"""The subscriptions for the consumers of one stream: acks and flow control responses.

A stream has one subscription of each kind, made with its first consumer and routed by the consumer's token in
the subject. A subscription per consumer would invalidate the router's caches whenever an ephemeral consumer
comes or goes.

It also tracks which consumers wait for new messages. Those with filters are notified by the log when a
matching message arrives, so a publish that no consumer waits for costs nothing, however many wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer.consumer_config import filters_of
from penstock.jetstream.consumer.dead_letters import REPLY_PREFIX
from penstock.jetstream.subject_claims import ALL, SubjectClaims
from penstock.kernels.consumer.endpoints import AckSink
from penstock.kernels.consumer.pump import Pump, drain_ready, ready
from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ServiceSink
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol.api import AckPolicy, RetentionPolicy
from penstock.protocol.ids import short_hash
from penstock.protocol.numbers import natural

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica


class ConsumerSubscriptions:
    """The subscriptions for one stream's consumers. Consumers add and remove themselves.

    index: of the account. account, domain: their names are part of the longer ack subjects.
    """

    def __init__(self, index: SubscriptionIndex, account: str, domain: str, stream_name: str) -> None:
        self._index = index
        self.claims = SubjectClaims()  # the filters of a work queue's consumers
        self._consumers: dict[str, ConsumerReplica] = {}
        self._waiting: dict[Pump, ConsumerReplica] = {}
        self._notified: list[Pump] = []  # those with filters that were notified
        self._others: list[Pump] | None = None  # waiting ones without filters; computed on demand
        self._acks = AckSink()
        flow = ServiceSink(self._on_flow_reply)
        dead_letters = ServiceSink(self._on_dead_letter_answer)
        place = f"{domain or '_'}.{short_hash(account)}."
        sinks: tuple[tuple[Sink, str], ...] = (
            (self._acks, "$JS.ACK."),
            (self._acks, "$JS.ACK." + place),
            (flow, "$JS.FC."),
            (dead_letters, REPLY_PREFIX),
        )
        self._subscriptions = [
            SinkSubscription(sink, f"{prefix}{stream_name}.>".encode()) for sink, prefix in sinks
        ]

    def add(self, consumer: ConsumerReplica) -> None:
        """Routes the consumer's acks and flow control responses to it."""
        if not self._consumers:
            for subscription in self._subscriptions:
                self._index.insert(subscription)
        self._consumers[consumer.name] = consumer
        # Ack subjects of other consumers have no subscriber: a request there gets 503.
        if consumer.config.ack_policy not in (AckPolicy.FLOW_CONTROL, AckPolicy.NONE):
            self._acks.add(consumer.name.encode(), consumer.acks)
        self.claim(consumer)

    def claim(self, consumer: ConsumerReplica) -> None:
        """Claims a consumer's filters in a work queue, unless it reads for a mirror or source."""
        config = consumer.config
        of_work_queue = consumer.stream.config.retention is RetentionPolicy.WORKQUEUE
        if of_work_queue and not (config.direct or config.sourcing):
            self.claims.claim(consumer.name, filters_of(config) or [ALL])

    def remove(self, consumer: ConsumerReplica) -> None:
        """Unregisters the consumer."""
        self.wait(consumer, False)
        if self._consumers.get(consumer.name) is not consumer:
            return
        del self._consumers[consumer.name]
        self.claims.release(consumer.name)
        self._acks.remove(consumer.name.encode())
        if not self._consumers:
            for subscription in self._subscriptions:
                self._index.remove(subscription)

    def wait(self, consumer: ConsumerReplica, waits: bool) -> None:
        """Sets whether the consumer waits for new messages, with a receiver and nothing to deliver."""
        pump = consumer.pump
        if waits == (pump in self._waiting):
            return
        self._others = None
        pump.report_to(self._notified if waits else None)
        if waits:
            self._waiting[pump] = consumer
        else:
            del self._waiting[pump]

    def ready_consumers(self) -> list[ConsumerReplica]:
        """The waiting consumers for which the stream now has a message."""
        found = drain_ready(self._notified) if self._notified else []
        if self._others is None:
            self._others = [pump for pump in self._waiting if pump.cursor is None]
        if self._others:
            found.extend(self._others[i] for i in ready(self._others))
        return [self._waiting[pump] for pump in found if pump in self._waiting]

    def _on_flow_reply(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        tokens = subject.decode("utf-8", "replace").split(".")
        consumer = self._consumers.get(tokens[3]) if len(tokens) == 5 else None
        if consumer is not None:
            consumer.on_flow_reply(subject, header)

    def _on_dead_letter_answer(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        tokens = subject.decode("utf-8", "replace").split(".")
        consumer = self._consumers.get(tokens[3]) if len(tokens) == 5 else None
        number = natural(tokens[4]) if consumer is not None else None
        if consumer is not None and number is not None and origin is None:  # clients cannot set it
            consumer.dead_letters.on_answer(number, payload)
