"""What a consumer may deliver while its stream can not be written: nothing that a crash could take back.

Rejected: no deliveries at all while a disk is full (to consume is what frees it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer.consumer_config import filters_of, key_token

if TYPE_CHECKING:
    from penstock.jetstream.consumer.consumer_replica import ConsumerReplica


def share_of(consumer: ConsumerReplica, share: int) -> int:
    """Of `share` messages those that certainly are not among the unwritten ones: new ones come in order."""
    stream, pump = consumer.stream, consumer.pump
    if stream.write_failure is None or stream.durable_seq >= stream.log.last_seq:
        return share
    if key_token(consumer.config) or pump.skipping:
        return 0
    filters = [one.encode() for one in filters_of(consumer.config)] or [b""]
    unwritten = sum(stream.log.count_from(stream.durable_seq + 1, one) for one in filters)
    return min(share, max(pump.num_pending - unwritten, 0))
