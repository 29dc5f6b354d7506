"""Per-message TTLs (`Nats-TTL`, ADR-43) and delete markers.

A message with a TTL expires that long after it was stored; `never` exempts it from max_age. Where the last
message of a subject expires and the stream has subject_delete_marker_ttl, a marker replaces it: an empty
message with the reason, which expires after that time itself.

Invariant: every live message with a TTL is in a queue. Entries of messages removed otherwise are skipped when
they come up, and swept when they are the majority: a part of them each time, because a million entries take a
third of a second. What the sweep has yet to look at stays in use meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator

from penstock.errors import JetStreamApiError, MisuseError
from penstock.jetstream.stream.header_scan import scan_headers, work_of
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
    """The expiry times of a stream's messages with a TTL. is_used: there was one since the start."""

    def __init__(self) -> None:
        self.is_used = False
        self._never: set[int] = set()  # sequences exempt from max_age
        self._queue: list[tuple[int, int]] = []  # a heap of (ns, sequence)
        # What a sweep has yet to look at. Without its last entry, a heap is still one.
        self._unswept_never: set[int] = set()
        self._unswept: list[tuple[int, int]] = []

    def add(self, seq: int, ts: int, ttl_ns: int) -> None:
        """Adds a message stored at `ts` (ns) with a TTL of ttl_ns, or NEVER."""
        self.is_used = True
        if ttl_ns == NEVER:
            self._never.add(seq)
        else:
            heapq.heappush(self._queue, (ts + ttl_ns, seq))

    @property
    def has_exempt(self) -> bool:
        """Whether messages may be exempt from max_age."""
        return bool(self._never or self._unswept_never)

    def is_exempt(self, seq: int) -> bool:
        """Whether a message is exempt from max_age."""
        return seq in self._never or seq in self._unswept_never

    def take_due(self, now: int) -> int:
        """Removes and returns the earliest sequence that expired; 0 without one."""
        queue = self._earliest()
        return heapq.heappop(queue)[1] if queue and queue[0][0] <= now else 0

    def next_deadline(self) -> int | None:
        """When (ns) the next message expires, or None."""
        queue = self._earliest() if self._unswept else self._queue
        return queue[0][0] if queue else None

    def _earliest(self) -> list[tuple[int, int]]:
        """The queue with the earliest entry."""
        if self._unswept and not (self._queue and self._queue[0] < self._unswept[0]):
            return self._unswept
        return self._queue

    def dump(self) -> tuple[bool, list[int], list[tuple[int, int]], list[int], list[tuple[int, int]]]:
        """The state, for restore()."""
        unswept_never = sorted(self._unswept_never)
        return self.is_used, sorted(self._never), sorted(self._queue), unswept_never, sorted(self._unswept)

    def restore(
        self, dump: tuple[bool, list[int], list[tuple[int, int]], list[int], list[tuple[int, int]]]
    ) -> None:
        """Takes over the state of another replica."""
        self.is_used, never, self._queue, unswept_never, self._unswept = dump
        self._never, self._unswept_never = set(never), set(unswept_never)

    def sweep(self, log: StreamLog, most: int) -> int:
        """Drops entries of removed messages when they are the majority; looks at up to `most` entries, and
        returns at how many. The next call continues."""
        enough = 2 * log.messages + _SWEEP_MIN
        if not self._unswept and len(self._queue) > enough:
            self._unswept, self._queue = self._queue, []
        if not self._unswept_never and len(self._never) > enough:
            self._unswept_never, self._never = self._never, set()
        looks = 0
        while self._unswept and looks < most:
            looks += 1
            entry = self._unswept.pop()
            if log.next_seq(entry[1]) == entry[1]:
                heapq.heappush(self._queue, entry)
        while self._unswept_never and looks < most:
            looks += 1
            seq = self._unswept_never.pop()
            if log.next_seq(seq) == seq:
                self._never.add(seq)
        return looks

    def recover(self, log: StreamLog) -> Generator[int, None, None]:
        """Finds the messages with a TTL in the log; yields work."""
        for found in scan_headers(log, headers.TTL):
            for seq, ts, value in found:
                try:
                    self.add(seq, ts, parse_ttl(value))
                except JetStreamApiError:
                    continue  # stored before the stream allowed TTLs, when the header had no effect
            yield work_of(found)
