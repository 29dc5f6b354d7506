"""Timers of replicated streams that nothing but time touches."""

from __future__ import annotations

import pytest

from penstock.protocol import headers
from penstock.testing.sim.following_replica import messages_of
from tests.support.replicated_engines import ReplicatedEngines

SECOND_NS = 1_000_000_000


def pass_time(js: ReplicatedEngines, seconds: float) -> None:
    """Lets time pass on all engines, with every deadline on the way. What they propose is committed only
    then: a leader hears of it in a later tick."""
    for _ in range(round(seconds * 10)):
        for one in js.engines:
            one.wait_until(one.now + SECOND_NS // 10)
        js.settle()


def held(js: ReplicatedEngines) -> list[int]:
    """How many messages each replica has."""
    return [len(messages_of(one.stream)) for one in js.replicas["S"]]


@pytest.mark.feature("stream.max-age")
def test_messages_of_different_ages_expire_one_after_the_other() -> None:
    js = ReplicatedEngines(2)
    js.open("S", "s", max_age=SECOND_NS, duplicate_window=SECOND_NS)
    for _ in range(4):
        js.publish(b"s")
        pass_time(js, 0.3)
    seen = [held(js)]
    for _ in range(4):
        pass_time(js, 0.3)
        seen.append(held(js))
    assert seen == [[3, 3], [2, 2], [1, 1], [0, 0], [0, 0]]


@pytest.mark.feature("stream.schedules")
def test_a_schedule_that_repeats_goes_on_without_other_traffic() -> None:
    js = ReplicatedEngines(2)
    js.open("S", "s.>", allow_msg_schedules=True, allow_rollup_hdrs=True)
    made = [(headers.SCHEDULE, "@every 1s"), (headers.SCHEDULE_TARGET, "s.made")]
    js.publish(b"s.schedule", header=headers.build(made))
    pass_time(js, 5.5)
    assert held(js) == [1 + 5, 1 + 5]


@pytest.mark.feature("stream.max-age")
def test_timers_go_on_at_the_next_leader() -> None:
    js = ReplicatedEngines(2)
    js.open("S", "s", max_age=SECOND_NS, duplicate_window=SECOND_NS)
    for _ in range(2):
        js.publish(b"s")
        pass_time(js, 0.4)
    js.lead("S", 1)
    pass_time(js, 1.2)
    assert held(js) == [0, 0]
