"""The start position of a consumer: from its deliver policy to a stream sequence."""

from __future__ import annotations

from typing import NamedTuple

from penstock.jetstream.consumer.consumer_config import filters_of, start_ns
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.api import ApiConsumerConfig, DeliverPolicy


class StartPosition(NamedTuple):
    """seq: the first stream sequence to look at. resume_seq: see ConsumerMeta."""

    seq: int
    resume_seq: int = 0


def start_of(config: ApiConsumerConfig, log: StreamLog, *, one_per_subject: bool) -> StartPosition:
    """The start position of a new consumer with this configuration.

    one_per_subject: the stream retains one message per subject, so "last per subject" selects everything.
    """
    policy = config.deliver_policy
    first, following = max(log.first_seq, 1), log.last_seq + 1
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        # Beyond the end is allowed: the consumer waits there.
        return StartPosition(max(config.opt_start_seq, first))
    if policy is DeliverPolicy.BY_START_TIME:
        return StartPosition(min(max(log.seq_at_time(start_ns(config)), first), following))
    if policy is DeliverPolicy.NEW:
        return StartPosition(following)
    if policy is DeliverPolicy.LAST:
        filters = filters_of(config)
        last = max((log.last_seq_of(f.encode()) for f in filters), default=0) if filters else log.last_seq
        return StartPosition(min(max(last, first), following))
    if policy is DeliverPolicy.LAST_PER_SUBJECT and not one_per_subject:
        seqs = last_per_subject(config, log, following - 1)
        return StartPosition(seqs[0] if seqs else following, following - 1)
    return StartPosition(first)


def last_per_subject(config: ApiConsumerConfig, log: StreamLog, upto_seq: int) -> list[int]:
    """The last sequence of each matching subject at or below upto_seq, ascending."""
    if upto_seq == 0:
        return []
    seqs: set[int] = set()
    for one in filters_of(config):
        seqs.update(log.last_seqs(one.encode(), upto_seq))
    return sorted(seqs)
