"""Long work in turns: a job's share of a busy loop, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from penstock.server.replicated.work_turns import (
    PARK,
    PAUSE_NS,
    SHORT_PAUSE_NS,
    TURN_WORK,
    TURN_WORK_MAX,
    UNIT_NS,
    WorkTurns,
)

STEP = 100_000


class Loop:
    """A loop that comes to a timer later than asked for: `late_ns` for other work."""

    def __init__(self, late_ns: int) -> None:
        self.now = 0
        self.late_ns = late_ns
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.turns = WorkTurns(self._call_later, lambda: self.now)

    def _call_later(self, delay_ns: int, call: Callable[[], None]) -> None:
        self.due.append((self.now + delay_ns, call))

    def turn(self) -> None:
        [(at, call)] = self.due
        self.due.clear()
        self.now = at + self.late_ns
        call()

    def steps(self, count: int) -> Generator[int, None, None]:
        for _ in range(count):
            self.now += STEP * UNIT_NS
            yield STEP


def work_of_turns(loop: Loop, turns: int) -> list[int]:
    """Nanoseconds that each turn of a job took that has more to do."""
    loop.turns.start(loop.steps(1_000_000), print, print)
    took = []
    for _ in range(turns):
        [(at, _)] = loop.due
        loop.turn()
        took.append(loop.now - at - loop.late_ns)
    return took


def test_a_turn_in_an_idle_loop_has_its_fixed_work() -> None:
    assert work_of_turns(Loop(0), 4) == [TURN_WORK * UNIT_NS] * 4


def test_a_job_gets_its_share_of_a_busy_loop() -> None:
    loop = Loop(late_ns=10_000_000)
    took = work_of_turns(loop, 50)
    assert sum(took[1:]) / (loop.now - 10_000_000) == pytest.approx(1 / 3, abs=0.03)


def test_a_turn_is_bounded_however_long_the_loop_was_away() -> None:
    assert work_of_turns(Loop(late_ns=10_000_000_000), 3)[1:] == [TURN_WORK_MAX * UNIT_NS] * 2


def test_a_job_that_begins_after_a_pause_gets_no_more_for_it() -> None:
    loop = Loop(0)
    loop.turns.start(loop.steps(1), print, print)
    loop.turn()
    loop.now += 10_000_000_000
    assert work_of_turns(loop, 1) == [TURN_WORK * UNIT_NS]


def test_the_shortest_pause_of_the_jobs_that_have_more_to_do_counts() -> None:
    loop = Loop(0)
    loop.turns.start(loop.steps(1_000_000), print, print)
    loop.turns.start(loop.steps(25), print, print, pause_ns=SHORT_PAUSE_NS)
    pauses = []
    for _ in range(6):
        loop.turn()
        pauses.append(loop.due[0][0] - loop.now)
    assert pauses == [SHORT_PAUSE_NS] * 5 + [PAUSE_NS]


def test_a_parked_job_waits_until_it_is_woken() -> None:
    loop = Loop(0)
    ended: list[str] = []

    def steps() -> Generator[int, None, str]:
        yield PARK
        return "done"

    job = loop.turns.start(steps(), ended.append, print)
    loop.turn()
    assert loop.due == []
    job.wake()
    loop.turn()
    assert (ended, job.is_over) == (["done"], True)
