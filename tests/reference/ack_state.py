"""A consumer's ack state with dicts and lists: slow, obvious, without a journal."""

from dataclasses import dataclass, field

NONE, ALL, EXPLICIT = 0, 1, 2


@dataclass
class Pending:
    cseq: int
    ts: int
    deliveries: int = 1


@dataclass
class AckStateModel:
    policy: int
    start_seq: int = 1
    waits: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.delivered = [0, self.start_seq - 1]
        self.floor = [0, self.start_seq - 1]
        self.resets = self.since = 0
        self.pending: dict[int, Pending] = {}
        self.dead: dict[int, int] = {}
        self.queue: list[int] = []
        self.parked: set[int] = set()

    def deliver(self, seq: int, ts: int) -> int:
        self.delivered[0] += 1
        if seq in self.parked:
            self.parked.remove(seq)
            self.pending[seq] = Pending(self.delivered[0], ts)
            return self.delivered[0]
        if seq <= self.delivered[1]:
            entry = self.pending[seq]
            entry.deliveries += 1
            entry.ts = ts
            self.unqueue(seq)
            return self.delivered[0]
        self.delivered[1] = seq
        if self.policy == NONE:
            self.floor = list(self.delivered)
        else:
            self.pending[seq] = Pending(self.delivered[0], ts)
        return self.delivered[0]

    def park(self, seq: int) -> None:
        self.delivered[1] = seq
        self.parked.add(seq)

    def unqueue(self, seq: int) -> None:
        if seq in self.queue:
            self.queue.remove(seq)

    def settle(self, seq: int) -> None:
        del self.pending[seq]
        self.unqueue(seq)

    def move_floor(self) -> None:
        if not self.pending and not self.parked:
            self.floor = list(self.delivered)
            return
        first = min([*self.pending, *self.parked])
        consumer = self.pending[first].cseq - 1 if first in self.pending else 0
        self.floor = [max(self.floor[0], consumer), max(self.floor[1], first - 1)]

    def ack(self, seq: int) -> bool:
        self.dead.pop(seq, None)
        if seq not in self.pending:
            return False
        was_first = seq == min([*self.pending, *self.parked])
        self.settle(seq)
        if was_first or not self.pending:
            self.move_floor()
        return True

    def ack_all(self, seq: int, cseq: int) -> int:
        if not self.floor[1] < seq <= self.delivered[1]:
            return 0
        cseq = min(cseq, self.delivered[0])
        gone = [s for s in self.pending if s <= seq]
        for s in gone:
            self.settle(s)
        self.dead = {s: n for s, n in self.dead.items() if s > seq}
        self.floor = [max(self.floor[0], cseq), seq]
        return len(gone)

    def drop_below(self, first: int) -> int:
        gone = [s for s in self.pending if s < first]
        for s in gone:
            self.settle(s)
        self.dead = {s: n for s, n in self.dead.items() if s >= first}
        parked = len(self.parked)
        self.parked = {s for s in self.parked if s >= first}
        if gone or parked != len(self.parked):
            self.move_floor()
        return len(gone)

    def reset(self, seq: int, start: int) -> None:
        resets = self.resets + 1
        self.start_seq = seq
        self.__post_init__()
        self.resets, self.since, self.start_seq = resets, seq, start

    def truncate(self, last: int) -> None:
        last = max(last, self.start_seq - 1)
        self.since = min(self.since, last + 1)
        for seq in [s for s in self.pending if s > last]:
            self.settle(seq)
        self.dead = {s: n for s, n in self.dead.items() if s <= last}
        self.parked = {s for s in self.parked if s <= last}
        self.delivered[1] = min(self.delivered[1], last)
        self.floor[1] = min(self.floor[1], last)
        if not self.pending:
            self.move_floor()

    def skip(self, seq: int) -> None:
        if seq > self.delivered[1]:
            self.delivered[1] = seq
            if not self.pending:
                self.move_floor()

    def wait(self, seq: int) -> int:
        return self.waits[min(self.pending[seq].deliveries, len(self.waits)) - 1]

    def expire(self, now: int, max_deliver: int) -> tuple[int, list[tuple[int, int]]]:
        queued, given_up = 0, []
        for seq in sorted(self.pending):
            entry = self.pending[seq]
            if seq in self.queue or entry.ts + self.wait(seq) > now:
                continue
            if max_deliver and entry.deliveries >= max_deliver:
                given_up.append((seq, entry.deliveries))
            else:
                self.queue.append(seq)
                queued += 1
        for seq, _ in given_up:
            self.give_up(seq)
        return queued, given_up

    def give_up(self, seq: int) -> bool:
        if seq not in self.pending:
            return False
        self.dead[seq] = self.pending[seq].deliveries
        was_first = seq == min([*self.pending, *self.parked])
        self.settle(seq)
        if was_first or not self.pending:
            self.move_floor()
        return True

    def requeue(self, seq: int) -> bool:
        if seq not in self.pending or seq in self.queue:
            return False
        self.pending[seq].ts = 0
        self.queue.append(seq)
        return True

    def touch(self, seq: int, ts: int) -> None:
        if seq in self.pending:
            self.pending[seq].ts = ts
            self.unqueue(seq)

    def deadline(self) -> int:
        waiting = [e.ts + self.wait(s) for s, e in self.pending.items() if s not in self.queue]
        return min(waiting, default=0)

    @property
    def num_redelivered(self) -> int:
        return sum(e.deliveries > 1 for e in self.pending.values()) + len(self.dead)
