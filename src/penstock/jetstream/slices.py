"""Long requests, processed in slices.

A handler whose work grows with the stored data is a generator: it yields the work done since the last time,
and returns the response. The first slice runs when the request arrives, which is enough for most requests.
The rest runs at the end of ticks, one slice each, so that others wait for one slice at most.

Order: while a client's request is unfinished, its later requests wait (see api/waiting.py), so that responses
leave in the order of the requests. Requests of other clients run meanwhile and may change what the unfinished
one works on: after each slice, a handler checks that its asset still exists.

Like other requests, slices wait while a stream's sync is in flight (commit.py).

Invariants: a started request finishes exactly once, unless the engine stops; only INTERLEAVED_MAX of them
have run more than their first slice.

Rejected: threads (a stream has one writer); slices by the clock (a simulation must reproduce the same slices;
work is counted as that of restores is).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from penstock import faults
from penstock.jetstream.commit import Commit
from penstock.jetstream.group_commands import PARKED
from penstock.jetstream.waiting import Queue, WaitingRequests
from penstock.protocol import error_codes as codes

WORK = 256 * 1024  # of all unfinished requests in a tick: half a millisecond. A unit is about 2 ns.
INTERLEAVED_MAX = 8  # unfinished requests that get slices, round robin; the others wait
UNFINISHED_MAX = 256
PARKED_BELOW = -PARKED // 2
STEP = 10_000  # the work of a step of one of several, besides what it yields

Steps = Generator[int, None, Any]
"""Yields work, or PARKED until the group of a stream has committed something; returns a response."""


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
    """Unfinished requests of one account's engine.

    requests: where later requests of a client wait. commit: has the syncs in flight. wake: requests the end
    of a tick. defer: runs a request in the next tick. failed: called with what background work raised.

    unfinished: in the order in which they get slices. owners: how many of these each client has.
    """

    def __init__(
        self,
        requests: WaitingRequests,
        commit: Commit,
        *,
        wake: Callable[[], None],
        defer: Callable[[Callable[[], object]], None],
        failed: Callable[[Exception], object],
    ) -> None:
        self._requests = requests
        self._commit = commit
        self._wake = wake
        self._defer = defer
        self._failed = failed
        self.unfinished: deque[_Unfinished] = deque()
        self.owners: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.unfinished)

    def after(self, owner: Hashable, request: Callable[[], object], queue: Queue) -> None:
        """Queues a later request of the client until none is unfinished; rejects it when its queue is
        full."""
        self._requests.add((self, owner), request, queue)

    def begin(self, owner: Hashable, steps: Steps, finish: Finish, refuse: Refuse) -> None:
        """Runs the first slice of a request. Calls either `finish` or `refuse` exactly once, now or later."""
        work = _Unfinished(owner, steps, finish, refuse)
        if len(self.unfinished) >= UNFINISHED_MAX:
            steps.close()
            refuse(codes.INSUFFICIENT_RESOURCES.exception())
        elif self._run(work, WORK) <= 0:
            self.unfinished.append(work)
            self.owners[owner] = self.owners.get(owner, 0) + 1
            self._wake()

    def add(self, steps: Steps) -> None:
        """Runs the first slice of work that a request leaves behind and whose result no response depends
        on."""
        owner = object()
        work = _Unfinished(owner, steps, _done, self._failed)
        if self._run(work, WORK) <= 0:
            self.unfinished.append(work)
            self.owners[owner] = 1
            self._wake()

    def advance(self, now: int) -> None:
        """Runs slices of the first requests in the queue, with the work of one slice in total."""
        if not self.unfinished or self._commit.in_flight:
            return
        count = min(INTERLEAVED_MAX, len(self.unfinished))
        share = max(WORK // count, 1)
        left = WORK
        parked: list[_Unfinished] = []
        for _ in range(len(self.unfinished)):
            work = self.unfinished.popleft()
            rest = self._run(work, share)
            if rest <= PARKED_BELOW:
                parked.append(work)  # to ask it costs next to nothing
                continue
            if rest <= 0:
                self.unfinished.insert(min(count - 1, len(self.unfinished)), work)
            else:
                self._release(work.owner)
            left -= share - rest
            count -= 1
            if left <= 0 or not count:
                break
        if self.unfinished:
            self._wake()
        self.unfinished.extend(parked)

    def stop(self) -> None:
        """Closes all unfinished requests without a response."""
        for work in self.unfinished:
            faults.contain(work.steps.close, self._failed)
        self.unfinished.clear()
        self.owners.clear()

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
        self.owners[owner] -= 1
        if not self.owners[owner]:
            del self.owners[owner]
            for request in self._requests.take((self, owner)):
                self._defer(request)


def side_by_side(all_steps: Iterable[Steps], at_once: int) -> Generator[int, None, None]:
    """Runs several as one: the first `at_once` of them, and the next one when one has ended. What they return
    is dropped; an exception of one ends the others."""
    waiting = iter(all_steps)
    running: deque[Steps] = deque()
    parked = 0  # of those at the end of the queue
    try:
        while True:
            running.extend(islice(waiting, at_once - len(running)))
            if not running:
                return
            steps = running.popleft()
            try:
                work = next(steps)
            except StopIteration:
                parked = 0
                yield STEP
                continue
            running.append(steps)
            parked = parked + 1 if work >= PARKED else 0
            if not parked:
                yield work + STEP
            elif parked >= len(running):
                parked = 0
                yield PARKED
    finally:
        for steps in running:
            steps.close()


def _done(response: object) -> None:
    """Ignores the result of background work."""
