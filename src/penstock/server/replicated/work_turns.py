"""Long work of the event loop in turns: checkpoints are taken and states read while clients are served.

A job is a generator. It yields the work of the step that it has done, in the units of jetstream/slices.py, or
PARK when it waits for something, such as the disk, after which wake() continues it. A turn runs steps of all
jobs, one after the other, until they have done TURN_WORK; the next turn follows after a pause, in which the
loop serves its sockets. When the loop is busy and the pause becomes long, the next turn does more: jobs get
SHARE of the time. A checkpoint that got less would not end while publishes come, and the log would grow for
as long.

Invariant: a job ends once: with its result, with its error, or by cancel().
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sized
from typing import Any

from penstock import faults

PARK = 0
"""What a job yields that waits for wake()."""
UNIT_NS = 2
TURN_WORK = 1_000_000
"""About two milliseconds."""
TURN_WORK_MAX = 5_000_000
PAUSE_NS = 2_000_000
SHORT_PAUSE_NS = 200_000
"""For a state that is loaded: its stream waits for it. Others wait for one turn all the same."""
SHARE = 1 / 3
"""Of the time between the ends of two turns."""

JobSteps = Generator[int, None, Any]
CallLater = Callable[[int, Callable[[], None]], None]
"""Calls after so many nanoseconds."""


def parked_while_empty(ended: Sized) -> Generator[int, None, None]:
    """Steps of a job that waits until `ended` has something, which what it waits for puts there before it
    wakes the job."""
    while not ended:
        yield PARK


class WorkJob:
    """One job. done: called with its result; failed: with the Exception that it raised. pause_ns: after each
    turn."""

    def __init__(
        self,
        turns: WorkTurns,
        steps: JobSteps,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        pause_ns: int,
    ) -> None:
        self.pause_ns = pause_ns
        self._turns = turns
        self._steps = steps
        self._done = done
        self._failed = failed
        self._is_parked = False
        self.is_over = False

    def wake(self) -> None:
        """Continues the job. Does nothing for one that is not parked."""
        if self._is_parked and not self.is_over:
            self._is_parked = False
            self._turns.add(self)

    def cancel(self) -> None:
        """Ends the job: neither done nor failed is called."""
        if not self.is_over:
            self.is_over = True
            self._steps.close()

    def step(self) -> int:
        """Runs the next step. Returns its work; PARK when the job waits or is over."""
        if self.is_over:
            return PARK
        try:
            work = next(self._steps)
        except StopIteration as end:
            self.is_over = True
            faults.contain(self._done, _end_failed, end.value)
            return PARK
        except Exception as error:  # noqa: BLE001  # costs this job
            self.is_over = True
            faults.contain(self._failed, _end_failed, error)
            return PARK
        self._is_parked = work == PARK
        return work


def _end_failed(error: Exception, *_: object) -> None:
    faults.note("end of work in turns", error)


class WorkTurns:
    """See the module. call_later: calls in the event loop after a time. clock: monotonic ns."""

    def __init__(self, call_later: CallLater, clock: Callable[[], int]) -> None:
        self._call_later = call_later
        self._clock = clock
        self._ended_at: int | None = None  # the last turn, with more to do
        self._ready: deque[WorkJob] = deque()
        self._is_due = False

    def start(
        self,
        steps: JobSteps,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        *,
        pause_ns: int = PAUSE_NS,
    ) -> WorkJob:
        """Begins a job; its first step follows with the next turn."""
        job = WorkJob(self, steps, done, failed, pause_ns)
        self.add(job)
        return job

    def add(self, job: WorkJob) -> None:
        """Gives a job a place in the next turn."""
        self._ready.append(job)
        self._schedule(0)

    def _schedule(self, delay_ns: int) -> None:
        if not self._is_due:
            self._is_due = True
            self._call_later(delay_ns, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        left = self._turn_work()
        while self._ready and left > 0:
            job = self._ready.popleft()
            work = job.step()
            if work != PARK:
                left -= work
                self._ready.append(job)
        self._ended_at = self._clock() if self._ready else None
        if self._ready:
            self._schedule(min(job.pause_ns for job in self._ready))

    def _turn_work(self) -> int:
        if self._ended_at is None:
            return TURN_WORK
        pause_ns = self._clock() - self._ended_at
        return min(max(TURN_WORK, int(pause_ns * SHARE / (1 - SHARE)) // UNIT_NS), TURN_WORK_MAX)
