"""Virtual time, and connections between servers.

A connection is a byte stream in each direction. Bytes arrive in order, in pieces cut anywhere, each after a
delay. A cut connection loses what is in transit, and its two ends learn of it at different times. During a
partition nothing arrives and no connection begins; connections that meet one break.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

DELAY_S = (0.0001, 0.02)
NOTICE_S = (0.0, 0.5)
"""How long an end takes to notice that its connection is cut."""


class SimTimer:
    """A callback at a time; `cancel` as in asyncio."""

    __slots__ = ("is_cancelled", "work")

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimNetwork:
    """The clock and the pairs of servers that cannot reach each other."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_s = 0.0
        self._events: list[tuple[float, int, SimTimer]] = []
        self._order = count()
        self.apart: set[frozenset[int]] = set()
        self.pipes: list[SimPipe] = []

    def call_later(self, delay_s: float, work: Callable[[], object]) -> SimTimer:
        timer = SimTimer(work)
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), timer))
        return timer

    def clock_ns(self) -> int:
        return 1_000_000_000_000 + int(self.now_s * 1e9)

    def run_for(self, duration_s: float) -> None:
        """Runs everything that is due within this time."""
        until = self.now_s + duration_s
        while self._events and self._events[0][0] <= until:
            self.now_s, _, timer = heapq.heappop(self._events)
            if not timer.is_cancelled:
                timer.work()
        self.now_s = until

    def are_apart(self, one: int, other: int) -> bool:
        return frozenset((one, other)) in self.apart

    def separate(self, one: int, other: int) -> None:
        """Begins a partition; connections between the two break."""
        self.apart.add(frozenset((one, other)))
        for pipe in tuple(self.pipes):
            if {end.owner for end in pipe.ends} == {one, other}:
                pipe.cut()


class SimEnd:
    """One end of a connection: what a link uses as its wire."""

    def __init__(self, network: SimNetwork, owner: int, peer: tuple[str, int]) -> None:
        self._network = network
        self.owner = owner
        self.peer = peer
        self.pipe: SimPipe | None = None
        self.on_bytes: Callable[[bytes], object] = lambda data: None
        self.on_closed: Callable[[], object] = lambda: None
        self.is_closed = False
        self.arrives_s = 0.0  # time at which the last bytes to this end arrive

    def send(self, data: bytes) -> None:
        """Sends bytes to the other end."""
        if self.pipe is not None and data and not self.is_closed:
            self.pipe.carry(self, data)

    def end(self) -> None:
        """Closes this end; the other one learns of it later."""
        if not self.is_closed:
            self.is_closed = True
            self._network.call_later(0.0, self.on_closed)
            if self.pipe is not None:
                self.pipe.cut()


class SimPipe:
    """A connection between two ends."""

    def __init__(self, network: SimNetwork, one: SimEnd, other: SimEnd) -> None:
        self._network = network
        self.ends = (one, other)
        self.is_cut = False
        one.pipe = other.pipe = self
        network.pipes.append(self)

    def carry(self, sender: SimEnd, data: bytes) -> None:
        network, random = self._network, self._network.random
        receiver = self.ends[1] if sender is self.ends[0] else self.ends[0]
        while data and not self.is_cut:
            size = random.choice((1, 7, 100, 5000))
            piece, data = data[:size], data[size:]
            at_s = max(receiver.arrives_s, network.now_s + random.uniform(*DELAY_S))
            receiver.arrives_s = at_s
            network.call_later(at_s - network.now_s, partial(self._arrive, receiver, piece))

    def _arrive(self, receiver: SimEnd, piece: bytes) -> None:
        if not self.is_cut and not receiver.is_closed:
            receiver.on_bytes(piece)

    def cut(self) -> None:
        """Breaks the connection: what is in transit is lost."""
        if self.is_cut:
            return
        self.is_cut = True
        self._network.pipes.remove(self)
        for end in self.ends:
            self._network.call_later(self._network.random.uniform(*NOTICE_S), end.end)
