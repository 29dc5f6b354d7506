"""Requests whose work is long, done a slice at a time.

A handler whose work grows with what is stored is a generator: it yields the work that it did since the last
time, and returns the response. The first slice runs when the request comes, which is all that most requests
need. What is left is done at the end of ticks, a slice of each, so that others wait for a slice at most.

Order: while a request of a client is unfinished, those that it sends afterwards wait (see api/waiting.py), so
its answers leave in the order of its requests. Other clients' requests are served meanwhile, and change what
the unfinished one works on: after each slice, a handler looks whether that is still there.

Like other requests, slices wait while a stream is on its way to the disk (groupcommit.py).

Invariants: a request that was begun is finished once, unless the engine stops; only TURNS_MAX of them hold
more than their first slice left behind.
Rejected: threads (a stream has one writer); slices by the clock (a simulation has to see the same slices each
time; work is counted as that of restores is).
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
    """Of one engine."""

    def __init__(self, engine: JetStreamEngine) -> None:
        self._engine = engine
        self._unfinished: deque[_Unfinished] = deque()
        self._owners: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._unfinished)

    def holds(self, owner: Hashable) -> bool:
        """Has a request of this client been begun and not finished?"""
        return owner in self._owners

    def after(self, owner: Hashable, request: Callable[[], object], queue: Queue) -> None:
        """Another request of the client: it is served when none is unfinished, unless too many wait."""
        self._engine.requests.add((self, owner), request, queue)

    def begin(self, owner: Hashable, steps: Steps, finish: Finish, refuse: Refuse) -> None:
        """Does the first slice of a request. One of finish and refuse is called once, now or later."""
        work = _Unfinished(owner, steps, finish, refuse)
        if len(self._unfinished) >= UNFINISHED_MAX:
            steps.close()
            refuse(codes.INSUFFICIENT_RESOURCES.exception())
        elif self._run(work, WORK) <= 0:
            self._unfinished.append(work)
            self._owners[owner] = self._owners.get(owner, 0) + 1
            self._engine.wake()

    def add(self, steps: Steps) -> None:
        """Does the first slice of work that a request leaves behind and that no answer waits for."""
        owner = object()
        work = _Unfinished(owner, steps, _done, self._engine.containment.work_failed)
        if self._run(work, WORK) <= 0:
            self._unfinished.append(work)
            self._owners[owner] = 1
            self._engine.wake()

    def advance(self, now: int) -> None:
        """A slice of each that has a turn; together, they do the work of one."""
        if not self._unfinished or self._engine.group.in_flight:
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
        """The engine stops: no request is answered any more."""
        for work in self._unfinished:
            faults.contain(work.steps.close, self._engine.containment.work_failed)
        self._unfinished.clear()
        self._owners.clear()

    def _run(self, work: _Unfinished, left: int) -> int:
        """Works for a slice; returns what is left of it. None: there is more to do."""
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
    """Nothing waits for it."""
