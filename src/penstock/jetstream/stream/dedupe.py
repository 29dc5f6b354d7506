"""The dedupe window: which `Nats-Msg-Id` values a stream stored lately, and under which sequence.

Invariants: the queue is ordered by time and holds exactly the ids of the table; an id older than the window
is never found, whether or not it was dropped already. What is recovered from the log is what a run without
the restart would hold, but for messages which were removed meanwhile.
"""

from __future__ import annotations

from collections import deque

from penstock.kernels.ingest import scan_headers
from penstock.kernels.streamlog import StreamLog
from penstock.protocol import headers


class DedupeWindow:
    """window_ns: how long an id is remembered; 0 remembers none."""

    __slots__ = ("_queue", "_seqs", "last_id", "window_ns")

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.last_id = b""  # of the last message stored; b"" when it had none
        self._seqs: dict[bytes, int] = {}
        self._queue: deque[tuple[int, bytes]] = deque()  # (ts, id), oldest first

    def __len__(self) -> int:
        return len(self._seqs)

    def find(self, msg_id: bytes, now: int) -> int:
        """The sequence stored under the id within the window before `now` (ns), or 0."""
        self.prune(now)
        return self._seqs.get(msg_id, 0)

    def add(self, msg_id: bytes, seq: int, ts: int) -> None:
        """Remembers that `seq` was stored under the id at `ts` (ns), no earlier than the one before."""
        if self.window_ns <= 0:
            return
        self._seqs[msg_id] = seq
        self._queue.append((ts, msg_id))

    def prune(self, now: int) -> None:
        """Forgets what is older than the window."""
        queue = self._queue
        cutoff = now - self.window_ns
        while queue and queue[0][0] <= cutoff:
            del self._seqs[queue.popleft()[1]]

    def resize(self, window_ns: int, now: int) -> None:
        """Another window from now on; what a shorter one excludes is forgotten."""
        self.window_ns = window_ns
        self.prune(now)

    def next_deadline(self) -> int | None:
        """When (ns) the oldest id may be forgotten; None when there is none."""
        return self._queue[0][0] + self.window_ns if self._queue else None

    def recover(self, log: StreamLog, now: int) -> None:
        """Fills the window from the messages which the log still has."""
        last = log.load(log.last_seq) if log.messages else None
        self.last_id = headers.value_of(last.header, headers.MSG_ID) or b"" if last is not None else b""
        if self.window_ns <= 0 or not log.messages or log.last_ts <= now - self.window_ns:
            return
        first = log.seq_at_time(now - self.window_ns + 1)
        for seq, ts, msg_id in scan_headers(log, headers.MSG_ID.encode(), first):
            if msg_id and msg_id not in self._seqs:
                self.add(msg_id, seq, ts)
