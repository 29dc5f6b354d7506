"""Applies acks, NAKs, progress, terms, and acks that request the next message.

The kernel applies plain acks; the others are applied here one by one, in their order among the plain ones.
Confirmations (of acks with a reply subject) wait in the effects until the journal is written.
"""

from __future__ import annotations

from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer.consumer_advisories import ConsumerAdvisories
from penstock.jetstream.consumer.consumer_delivery import ConsumerDelivery
from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.jetstream.consumer.dead_letters import TERMINATED, DeadLetter, DeadLetters
from penstock.kernels.consumer.ack_state import AckState
from penstock.kernels.consumer.endpoints import AckQueue
from penstock.protocol import headers
from penstock.protocol.acks import NEXT, AckKind, parse_body
from penstock.protocol.api import AckPolicy, ApiConsumerConfig
from penstock.protocol.numbers import natural


class AckHandler:
    """Applies the acks of one consumer.

    queue: collects them. state: changed by them. delivery: gets NAKs, progress, and requests for the next
    message. dead_letters: gets terminated messages. effects: gets confirmations.
    """

    def __init__(
        self,
        config: ApiConsumerConfig,
        queue: AckQueue,
        state: AckState,
        delivery: ConsumerDelivery,
        dead_letters: DeadLetters,
        advisories: ConsumerAdvisories,
        effects: ConsumerEffects,
    ) -> None:
        self._queue = queue
        self._state = state
        self._delivery = delivery
        self._dead_letters = dead_letters
        self._advisories = advisories
        self._effects = effects
        self._acked_by_flow = (0, 0)  # (stream, consumer) sequences of the last flow control response
        self.configure(config)

    def configure(self, config: ApiConsumerConfig) -> None:
        """Follows a change of the consumer's configuration."""
        self._policy = config.ack_policy
        # As on the official server: one ack for many messages has no ack time.
        self._percent = 0 if self._policy is AckPolicy.ALL else rules.sample_percent(config)

    def apply(self, now: int) -> tuple[bool, int]:
        """Applies all collected acks. Returns whether there were any, and by how many the pending count
        fell."""
        queue, state = self._queue, self._state
        # A metric needs a subscriber.
        sampled = self._percent if self._percent and self._advisories.is_ack_metric_wanted else 0
        special = queue.begin(sampled)
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
        settled += self._dead_letters.apply(now)
        if queue.samples:
            for stream_seq, consumer_seq, deliveries, delivered_at in queue.take_samples():
                self._advisories.acked(stream_seq, consumer_seq, deliveries, now - delivered_at)
        return is_used, settled

    def on_flow_reply(self, header: bytes) -> None:
        """Records a flow control response, whose header names the last sequences that the receiver has
        stored. A response without them acks nothing, and delivery continues."""
        stored, delivered = (
            natural(headers.value_of(header, name) or b"") if header else None
            for name in (headers.LAST_STREAM, headers.LAST_CONSUMER)
        )
        if stored and delivered:
            self._acked_by_flow = max(self._acked_by_flow, (stored, delivered))

    def _apply_one(
        self, stream_seq: int, consumer_seq: int, deliveries: int, body: bytes, reply: bytes, now: int
    ) -> int:
        """Applies one ack that is not plain. Returns by how many the pending count fell."""
        ack = parse_body(body)
        settled = 0
        confirmed = True
        if ack is None:
            # Not an ack. As on the official server, it gets a response all the same.
            confirmed = stream_seq > 0
        elif ack.kind is AckKind.ACK:
            settled = self._sampled(stream_seq, consumer_seq)
            # An ack of a message that was never delivered gets no response.
            confirmed = stream_seq <= self._state.delivered_stream
        elif ack.kind is AckKind.NEXT:
            settled = self._sampled(stream_seq, consumer_seq)
            self._delivery.request_messages(reply, body[len(NEXT) :], now)
            confirmed = False
        elif ack.kind is AckKind.NAK:
            if self._delivery.redelivery.nak(stream_seq, ack.delay_ns, now):
                self._advisories.nacked(stream_seq, consumer_seq, deliveries)
        elif ack.kind is AckKind.PROGRESS:
            self._delivery.redelivery.progress(stream_seq, now)
        else:
            settled = self._terminate(stream_seq, consumer_seq, deliveries, ack.reason)
        if reply and confirmed:
            self._effects.confirmation(reply)
        return settled

    def _sampled(self, stream_seq: int, consumer_seq: int) -> int:
        """Acks a message, and samples it for a metric. (Terminations make no metric.)"""
        if self._policy is not AckPolicy.NONE:
            self._queue.sample(self._state, stream_seq)
        return self._settle(stream_seq, consumer_seq)

    def _settle(self, stream_seq: int, consumer_seq: int) -> int:
        if self._policy is AckPolicy.NONE:
            return 0
        return self._state.acked(stream_seq, consumer_seq)

    def _terminate(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> int:
        dead_letters = self._dead_letters
        if dead_letters.is_due(stream_seq):
            return 0  # another receiver of the same message terminated it first
        if dead_letters.wanted and self._state.give_up(stream_seq):
            dead_letters.add(stream_seq, DeadLetter(deliveries, TERMINATED, reason, consumer_seq))
            return 0
        settled = self._settle(stream_seq, consumer_seq)
        self._advisories.terminated(stream_seq, consumer_seq, deliveries, reason)
        return settled
