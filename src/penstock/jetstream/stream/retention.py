"""Limits that act without a publish: messages leave a stream by its max_age or by a TTL of their own.

Time comes in as `now` (ns). Limits that act at a publish (max_msgs, max_bytes, max_msgs_per_subject) are
enforced by the ingest kernel while it appends.

A million messages can expire at the same time. Work is counted, in the units of slices.py, and run() stops
when it has done as much as it was allowed; the stream is then due again at once, behind what else is due.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from penstock.jetstream.stream.ttl import MessageTtls, is_marker
from penstock.kernels.log.stream_log import StoredRecord, StreamLog

# Messages that expire within this time of each other leave together, so that a stream which takes
# thousands a second wakes the server a hundred times a second and no more.
EXPIRY_GRAIN_NS = 10_000_000

# In the units of slices.py, measured with a million messages.
LOOK_WORK = 128  # a message that max_age does not touch
AGED_WORK = 192  # one that leaves by max_age; up to twice as much where each has a subject of its own
REMOVAL_WORK = 1024  # one that is looked at before it leaves
MARKER_WORK = 2048  # what its marker adds
BYTES_A_UNIT = 8  # of messages that are read or checked for it
AGED = 32  # messages between two looks at the work
LOOKS_MAX = 256  # at messages that max_age does not touch, to find one that it may


class Expiry:
    """What expires in one log, and when.

    leave_marker: called with the subject whose last message expired; None when there are no markers.
    """

    def __init__(self, log: StreamLog) -> None:
        self.ttls = MessageTtls()
        self.leave_marker: Callable[[bytes], None] | None = None
        self._log = log
        self._oldest_seq = 0  # below it nothing is left that max_age could touch

    def run(self, max_age_ns: int, now: int, work: int = sys.maxsize) -> int:
        """Removes what is due, until it has done this much work; returns how much it did."""
        left = work
        while left > 0 and (seq := self.ttls.take_due(now)):
            left -= self._remove(self._log.load(seq))
        self.ttls.sweep(self._log)
        if max_age_ns > 0:
            left = self._run_age(now - max_age_ns + 1, left)
        return work - left

    def _run_age(self, oldest_ts: int, left: int) -> int:
        """The same by max_age alone; returns the work that is left."""
        log = self._log
        while left > 0 and log.messages and log.first_ts < oldest_ts:
            if not self.ttls.never and self.leave_marker is None:
                before = log.bytes
                left -= log.enforce_age(oldest_ts, AGED) * AGED_WORK + (before - log.bytes) // BYTES_A_UNIT
                continue
            seq, looks = self._oldest()
            left -= looks * LOOK_WORK
            if not seq and looks == LOOKS_MAX:
                continue
            message = log.load(seq)
            if message is None or message.ts >= oldest_ts:
                break
            left -= self._remove(message)
        return left

    def next_deadline(self, max_age_ns: int) -> int | None:
        """When (ns) `run` has something to do next; None when nothing can expire."""
        due = self.ttls.next_deadline()
        if max_age_ns > 0 and self._log.messages:
            first_ts = self._log.first_ts
            if self.ttls.never:
                seq, looks = self._oldest()
                message = self._log.load(seq)
                if message is not None:
                    first_ts = message.ts
                elif looks < LOOKS_MAX:
                    first_ts = 0  # (else run() looks on)
            if first_ts:
                aged = first_ts + max_age_ns
                due = aged if due is None else min(due, aged)
        if due is None:
            return None
        return due + EXPIRY_GRAIN_NS - due % EXPIRY_GRAIN_NS

    def _oldest(self) -> tuple[int, int]:
        """The first sequence that max_age may remove, and how many others it looked at. 0: there is none, or
        none among LOOKS_MAX; the next call goes on behind those."""
        log, never = self._log, self.ttls.never
        seq = log.next_seq(max(self._oldest_seq, log.first_seq))
        looks = 0
        while seq in never and looks < LOOKS_MAX:
            looks += 1
            self._oldest_seq = seq + 1
            seq = log.next_seq(seq + 1)
        return (0, looks) if seq in never else (seq, looks)

    def _remove(self, message: StoredRecord | None) -> int:
        """Returns the work it did."""
        if message is None or not self._log.remove(message.seq):
            return LOOK_WORK  # it left before, by another way
        work = REMOVAL_WORK + len(message.payload) // BYTES_A_UNIT
        if (
            self.leave_marker is not None
            and not is_marker(message.header)
            and not self._log.count_matching(message.subject)
        ):
            self.leave_marker(message.subject)
            work += MARKER_WORK
        return work
