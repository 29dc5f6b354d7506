"""The messages of a stream, the plain way: a dict, and a loop for every question."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tests.reference.records import counted


@dataclass(frozen=True)
class Message:
    seq: int
    ts: int
    subject: bytes
    header: bytes
    payload: bytes


@lru_cache(maxsize=1 << 16)
def matches(filter: bytes, subject: bytes) -> bool:
    """Does a filter match a literal subject? An empty filter matches all."""
    if filter == b"":
        return True
    wanted, found = filter.split(b"."), subject.split(b".")
    for i, token in enumerate(wanted):
        if token == b">" and i == len(wanted) - 1:
            return len(found) > i
        if i >= len(found) or token not in (b"*", found[i]):
            return False
    return len(wanted) == len(found)


@dataclass
class LogModel:
    live: dict[int, Message] = field(default_factory=dict)
    last_seq: int = 0
    last_ts: int = 0
    storage: str = "file"

    @property
    def first_seq(self) -> int:
        return min(self.live, default=self.last_seq + 1)

    @property
    def first_ts(self) -> int:
        return self.live[self.first_seq].ts if self.live else 0

    @property
    def live_bytes(self) -> int:
        return sum(
            counted(self.storage, message.subject, message.header, message.payload)
            for message in self.live.values()
        )

    def append(self, subject: bytes, header: bytes, payload: bytes, ts: int) -> int:
        self.last_seq += 1
        self.last_ts = ts
        self.live[self.last_seq] = Message(self.last_seq, ts, subject, header, payload)
        return self.last_seq

    def skip(self, ts: int) -> int:
        self.last_seq += 1
        self.last_ts = ts
        return self.last_seq

    def matching(self, filter: bytes, start: int = 0) -> list[int]:
        return [seq for seq in sorted(self.live) if seq >= start and matches(filter, self.live[seq].subject)]

    def remove(self, seq: int) -> bool:
        return self.live.pop(seq, None) is not None

    def drop(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.live[seq]
        return len(seqs)

    def purge(self, filter: bytes, upto_seq: int, keep: int) -> int:
        found = self.matching(filter)
        found = found[: len(found) - keep] if keep < len(found) else []
        gone = self.drop([seq for seq in found if upto_seq == 0 or seq < upto_seq])
        if filter in (b"", b">") and keep == 0:
            self.last_seq = max(self.last_seq, upto_seq - 1)
        return gone

    def limit(self, msgs_max: int, bytes_max: int) -> int:
        gone = 0
        while self.live and (0 < msgs_max < len(self.live) or 0 < bytes_max < self.live_bytes):
            gone += self.remove(self.first_seq)
        return gone

    def limit_subject(self, subject: bytes, keep: int) -> int:
        found = [seq for seq in sorted(self.live) if self.live[seq].subject == subject]
        return self.drop(found[: max(len(found) - keep, 0)])

    def enforce_age(self, oldest_ts: int, most: int) -> int:
        gone = 0
        while gone < most and self.live and self.first_ts < oldest_ts:
            gone += self.remove(self.first_seq)
        return gone

    def subjects(self, filter: bytes) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for seq in self.matching(filter):
            subject = self.live[seq].subject
            found[subject] = found.get(subject, 0) + 1
        return found

    def last_seqs(self, filter: bytes, upto_seq: int) -> list[int]:
        last: dict[bytes, int] = {}
        for seq in self.matching(filter):
            if upto_seq == 0 or seq <= upto_seq:
                last[self.live[seq].subject] = seq
        return sorted(last.values())

    def seq_at_time(self, ts: int) -> int:
        return next((seq for seq in sorted(self.live) if self.live[seq].ts >= ts), self.last_seq + 1)

    def deleted(self) -> list[int]:
        if not self.live:
            return []
        return [seq for seq in range(self.first_seq, self.last_seq + 1) if seq not in self.live]
