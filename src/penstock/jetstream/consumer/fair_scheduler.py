"""Fair scheduling of consumers that compete for ticks and receivers.

Deficit round robin: the consumer that ended its last quantum the longest time ago is served first. It stays
first until it has delivered a quantum, in as many ticks as that takes; then all others precede it. So a
consumer that always has messages ends a quantum before another one ends three, and in the long run all get
equal parts, even where all deliver to one slow connection whose buffer only the first of a tick can fill.
(Three: one of which it had a part, and one in ticks with room for both.) A consumer that was idle, or blocked
by its own receiver, is served early when it comes back, but for one quantum only: there is no credit for the
time in between.

Invariants: the quanta that ended are numbered in order, so no two consumers that ended one have equal
positions. What a consumer delivered beyond a quantum counts towards its next one, up to a whole one.

Rejected: the order in which receivers drained (acks activate a consumer too, and those that were served get
acks); a limit for each tick alone (the first ones fill the connection in every tick); one virtual time for
all, as in fair queueing (consumers of a fast connection advance it, so that those that share a slow one all
count as equally late, and the first of them take all room); a virtual time for each connection (a consumer
may deliver to several); comparing what the consumers of one tick delivered (acks schedule some of those that
share a connection without the others, and comparing these alone changes their order beside the others).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

# Messages that a consumer may deliver in a tick when it is the only one, and that several may together: few,
# for consumers that share a connection are up to two quanta apart.
ALONE_MESSAGES = 32 * 1024
TICK_MESSAGES = 8 * 1024
# The minimum for each, which is also the quantum that decides the order.
QUANTUM_MIN = 64


class Deliveries(Protocol):
    """The deliveries of a consumer.

    position: what `FairScheduler.delivered` returned last; 0 before the first delivery.
    """

    position: int


class Schedulable(Protocol):
    """What the scheduler needs of a consumer."""

    @property
    def delivery(self) -> Deliveries:
        """An attribute, not a function: see in_order()."""


T = TypeVar("T", bound=Schedulable)


class FairScheduler:
    """Orders the consumers of one account."""

    def __init__(self) -> None:
        self._quanta = 0  # that consumers have ended

    def in_order(self, consumers: list[T]) -> list[T]:
        """Sorts by the time since each ended a quantum, longest first; equal ones stay in order."""
        if len(consumers) == 1:
            return consumers  # the usual case
        # Without a call per consumer: an exception in one would keep all of them from being served.
        queue = [(one.delivery.position, at, one) for at, one in enumerate(consumers)]
        queue.sort()  # by position, then place in the list: no two entries are equal
        return [one for _, _, one in queue]

    def quantum(self, consumers: int) -> int:
        """Messages that each of `consumers` may deliver in this tick."""
        return ALONE_MESSAGES if consumers <= 1 else max(QUANTUM_MIN, TICK_MESSAGES // consumers)

    def delivered(self, position: int, messages: int) -> int:
        """The next position of a consumer that delivered `messages` at this one.

        A position is the number of the last quantum that the consumer ended, times QUANTUM_MIN, plus the
        messages of its present quantum.
        """
        sent = position % QUANTUM_MIN + messages
        if sent < QUANTUM_MIN:
            return position + messages
        self._quanta += 1
        return self._quanta * QUANTUM_MIN + min(sent - QUANTUM_MIN, QUANTUM_MIN - 1)
