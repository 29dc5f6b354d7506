"""Routing between servers as a few lists: who gets a message, and what a server announces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


def matches(pattern: bytes, subject: bytes) -> bool:
    wanted, tokens = pattern.split(b"."), subject.split(b".")
    for i, token in enumerate(wanted):
        if i >= len(tokens):
            return False
        if token == b">":
            return True
        if token not in (b"*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


@dataclass
class Interest:
    """What a server tells its peers, as it changes."""

    counts: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)

    def change(self, subject: bytes, queue: bytes, delta: int) -> bytes:
        """The line for a subscription that came or went; b"" when there is none."""
        key = (subject, queue)
        before = self.counts[key]
        self.counts[key] += delta
        now = self.counts[key]
        words = b"A " + subject + (b" " + queue if queue else b"")
        if not now:
            return b"RS- " + words + b"\r\n"
        if queue:
            return b"RS+ " + words + b" %d\r\n" % now
        return b"RS+ " + words + b"\r\n" if not before else b""


@dataclass
class Peer:
    """Another server's interest: {(subject, queue): weight}."""

    subs: dict[tuple[bytes, bytes], int] = field(default_factory=dict)

    def groups(self, subject: bytes) -> dict[bytes, int]:
        """The weights of its queue groups that want the message."""
        found: Counter[bytes] = Counter()
        for (pattern, queue), weight in self.subs.items():
            if queue and matches(pattern, subject):
                found[queue] += weight
        return dict(found)

    def wants(self, subject: bytes) -> bool:
        return any(not queue and matches(pattern, subject) for pattern, queue in self.subs)
