"""Offsets of a streaming query that reads by a durable consumer, as stored in Spark's checkpoint.

    {"v": 1, "streams": {"JOBS": {"next": 121, "created": "2026-…Z"}},
     "durable": {"name": "spark", "created": "2026-…Z", "claims": "101-120", "seen": "61-120", "floor": 60,
                 "ack": "$JS.ACK.JOBS.spark", "delivered": 120}}

A claim is a message that the consumer delivered to the query and that is not acked. `claims` are those of the
micro-batch that ends here, so the offset alone says which messages the micro-batch has, and what to ack once
it is committed: a restarted driver needs nothing that only the old one knew.

Invariants: no sequence is in the claims of two micro-batches of one query. `seen` has every sequence above
`floor` that the query ever claimed; up to `floor`, an ack floor of the consumer, each message was acked. What
the consumer delivers again of either is acked and not read.

Rejected: only the consumer's position (a server that crashed may deliver again what was acked); a set of all
sequences (it grows without end where several queries share the consumer).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ConfigError
from penstock.spark.offsets import Offset, StreamPosition, decode_offset, encode_offset
from penstock.spark.sequence_sets import EMPTY, SequenceSet


@dataclass(frozen=True)
class DurableOffset:
    """The end of a micro-batch.

    stream_created, consumer_created: RFC3339. ack_prefix: ack subjects up to the consumer's name. delivered:
    a consumer sequence of a claim, which acks name.
    """

    stream: str
    stream_created: str
    consumer: str
    consumer_created: str
    ack_prefix: str
    claims: SequenceSet = EMPTY
    seen: SequenceSet = EMPTY
    floor: int = 0
    delivered: int = 0

    def fresh(self, delivered: SequenceSet) -> SequenceSet:
        """Those of the sequences just delivered that the query has not read."""
        return (delivered - self.seen).above(self.floor)

    def following(self, claims: SequenceSet, *, floor: int, ack_prefix: str, delivered: int) -> DurableOffset:
        """The offset after a micro-batch of `claims`. floor: the consumer's ack floor before they came."""
        highest = max(floor, self.floor)
        return replace(
            self,
            claims=claims,
            seen=(self.seen | claims).above(highest),
            floor=highest,
            ack_prefix=ack_prefix,
            delivered=delivered,
        )

    def encode(self) -> dict[str, Any]:
        """JSON objects for the checkpoint."""
        ahead = max(self.seen.end, self.floor + 1)
        return {
            **encode_offset({self.stream: StreamPosition(ahead, self.stream_created)}),
            "durable": {
                "name": self.consumer,
                "created": self.consumer_created,
                "claims": str(self.claims),
                "seen": str(self.seen),
                "floor": self.floor,
                "ack": self.ack_prefix,
                "delivered": self.delivered,
            },
        }

    @classmethod
    def decode(cls, raw: Mapping[str, Any], stream: str, consumer: str) -> DurableOffset:
        """Parse an offset from the checkpoint.

        Raises ConfigError if it is malformed, of another stream or consumer, or of a query without one.
        """
        positions = decode_offset(raw)
        known = raw.get("durable")
        if not isinstance(known, Mapping):
            raise ConfigError(
                "the checkpoint is of a query without option 'durable': leave the option out, or use a new "
                "checkpoint"
            )
        if known.get("name") != consumer or list(positions) != [stream]:
            raise ConfigError(
                f"the checkpoint reads stream {', '.join(positions)} by consumer {known.get('name')!r}, the "
                f"options name stream {stream!r} and consumer {consumer!r}: name those, or use a new "
                "checkpoint"
            )
        try:
            return cls(
                stream=stream,
                stream_created=positions[stream].created,
                consumer=consumer,
                consumer_created=str(known["created"]),
                ack_prefix=str(known["ack"]),
                claims=SequenceSet.parse(known["claims"]),
                seen=SequenceSet.parse(known["seen"]),
                floor=int(known["floor"]),
                delivered=int(known["delivered"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(
                f"the checkpoint's offset can't be read: {raw!r}; use a new checkpoint"
            ) from None


def decode_plain_offset(raw: Mapping[str, Any]) -> Offset:
    """An offset of a query without durable consumer. Raises ConfigError for any other."""
    if "durable" in raw:
        raise ConfigError(
            f"the checkpoint reads by durable consumer {raw['durable'].get('name')!r}: name it in option "
            "'durable', or use a new checkpoint"
        )
    return decode_offset(raw)
