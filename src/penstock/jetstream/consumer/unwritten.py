"""Limits deliveries while the stream cannot be written to messages that a crash cannot revoke.

Rejected: no deliveries while a disk is full (consuming is what frees it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer.consumer_config import filters_of, key_token

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica


def durable_quantum(consumer: ConsumerReplica, quantum: int) -> int:
    """How many of `quantum` messages are certainly durable: new messages come in order, so the unwritten ones
    are the last of the pending ones."""
    stream, pump = consumer.stream, consumer.pump
    durable_seq = stream.durability.durable_seq
    if stream.durability.failure is None or durable_seq >= stream.log.last_seq:
        return quantum
    if key_token(consumer.config) or pump.skipping:
        return 0
    filters = [one.encode() for one in filters_of(consumer.config)] or [b""]
    unwritten = sum(stream.log.count_from(durable_seq + 1, one) for one in filters)
    return min(quantum, max(pump.num_pending - unwritten, 0))
