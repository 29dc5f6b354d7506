"""Applies acks, NAKs, progress, terms, and acks that request the next message.

The kernel applies plain acks; the others are applied here one by one, in their order among the plain ones.
Confirmations (of acks with a reply subject) wait until the journal is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.dead_letters import TERMINATED, DeadLetter
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from penstock.protocol.acks import NEXT, AckKind, parse_body
from penstock.protocol.api import AckPolicy
from penstock.protocol.numbers import natural

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica


class AckHandler:
    """Applies the acks of one consumer."""

    def __init__(self, consumer: ConsumerReplica) -> None:
        self._consumer = consumer
        self._confirmations: list[bytes] = []
        self._acked_by_flow = (0, 0)  # (stream, consumer) sequences of the last flow control response

    def apply(self, now: int) -> bool:
        """Applies all collected acks. Returns whether there were any."""
        consumer = self._consumer
        queue, state = consumer.acks, consumer.state
        special = queue.begin(self._sample_percent())
        is_used = bool(special) or queue.count > 0
        settled = 0
        for place, stream_seq, consumer_seq, deliveries, body, reply in special:
            settled += queue.apply(state, place)
            settled += self._apply_one(stream_seq, consumer_seq, deliveries, body, reply, now)
        settled += queue.apply(state)
        acked, self._acked_by_flow = self._acked_by_flow, (0, 0)
        # as on the official server, one without a delivery since acks nothing
        if acked[1] > state.ack_floor_consumer:
            settled += state.acked(*acked)
        settled += consumer.dead_letters.apply(now)
        if settled:
            consumer.acked(now)
        if queue.samples:
            self._publish_samples(now)
        return is_used

    def on_flow_reply(self, header: bytes) -> None:
        """Records a flow control response, whose header names the last sequences that the receiver has
        stored. A response without them acks nothing, and delivery continues."""
        stored, delivered = (
            natural(headers.value_of(header, name) or b"") if header else None
            for name in (headers.LAST_STREAM, headers.LAST_CONSUMER)
        )
        if stored and delivered:
            self._acked_by_flow = max(self._acked_by_flow, (stored, delivered))

    @property
    def to_confirm(self) -> bool:
        """Whether confirmations wait for the journal."""
        return bool(self._confirmations)

    def confirm(self) -> None:
        """Publishes the confirmations."""
        if self._confirmations:
            confirmations, self._confirmations = self._confirmations, []
            for reply in confirmations:
                publish(self._consumer.engine.index, reply, b"", b"", b"")

    def _apply_one(
        self, stream_seq: int, consumer_seq: int, deliveries: int, body: bytes, reply: bytes, now: int
    ) -> int:
        """Applies one ack that is not plain. Returns by how many the pending count fell."""
        consumer = self._consumer
        ack = parse_body(body)
        settled = 0
        confirmed = True
        if ack is None:
            # Not an ack. As on the official server, it gets a response all the same.
            confirmed = stream_seq > 0
        elif ack.kind is AckKind.ACK:
            settled = self._sampled(stream_seq, consumer_seq)
            # An ack of a message that was never delivered gets no response.
            confirmed = stream_seq <= consumer.state.delivered_stream
        elif ack.kind is AckKind.NEXT:
            settled = self._sampled(stream_seq, consumer_seq)
            consumer.request_messages(reply, body[len(NEXT) :], now)
            confirmed = False
        elif ack.kind is AckKind.NAK:
            if consumer.redelivery.nak(stream_seq, ack.delay_ns, now):
                self._advise("MSG_NAKED", "nak", stream_seq, consumer_seq, deliveries)
        elif ack.kind is AckKind.PROGRESS:
            consumer.redelivery.progress(stream_seq, now)
        else:
            settled = self._terminate(stream_seq, consumer_seq, deliveries, ack.reason)
        if reply and confirmed:
            self._confirmations.append(reply)
        return settled

    def _sampled(self, stream_seq: int, consumer_seq: int) -> int:
        """Acks a message, and samples it for a metric. (Terminations make no metric.)"""
        if self._consumer.config.ack_policy is not AckPolicy.NONE:
            self._consumer.acks.sample(self._consumer.state, stream_seq)
        return self._settle(stream_seq, consumer_seq)

    def _settle(self, stream_seq: int, consumer_seq: int) -> int:
        if self._consumer.config.ack_policy is AckPolicy.NONE:
            return 0
        return self._consumer.state.acked(stream_seq, consumer_seq)

    def _terminate(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> int:
        consumer = self._consumer
        if consumer.dead_letters.is_due(stream_seq):
            return 0  # another receiver of the same message terminated it first
        if consumer.dead_letters.wanted and consumer.state.give_up(stream_seq):
            consumer.dead_letters.add(stream_seq, DeadLetter(deliveries, TERMINATED, reason, consumer_seq))
            return 0
        settled = self._settle(stream_seq, consumer_seq)
        consumer.advise_terminated(stream_seq, consumer_seq, deliveries, reason)
        return settled

    def _sample_percent(self) -> int:
        """How many of 100 acks make a metric; 0 without a subscriber."""
        consumer = self._consumer
        if consumer.config.ack_policy is AckPolicy.ALL:
            return 0  # as on the official server: one ack for many messages has no ack time
        percent = rules.sample_percent(consumer.config)
        metrics = consumer.engine.advisories
        return percent if percent and metrics.metric_wanted(consumer.ack_metric) else 0

    def _publish_samples(self, now: int) -> None:
        consumer = self._consumer
        for stream_seq, consumer_seq, deliveries, delivered_at in consumer.acks.take_samples():
            consumer.engine.advisories.metric(
                consumer.ack_metric,
                "consumer_ack",
                {
                    "stream": consumer.stream.name,
                    "consumer": consumer.name,
                    "consumer_seq": consumer_seq,
                    "stream_seq": stream_seq,
                    "ack_time": now - delivered_at,
                    "deliveries": deliveries,
                },
            )

    def _advise(
        self, event: str, kind: str, stream_seq: int, consumer_seq: int, deliveries: int, **more: str
    ) -> None:
        self._consumer.advise(
            event, kind, consumer_seq=consumer_seq, stream_seq=stream_seq, deliveries=deliveries, **more
        )
