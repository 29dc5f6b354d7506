"""Limits that act without a publish: messages leave a stream by its max_age or by a TTL of their own.

Time comes in as `now` (ns). Limits that act at a publish (max_msgs, max_bytes, max_msgs_per_subject) are
enforced by the ingest kernel while it appends.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.jetstream.stream.ttl import MessageTtls, is_marker
from penstock.kernels.streamlog import StreamLog

# Messages that expire within this time of each other leave together, so that a stream which takes
# thousands a second wakes the server a hundred times a second and no more.
EXPIRY_GRAIN_NS = 10_000_000


class Expiry:
    """What expires in one log, and when.

    leave_marker: called with the subject whose last message expired; None when there are no markers.
    """

    def __init__(self, log: StreamLog) -> None:
        self.ttls = MessageTtls()
        self.leave_marker: Callable[[bytes], None] | None = None
        self._log = log
        self._oldest_seq = 0  # below it nothing is left that max_age could touch

    def run(self, max_age_ns: int, now: int) -> int:
        """Removes what is due; returns how many messages went."""
        gone = 0
        for seq in self.ttls.take_due(now):
            gone += self._remove(seq)
        self.ttls.sweep(self._log)
        if max_age_ns <= 0 or not self._log.messages:
            return gone
        oldest_ts = now - max_age_ns + 1
        if not self.ttls.never and self.leave_marker is None:
            return gone + self._log.enforce_age(oldest_ts)
        while (message := self._log.load(self._oldest())) is not None and message.ts < oldest_ts:
            gone += self._remove(message.seq)
        return gone

    def next_deadline(self, max_age_ns: int) -> int | None:
        """When (ns) `run` has something to do next; None when nothing can expire."""
        due = self.ttls.next_deadline()
        if max_age_ns > 0 and self._log.messages:
            first_ts = self._log.first_ts
            if self.ttls.never:
                message = self._log.load(self._oldest())
                first_ts = message.ts if message is not None else 0
            if first_ts:
                aged = first_ts + max_age_ns
                due = aged if due is None else min(due, aged)
        if due is None:
            return None
        return due + EXPIRY_GRAIN_NS - due % EXPIRY_GRAIN_NS

    def _oldest(self) -> int:
        """The first sequence that max_age may remove; 0 when there is none."""
        seq = self._log.next_seq(max(self._oldest_seq, self._log.first_seq))
        while seq in self.ttls.never:
            seq = self._log.next_seq(seq + 1)
        if seq:
            self._oldest_seq = seq
        return seq

    def _remove(self, seq: int) -> int:
        message = self._log.load(seq)
        if message is None or not self._log.remove(seq):
            return 0  # it left before, by another way
        if (
            self.leave_marker is not None
            and not is_marker(message.header)
            and not self._log.count_matching(message.subject)
        ):
            self.leave_marker(message.subject)
        return 1
