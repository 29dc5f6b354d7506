"""Whose turn it is to deliver, where many consumers have messages and receivers take only so much.

Each consumer has a turn: a count of what it delivered, as if it had always been busy. The one with the lowest
is first, and what it delivers moves its turn on. So among those that are always busy nobody gets ahead of
another one by more than a tick's share, also where they all deliver to one slow connection and only the first
of a tick find room there. Who was idle, or held up by a receiver of its own, starts at the present turn and
is not served first for what it missed.

Invariant: `now` never falls, and no turn that counts is below it. Rejected: the order in which receivers
drained (acks make a consumer active too, and those that were served get acks); a quantum alone (the first
ones fill the connection, tick for tick).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

# Messages that all consumers of a tick may deliver together, and that one may in any case.
TICK_MESSAGES = 32 * 1024
SHARE_LEAST = 64


class Schedulable(Protocol):
    """A consumer, as far as turns go."""

    turn: int


T = TypeVar("T", bound=Schedulable)


class FairScheduler:
    """The order of one account's consumers."""

    def __init__(self) -> None:
        self.now = 0  # the turn of the consumer that delivered last, when it began

    def in_order(self, consumers: Iterable[T]) -> list[T]:
        """Lowest turn first; equals as they come."""
        # Without a call for each one: what raised there would cost all of them their turn.
        now = self.now
        turns = [(max(one.turn, now), at, one) for at, one in enumerate(consumers)]
        turns.sort()  # by turn, then as they came: no two have the same place
        return [one for _, _, one in turns]

    def share(self, consumers: int) -> int:
        """Messages that each of so many may deliver in this tick."""
        return max(SHARE_LEAST, TICK_MESSAGES // max(consumers, 1))

    def delivered(self, consumer: Schedulable, messages: int) -> None:
        """It had its turn."""
        self.now = max(self.now, consumer.turn)
        consumer.turn = self.now + messages
