"""Long requests, processed in slices.

A handler whose work grows with the stored data is a generator: it yields the work done since the last time,
and returns the response. The first slice runs when the request arrives, which is enough for most requests.
The rest runs at the end of ticks, one slice each, so that others wait for one slice at most.

Order: while a client's request is unfinished, its later requests wait (see api/waiting.py), so that responses
leave in the order of the requests. Requests of other clients run meanwhile and may change what the unfinished
one works on: after each slice, a handler checks that its asset still exists.

Like other requests, slices wait while a stream's sync is in flight (commit.py).

Invariants: a started request finishes exactly once, unless the engine stops; only TURNS_MAX of them have run
more than their first slice.

Rejected: threads (a stream has one writer); slices by the clock (a simulation must reproduce the same slices;
work is counted as that of restores is).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import faults
from penstock.jetstream.api.waiting import Queue
from penstock.protocol import error_codes as codes

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

WORK = 256 * 1024  # of all unfinished requests in a tick: half a millisecond. A unit is about 2 ns.
TURNS_MAX = 8  # of those that wait, so many work in turns
UNFINISHED_MAX = 256

Steps = Generator[int, None, Any]
"""Yields work, returns a response."""


Finish = Callable[[Any], object]
"""Called with the response."""
Refuse = Callable[[Exception], object]
"""Called with what was raised. It must not keep it: the frames that an exception holds have the read buffer
of the connection in use, which could not grow then."""


class _Unfinished(NamedTuple):
    owner: Hashable
    steps: Steps
    finish: Finish
    refuse: Refuse


class Slices:
    """Unfinished requests of one account's engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._unfinished: deque[_Unfinished] = deque()
        self._owners: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def holds(self, owner: Hashable) -> bool:
        """Whether this client has an unfinished request."""
        return owner in self._owners

    def after(self, owner: Hashable, request: Callable[[], object], queue: Queue) -> None:
        """Queues a later request of the client until none is unfinished; rejects it when its queue is
        full."""
        self._engine.requests.add((self, owner), request, queue)

    def begin(self, owner: Hashable, steps: Steps, finish: Finish, refuse: Refuse) -> None:
        """Runs the first slice of a request. Calls either `finish` or `refuse` exactly once, now or later."""
        work = _Unfinished(owner, steps, finish, refuse)
        if len(self._unfinished) >= UNFINISHED_MAX:
            steps.close()
            refuse(codes.INSUFFICIENT_RESOURCES.exception())
        elif self._run(work, WORK) <= 0:
            self._unfinished.append(work)
            self._owners[owner] = self._owners.get(owner, 0) + 1
            self._engine.wake()

    def add(self, steps: Steps) -> None:
        """Runs the first slice of work that a request leaves behind and whose result no response depends
        on."""
        owner = object()
        work = _Unfinished(owner, steps, _done, self._engine.containment.work_failed)
        if self._run(work, WORK) <= 0:
            self._unfinished.append(work)
            self._owners[owner] = 1
            self._engine.wake()

    def advance(self, now: int) -> None:
        """Runs slices of the first requests in the queue, with the work of one slice in total."""
        if not self._unfinished or self._engine.commit.in_flight:
            return
        turns = min(TURNS_MAX, len(self._unfinished))
        share = max(WORK // turns, 1)
        left = WORK
        for _ in range(turns):
            work = self._unfinished.popleft()
            rest = self._run(work, share)
            if rest <= 0:
                self._unfinished.insert(min(turns - 1, len(self._unfinished)), work)
            else:
                self._release(work.owner)
            left -= share - rest
            if left <= 0:
                break
        if self._unfinished:
            self._engine.wake()

    def stop(self) -> None:
        """Closes all unfinished requests without a response."""
        for work in self._unfinished:
            faults.contain(work.steps.close, self._engine.containment.work_failed)
        self._unfinished.clear()
        self._owners.clear()

    def _run(self, work: _Unfinished, left: int) -> int:
        """Runs up to `left` units of work. Returns what is left of them; 0 or less means that there is more
        to do."""
        while left > 0:
            try:
                left -= next(work.steps)
            except StopIteration as end:
                work.finish(end.value)
                return left
            except Exception as error:  # noqa: BLE001  # it is the request's
                work.refuse(error)
                return left
        return left

    def _release(self, owner: Hashable) -> None:
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]
            for request in self._engine.requests.take((self, owner)):
                self._engine.tick.defer(request)


def _done(response: object) -> None:
    """Ignores the result of background work."""
