"""Per-message TTLs (`Nats-TTL`, ADR-43) and delete markers.

A message with a TTL expires that long after it was stored; `never` exempts it from max_age. Where the last
message of a subject expires and the stream has subject_delete_marker_ttl, a marker replaces it: an empty
message with the reason, which expires after that time itself.

Invariant: every live message with a TTL is in the queue. Entries of messages removed otherwise are skipped
when they come up, and swept when they are the majority.
"""

from __future__ import annotations

import heapq

from penstock.errors import JetStreamApiError, MisuseError
from penstock.kernels.ingest.ingest import scan_headers
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.durations import NS_PER_S, format_duration, parse_duration

NEVER = -1
TTL_MAX_NS = 2**62  # larger than any clock, and its sum with one fits 64 bits
_SWEEP_MIN = 1024


def parse_ttl(value: bytes) -> int:
    """Parses a TTL: whole seconds, a Go duration of at least a second, or `never` (NEVER). Returns ns.

    Raises JetStreamApiError 10165.
    """
    text = value.decode("utf-8", "replace")
    if text.lower() == "never":
        return NEVER
    if value.isdigit() and len(value) <= 18:
        ttl_ns = int(value) * NS_PER_S
    else:
        try:
            ttl_ns = parse_duration(text)
        except MisuseError:
            raise codes.MESSAGE_TTL_INVALID.exception() from None
    if ttl_ns < NS_PER_S:
        raise codes.MESSAGE_TTL_INVALID.exception()
    return min(ttl_ns, TTL_MAX_NS)


def marker_header(marker_ttl_ns: int) -> bytes:
    """The header block of the marker that replaces an expired message."""
    return headers.build(
        [
            (headers.MARKER_REASON, "MaxAge"),
            (headers.TTL, format_duration(marker_ttl_ns)),
            (headers.ROLLUP, "sub"),
        ]
    )


def is_marker(header: bytes) -> bool:
    """Whether a message is a delete marker itself, which is not replaced by another one."""
    if not header:
        return False
    return bool(headers.value_of(header, headers.MARKER_REASON)) or (
        headers.value_of(header, headers.KV_OPERATION) == b"PURGE"
    )


class MessageTtls:
    """The expiry times of a stream's messages with a TTL."""

    def __init__(self) -> None:
        self.never: set[int] = set()  # sequences exempt from max_age
        self._queue: list[tuple[int, int]] = []  # (ns, sequence)

    def add(self, seq: int, ts: int, ttl_ns: int) -> None:
        """Adds a message stored at `ts` (ns) with a TTL of ttl_ns, or NEVER."""
        if ttl_ns == NEVER:
            self.never.add(seq)
        else:
            heapq.heappush(self._queue, (ts + ttl_ns, seq))

    def take_due(self, now: int) -> int:
        """Removes and returns the earliest sequence that expired; 0 without one."""
        return heapq.heappop(self._queue)[1] if self._queue and self._queue[0][0] <= now else 0

    def next_deadline(self) -> int | None:
        """When (ns) the next message expires, or None."""
        return self._queue[0][0] if self._queue else None

    def sweep(self, log: StreamLog) -> None:
        """Drops entries of removed messages when they are the majority."""
        if len(self._queue) > 2 * log.messages + _SWEEP_MIN:
            self._queue = [entry for entry in self._queue if log.next_seq(entry[1]) == entry[1]]
            heapq.heapify(self._queue)
        if len(self.never) > 2 * log.messages + _SWEEP_MIN:
            self.never = {seq for seq in self.never if log.next_seq(seq) == seq}

    def recover(self, log: StreamLog) -> None:
        """Finds the messages with a TTL in the log."""
        for seq, ts, value in scan_headers(log, headers.TTL.encode(), 0):
            try:
                self.add(seq, ts, parse_ttl(value))
            except JetStreamApiError:
                continue  # stored before the stream allowed TTLs, when the header had no effect
