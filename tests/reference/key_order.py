"""Key-shared delivery with dicts and lists."""

from __future__ import annotations

from dataclasses import dataclass, field


def key_of(token: int, subject: bytes) -> bytes:
    tokens = subject.split(b".")
    return tokens[token - 1] if token <= len(tokens) else b""


@dataclass
class KeyOrderModel:
    token: int
    in_flight: dict[int, bytes] = field(default_factory=dict)
    waiting: dict[bytes, list[int]] = field(default_factory=dict)
    ready: list[tuple[int, bytes]] = field(default_factory=list)

    def busy(self, subject: bytes) -> bool:
        key = key_of(self.token, subject)
        return key in self.in_flight.values() or any(one == key for _, one in self.ready)

    def delivered(self, subject: bytes, seq: int) -> None:
        self.in_flight[seq] = key_of(self.token, subject)

    def parked(self, subject: bytes, seq: int) -> None:
        key = key_of(self.token, subject)
        self.waiting.setdefault(key, []).append(seq)
        if not self.busy(subject):
            self.advance(key)

    def settled(self, seq: int) -> None:
        key = self.in_flight.pop(seq, None)
        if key is not None and key not in self.in_flight.values():
            self.advance(key)

    def advance(self, key: bytes) -> None:
        if self.waiting.get(key):
            self.ready.append((self.waiting[key].pop(0), key))

    def take(self) -> int:
        if not self.ready:
            return 0
        seq, key = self.ready.pop(0)
        self.in_flight[seq] = key
        return seq
