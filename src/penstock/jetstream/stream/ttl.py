"""Messages with a time to live of their own (`Nats-TTL`, ADR-43), and the markers left in their place.

A message with a TTL leaves the stream that long after it was stored; `never` exempts it from max_age. Where
the last message of a subject goes by age or TTL and the stream has subject_delete_marker_ttl, a marker takes
its place: an empty message that says why and leaves after that time itself.

Invariant: every live message with a TTL is in the queue; entries of messages that left otherwise are skipped
when they come up, and swept when they are the larger part.
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
TTL_MAX_NS = 2**62  # ends beyond any clock, and added to one still fits 64 bits
_SWEEP_MIN = 1024


def parse_ttl(value: bytes) -> int:
    """A TTL in ns from whole seconds, a Go duration of at least a second, or `never` (NEVER).

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
    """The header block of the marker in place of an expired message."""
    return headers.build(
        [
            (headers.MARKER_REASON, "MaxAge"),
            (headers.TTL, format_duration(marker_ttl_ns)),
            (headers.ROLLUP, "sub"),
        ]
    )


def is_marker(header: bytes) -> bool:
    """Does the message itself stand for the absence of others? Then none is put in its place."""
    if not header:
        return False
    return bool(headers.value_of(header, headers.MARKER_REASON)) or (
        headers.value_of(header, headers.KV_OPERATION) == b"PURGE"
    )


class MessageTtls:
    """When which message of a stream expires by its own TTL."""

    def __init__(self) -> None:
        self.never: set[int] = set()  # sequences that max_age does not touch
        self._queue: list[tuple[int, int]] = []  # (ns, sequence)

    def add(self, seq: int, ts: int, ttl_ns: int) -> None:
        """The message stored at `ts` (ns) lives for ttl_ns, or for ever (NEVER)."""
        if ttl_ns == NEVER:
            self.never.add(seq)
        else:
            heapq.heappush(self._queue, (ts + ttl_ns, seq))

    def take_due(self, now: int) -> int:
        """The sequence whose time came first; 0 when none has come."""
        return heapq.heappop(self._queue)[1] if self._queue and self._queue[0][0] <= now else 0

    def next_deadline(self) -> int | None:
        """When (ns) the next message expires."""
        return self._queue[0][0] if self._queue else None

    def sweep(self, log: StreamLog) -> None:
        """Forgets messages that are gone, when they are the larger part."""
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
                continue  # stored before the stream allowed TTLs, when the header meant nothing
