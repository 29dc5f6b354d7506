"""Fair scheduling of consumers that compete for ticks and receivers.

Each consumer has a turn: a virtual count of the messages it delivered, as if it had always been busy. The
lowest turn is served first, and deliveries advance it. So among busy consumers none gets ahead of another by
more than one tick's share, even where all deliver to one slow connection whose buffer only the first of a
tick can fill. A consumer that was idle or blocked by its own receiver continues at the present turn, without
credit for the time.

Invariant: `now` never decreases, and a turn below it counts as `now`.

Rejected: the order in which receivers drained (acks activate a consumer too, and those that were served get
acks); a quantum alone (the first ones fill the connection in every tick).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

# Messages that all consumers may deliver together in a tick, and the minimum for each.
TICK_MESSAGES = 32 * 1024
QUANTUM_MIN = 64


class Schedulable(Protocol):
    """What the scheduler needs of a consumer."""

    @property
    def turn(self) -> int:
        """What `FairScheduler.delivered` returned last; 0 before the first delivery."""


T = TypeVar("T", bound=Schedulable)


class FairScheduler:
    """Orders the consumers of one account."""

    def __init__(self) -> None:
        self.now = 0  # the turn at which the last consumer delivered

    def in_order(self, consumers: Iterable[T]) -> list[T]:
        """Sorts by turn; consumers with equal turns stay in order."""
        # Without a call per consumer: an exception in one would cost all of them their turn.
        now = self.now
        turns = [(max(one.turn, now), at, one) for at, one in enumerate(consumers)]
        turns.sort()  # by turn, then position: no two entries are equal
        return [one for _, _, one in turns]

    def quantum(self, consumers: int) -> int:
        """Messages that each of `consumers` may deliver in this tick."""
        return max(QUANTUM_MIN, TICK_MESSAGES // max(consumers, 1))

    def delivered(self, turn: int, messages: int) -> int:
        """The next turn of a consumer that delivered `messages` in its turn."""
        self.now = max(self.now, turn)
        return self.now + messages
