"""A dedupe window, said plainly: a dict."""

from __future__ import annotations


class MessageIdsModel:
    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.stored: dict[bytes, tuple[int, int]] = {}  # id -> (seq, ts)

    def find(self, msg_id: bytes, now: int) -> int:
        seq, ts = self.stored.get(msg_id, (0, 0))
        return seq if seq and ts > now - self.window_ns else 0

    def add(self, msg_id: bytes, seq: int, ts: int) -> None:
        if self.window_ns > 0:
            self.stored.setdefault(msg_id, (seq, ts))

    def prune(self, now: int) -> None:
        self.stored = {
            msg_id: (seq, ts) for msg_id, (seq, ts) in self.stored.items() if ts > now - self.window_ns
        }
