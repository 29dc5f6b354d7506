"""The advisories and metrics of one consumer. Their types and fields are those of the official server."""

from __future__ import annotations

from penstock.jetstream.consumer.consumer_effects import ConsumerEffects
from penstock.protocol.durations import format_time_or_zero


class ConsumerAdvisories:
    """Collects the events of `consumer` of `stream` in `effects`."""

    def __init__(self, effects: ConsumerEffects, stream: str, consumer: str) -> None:
        self._effects = effects
        self._asset = {"stream": stream, "consumer": consumer}
        self._name = f"{stream}.{consumer}"
        self._ack_metric = f"CONSUMER.ACK.{self._name}"

    def publish(self, event: str, kind: str, **fields: object) -> None:
        """Adds an advisory of type `kind` about `event`."""
        self._effects.advisory(f"CONSUMER.{event}.{self._name}", kind, self._asset | fields)

    def pause_changed(self, *, is_paused: bool, until_ns: int) -> None:
        """A pause began or ended."""
        until = format_time_or_zero(until_ns)
        self.publish("PAUSE", "consumer_pause", paused=is_paused, pause_until=until)

    def given_up(self, stream_seq: int, deliveries: int) -> None:
        """A message reached max_deliver."""
        self.publish("MAX_DELIVERIES", "max_deliver", stream_seq=stream_seq, deliveries=deliveries)

    def nacked(self, stream_seq: int, consumer_seq: int, deliveries: int) -> None:
        """A receiver asked for a message again (-NAK)."""
        self.publish(
            "MSG_NAKED", "nak", consumer_seq=consumer_seq, stream_seq=stream_seq, deliveries=deliveries
        )

    def terminated(self, stream_seq: int, consumer_seq: int, deliveries: int, reason: str) -> None:
        """A receiver refused a message for good (+TERM)."""
        fields: dict[str, object] = {"reason": reason} if reason else {}
        fields |= {"consumer_seq": consumer_seq, "stream_seq": stream_seq, "deliveries": deliveries}
        self.publish("MSG_TERMINATED", "terminated", **fields)

    @property
    def is_ack_metric_wanted(self) -> bool:
        """Whether the metric of sampled acks has a subscriber."""
        return self._effects.is_metric_wanted(self._ack_metric)

    def acked(self, stream_seq: int, consumer_seq: int, deliveries: int, ack_time_ns: int) -> None:
        """Adds the metric of a sampled ack. ack_time_ns: from the delivery to the ack."""
        fields: dict[str, object] = {
            **self._asset,
            "consumer_seq": consumer_seq,
            "stream_seq": stream_seq,
            "ack_time": ack_time_ns,
            "deliveries": deliveries,
        }
        self._effects.metric(self._ack_metric, "consumer_ack", fields)
