"""Limits that act without a publish: messages older than max_age leave the stream.

Time comes in as `now` (ns). Limits that act at a publish (max_msgs, max_bytes, max_msgs_per_subject) are
enforced by the ingest kernel while it appends.
"""

from __future__ import annotations

from penstock.kernels.streamlog import StreamLog

# Messages that expire within this time of each other leave together, so that a stream which takes
# thousands a second wakes the server a hundred times a second and no more.
EXPIRY_GRAIN_NS = 10_000_000


def expire(log: StreamLog, max_age_ns: int, now: int) -> int:
    """Removes what is older than max_age; returns how many messages went."""
    if max_age_ns <= 0 or not log.messages:
        return 0
    return log.enforce_age(now - max_age_ns + 1)


def expiry_deadline(log: StreamLog, max_age_ns: int) -> int | None:
    """When (ns) `expire` has something to do next; None when nothing can expire."""
    if max_age_ns <= 0 or not log.messages:
        return None
    due = log.first_ts + max_age_ns
    return due + EXPIRY_GRAIN_NS - due % EXPIRY_GRAIN_NS
