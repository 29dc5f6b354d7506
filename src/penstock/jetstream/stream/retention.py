"""Limits that apply without a publish: max_age and per-message TTLs.

Time is passed in as `now` (ns). Limits that apply at a publish (max_msgs, max_bytes, max_msgs_per_subject)
are enforced by the ingest kernel during the append.

A million messages can expire at the same time. Work is counted in the units of slices.py; run() stops at its
limit, and the stream is then due again at once, after others that are due.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.jetstream.stream.ttl import MessageTtls, is_marker
from penstock.kernels.log.stream_log import StoredRecord, StreamLog

# Messages that expire within this interval are removed together, so that a stream with thousands of publishes
# a second wakes the server at most a hundred times a second.
EXPIRY_GRAIN_NS = 10_000_000

# In the units of slices.py, measured with a million messages.
LOOK_WORK = 128  # a message that max_age does not remove
SWEEP_WORK = 256  # an entry that a sweep looks at
AGED_WORK = 192  # one that expires by max_age; up to twice as much when each has its own subject
REMOVAL_WORK = 1024  # one that is read before its removal
MARKER_WORK = 2048  # added by its delete marker
BYTES_A_UNIT = 8  # of messages that are read or checked
AGED = 32  # messages between two checks of the work
LOOKS_MAX = 256  # messages exempt from max_age to scan in search of one that is not


class Expiry:
    """Expiry of one log.

    leave_marker: called with the subject whose last message expired; None without markers.
    """

    def __init__(self, log: StreamLog) -> None:
        self.ttls = MessageTtls()
        self.leave_marker: Callable[[bytes], None] | None = None
        self._log = log
        self._oldest_seq = 0  # below it no message can expire by max_age
        self._peeked_seq = 0  # the same, as next_deadline() knows it

    def configure(self, leave_marker: Callable[[bytes], None] | None) -> None:
        """Sets what stores a delete marker for a subject whose last message expired; None: nothing."""
        self.leave_marker = leave_marker

    def run(self, max_age_ns: int, now: int, work: int = sys.maxsize) -> int:
        """Removes expired messages, up to `work` units; returns the work done."""
        left = work
        while left > 0 and (seq := self.ttls.take_due(now)):
            left -= self._remove(self._log.load(seq))
        if max_age_ns > 0:
            left = self._run_age(now - max_age_ns + 1, left)
        if left > 0:  # last: nothing depends on it
            left -= self.ttls.sweep(self._log, -(-left // SWEEP_WORK)) * SWEEP_WORK
        return work - left

    def _run_age(self, oldest_ts: int, left: int) -> int:
        """Removes messages that expired by max_age; returns the work left."""
        log = self._log
        while left > 0 and log.messages and log.first_ts < oldest_ts:
            if not self.ttls.has_exempt and self.leave_marker is None:
                before = log.bytes
                left -= log.enforce_age(oldest_ts, AGED) * AGED_WORK + (before - log.bytes) // BYTES_A_UNIT
                continue
            seq, looks, self._oldest_seq = self._oldest(self._oldest_seq)
            left -= looks * LOOK_WORK
            if not seq and looks == LOOKS_MAX:
                continue
            message = log.load(seq)
            if message is None or message.ts >= oldest_ts:
                break
            left -= self._remove(message)
        return left

    def next_deadline(self, max_age_ns: int) -> int | None:
        """When (ns) `run` is due; None when nothing can expire."""
        due = self.ttls.next_deadline()
        if max_age_ns > 0 and self._log.messages:
            first_ts = self._log.first_ts
            if self.ttls.has_exempt:
                # A place of its own: how far run() comes must not depend on questions in between.
                seq, looks, self._peeked_seq = self._oldest(max(self._peeked_seq, self._oldest_seq))
                message = self._log.load(seq)
                if message is not None:
                    first_ts = message.ts
                elif looks < LOOKS_MAX:
                    first_ts = 0  # else run() continues the search
            if first_ts:
                aged = first_ts + max_age_ns
                due = aged if due is None else min(due, aged)
        if due is None:
            return None
        return due + EXPIRY_GRAIN_NS - due % EXPIRY_GRAIN_NS

    def _oldest(self, from_seq: int) -> tuple[int, int, int]:
        """The first sequence at or after from_seq that max_age may remove, how many others were scanned, and
        where to continue. A sequence of 0: there is none, or none among LOOKS_MAX."""
        log, is_exempt = self._log, self.ttls.is_exempt
        seq = log.next_seq(max(from_seq, log.first_seq))
        looks = 0
        while is_exempt(seq) and looks < LOOKS_MAX:
            looks += 1
            from_seq = seq + 1
            seq = log.next_seq(seq + 1)
        return (0 if is_exempt(seq) else seq), looks, from_seq

    def _remove(self, message: StoredRecord | None) -> int:
        """Removes one message; returns the work done."""
        if message is None or not self._log.remove(message.seq):
            return LOOK_WORK  # already removed in another way
        work = REMOVAL_WORK + len(message.payload) // BYTES_A_UNIT
        if (
            self.leave_marker is not None
            and not is_marker(message.header)
            and not self._log.count_matching(message.subject)
        ):
            self.leave_marker(message.subject)
            work += MARKER_WORK
        return work
