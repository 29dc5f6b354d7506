"""Who needs which message of an interest or work-queue stream, by going through everything each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.stream_log import LogModel, matches

NONE, ALL, EXPLICIT = 0, 1, 2


@dataclass
class ConsumerModel:
    policy: int
    filters: list[bytes]
    start: int
    delivered: int = 0
    settled: set[int] = field(default_factory=set)
    had: set[int] = field(default_factory=set)  # delivered to it

    def __post_init__(self) -> None:
        self.delivered = self.start - 1

    def takes(self, subject: bytes) -> bool:
        return not self.filters or any(matches(one, subject) for one in self.filters)

    def interest_state(self, seq: int, subject: bytes) -> bool:
        if not self.takes(subject):
            return False
        return seq > self.delivered or (seq in self.had and seq not in self.settled)


@dataclass
class NeedsModel:
    log: LogModel
    work_queue: bool
    consumers: dict[str, ConsumerModel] = field(default_factory=dict)

    def wants(self, subject: bytes) -> bool:
        return any(consumer.takes(subject) for consumer in self.consumers.values())

    def needed(self, seq: int) -> bool:
        subject = self.log.live[seq].subject
        return any(consumer.interest_state(seq, subject) for consumer in self.consumers.values())

    def settle(self, seqs: set[int]) -> None:
        for seq in seqs & set(self.log.live):
            if not self.needed(seq):
                self.log.remove(seq)

    def review(self) -> None:
        for seq in list(self.log.live):
            if self.needed(seq):
                continue
            subject = self.log.live[seq].subject
            acked = any(
                one.takes(subject) and one.start <= seq <= one.delivered for one in self.consumers.values()
            )
            if acked or not self.work_queue:
                self.log.remove(seq)
