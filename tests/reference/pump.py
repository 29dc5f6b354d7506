"""A consumer's deliveries with dicts and lists: what the next message is and who gets it."""

from dataclasses import dataclass, field

from tests.reference.ack_state import NONE, AckStateModel


def matches(pattern: bytes, subject: bytes) -> bool:
    left, right = pattern.split(b"."), subject.split(b".")
    for i, token in enumerate(left):
        if token == b">":
            return len(right) > i
        if i >= len(right) or token not in (b"*", right[i]):
            return False
    return len(left) == len(right)


@dataclass(eq=False)
class TargetModel:
    name: bytes
    batch: int
    bytes_left: int
    priority: int = 0
    min_pending: int = 0
    min_ack_pending: int = 0

    def is_turn(self, pending: int, ack_pending: int) -> bool:
        if not (self.min_pending or self.min_ack_pending):
            return True
        return bool(
            (self.min_pending and self.min_pending <= pending + 1)
            or (self.min_ack_pending and self.min_ack_pending <= ack_pending)
        )


@dataclass
class PumpModel:
    state: AckStateModel
    filters: list[bytes]
    position: int
    max_ack_pending: int = 0
    max_deliver: int = 0
    prioritized: bool = False
    messages: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    given_up: list[tuple[int, int]] = field(default_factory=list)

    def takes(self, subject: bytes) -> bool:
        return not self.filters or any(matches(one, subject) for one in self.filters)

    def upcoming(self) -> list[int]:
        return sorted(
            s for s, (subject, _) in self.messages.items() if s >= self.position and self.takes(subject)
        )

    @property
    def num_pending(self) -> int:
        return len(self.upcoming())

    def run(
        self, targets: list[TargetModel], now: int, budget: int
    ) -> list[tuple[bytes, bytes, bytes, bytes]]:
        """[(target, subject, numbers of the ack subject but the time, payload)]; `targets` change."""
        sent: list[tuple[bytes, bytes, bytes, bytes]] = []
        state = self.state
        while len(sent) < budget and targets:
            again = state.queue[0] if state.queue else 0
            if again and self.max_deliver and state.pending[again].deliveries >= self.max_deliver:
                self.given_up.append((again, state.pending[again].deliveries))
                state.give_up(again)
                continue
            if again and again not in self.messages:
                state.ack(again)
                continue
            upcoming = self.upcoming()
            if not again and (
                (state.policy != NONE and self.max_ack_pending and len(state.pending) >= self.max_ack_pending)
                or not upcoming
            ):
                break
            seq = again or upcoming[0]
            subject, payload = self.messages[seq]
            left = len(upcoming) - (not again)
            deliveries = state.pending[seq].deliveries + 1 if again else 1
            numbers = b"%d.%d.%d.%d" % (deliveries, seq, state.delivered[0] + 1, left)
            size = len(subject) + len(b"$JS.ACK.S.C.") + len(numbers) + len(b".1000") + len(payload)
            target = self.choose(targets, size, left)
            if target is None:
                break
            sent.append((target.name, subject, numbers, payload))
            if not again:
                self.position = seq + 1
            state.deliver(seq, now)
            target.batch -= 1
            if target.bytes_left:
                target.bytes_left -= size
                if target.bytes_left == 0:
                    target.batch = 0
            targets.remove(target)
            if target.batch:
                targets.append(target)
                if self.prioritized:
                    targets.sort(key=lambda one: one.priority)
        return sent

    def choose(self, targets: list[TargetModel], size: int, pending: int) -> TargetModel | None:
        """Those that are not served go to the end of the queue, or are passed over where priorities hold."""
        passed = 0
        while passed < len(targets):
            target = targets[passed if self.prioritized else 0]
            if not target.is_turn(pending, len(self.state.pending)):
                passed += 1
                if not self.prioritized:
                    targets.append(targets.pop(0))
            elif 0 < target.bytes_left < size:
                targets.remove(target)
            else:
                return target
        return None
