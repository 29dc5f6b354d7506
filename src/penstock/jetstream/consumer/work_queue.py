"""Rules for consumers of a work-queue stream: each message is for one of them, and is removed when acked.

So they ack explicitly, start at the first message, and share no subject. Direct consumers, which read for a
mirror or source, are exempt: a message is then removed after they have it as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumer.consumer_config import filters_of, refuse
from penstock.jetstream.subject_claims import SubjectClaims, bounded
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    ApiStreamConfig,
    DeliverPolicy,
    RetentionPolicy,
)

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

_ACK_POLICIES = (AckPolicy.EXPLICIT, AckPolicy.FLOW_CONTROL)


def check(stream: StreamReplica, config: ApiConsumerConfig, name: str) -> None:
    """Checks a new consumer, or an update of consumer `name`, against the stream's other consumers.

    Raises JetStreamApiError: 10098 for the ack policy, 10101 for the deliver policy, 10099 for a second
    consumer without filters, 10100 for overlapping filters.
    """
    subscriptions = stream.consumer_subscriptions
    claims = subscriptions.claims if subscriptions is not None else None
    check_queue(stream.config, config, name, claims, is_new=name not in stream.consumers)


def check_queue(
    stream: ApiStreamConfig,
    config: ApiConsumerConfig,
    name: str,
    claims: SubjectClaims | None,
    *,
    is_new: bool,
) -> None:
    """The same for consumer `name` of a stream whose consumers claim `claims`; None: it has no others."""
    if stream.retention is not RetentionPolicy.WORKQUEUE or config.direct or config.sourcing:
        return
    if is_new:
        if config.ack_policy not in _ACK_POLICIES:
            raise codes.CONSUMER_WQ_REQUIRES_EXPLICIT_ACK.exception()
        if config.deliver_policy is not DeliverPolicy.ALL:
            raise codes.CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL.exception()
    if claims is None or not claims.has_others(name):
        return
    filters = filters_of(config)
    if not filters:
        raise codes.CONSUMER_WQ_MULTIPLE_UNFILTERED.exception()
    with bounded(refuse):
        if claims.collide(name, filters):
            raise codes.CONSUMER_WQ_CONSUMER_NOT_UNIQUE.exception()
