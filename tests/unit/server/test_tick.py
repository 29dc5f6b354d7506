"""The end of a tick: its order, its timer, and what a failing engine stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.server.tick import Tick


class FakeHandle:
    def __init__(self, loop: FakeLoop, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        self.loop, self.delay_s, self.callback, self.args = loop, delay_s, callback, args

    def cancel(self) -> None:
        self.loop.timers.remove(self)


class FakeLoop:
    """Collects what a real loop would call."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], Any]] = []
        self.timers: list[FakeHandle] = []

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> FakeHandle:
        handle = FakeHandle(self, delay_s, callback, *args)
        self.timers.append(handle)
        return handle

    def iterate(self) -> None:
        """One iteration."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def fire(self) -> None:
        """The one timer's time has come."""
        (handle,) = self.timers
        self.timers.clear()
        handle.callback(*handle.args)

    def fire_all(self) -> None:
        """The time of all timers has come. The loop logs what they raise."""
        due, self.timers = self.timers, []
        for handle in due:
            with contextlib.suppress(LookupError):
                handle.callback(*handle.args)


class FakeEngine:
    """Writes down what is asked of it."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.deadline: int | None = None
        self.fails_at = ""
        self.error: BaseException = LookupError("no")

    def _do(self, step: str) -> None:
        if step == self.fails_at:
            raise self.error
        self.steps.append(step)

    def apply(self, now: int) -> None:
        self._do("apply")

    def write(self) -> None:
        self._do("write")

    def acknowledge(self) -> None:
        self._do("acknowledge")

    def deliver(self, now: int) -> None:
        self._do("deliver")

    def next_deadline(self) -> int | None:
        if self.fails_at == "next_deadline":
            raise self.error
        return self.deadline

    def on_time(self, now: int) -> None:
        self._do(f"on_time {now}")

    def begin_again(self) -> None:
        self._do("begin_again")


class Owner:
    def __init__(self, steps: list[str], sink: ClientSink) -> None:
        self.steps, self.sink, self.congested = steps, sink, False

    def flush(self) -> bool:
        self.steps.append(f"flush {self.sink.take()!r}")
        return self.congested


class Harness:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.now = 1_000
        self.steps: list[str] = []
        self.failures: list[BaseException] = []
        loop: Any = self.loop
        self.tick = Tick(loop, lambda: self.now, self.failures.append)
        self.engine = FakeEngine(self.steps)
        self.sink = ClientSink(self.tick.dirty_sinks)
        self.owner = self.sink.owner = Owner(self.steps, self.sink)

    def add_engine(self) -> None:
        self.tick.add(self.engine)
        self.loop.iterate()
        self.steps.clear()


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_a_tick_applies_writes_acknowledges_delivers_and_flushes_in_this_order(harness: Harness) -> None:
    harness.add_engine()
    harness.sink.write(b"x")
    harness.tick.schedule()
    harness.loop.iterate()
    assert harness.steps == ["apply", "write", "acknowledge", "deliver", "flush b'x'"]


def test_a_tick_without_work_for_engines_only_flushes(harness: Harness) -> None:
    harness.add_engine()
    harness.sink.write(b"x")
    harness.loop.iterate()
    assert harness.steps == ["flush b'x'"]


def test_a_read_that_comes_alone_after_one_that_did_ends_the_tick_itself(harness: Harness) -> None:
    harness.add_engine()

    def publish_to_stream() -> None:
        harness.sink.write(b"x")
        harness.tick.schedule()

    harness.tick.trigger.read(publish_to_stream)
    assert harness.steps == []
    harness.loop.iterate()
    harness.steps.clear()
    harness.tick.trigger.read(publish_to_stream)
    assert harness.steps == ["apply", "write", "acknowledge", "deliver", "flush b'x'"]
    assert harness.loop.soon == []


def test_what_is_no_exception_stops_everything_within_a_read_too(harness: Harness) -> None:
    harness.add_engine()
    harness.tick.trigger.read(lambda: harness.sink.write(b"x"))
    harness.loop.iterate()
    harness.steps.clear()
    harness.engine.fails_at, harness.engine.error = "write", KeyboardInterrupt("stop")
    with pytest.raises(KeyboardInterrupt, match="stop"):
        harness.tick.trigger.read(harness.tick.schedule)
    assert harness.steps == ["apply"]
    assert len(harness.failures) == 1


def test_everything_of_one_turn_is_one_tick(harness: Harness) -> None:
    harness.add_engine()
    for _ in range(3):
        harness.tick.schedule()
    harness.sink.write(b"a")
    harness.sink.write(b"b")
    harness.loop.iterate()
    assert harness.steps.count("write") == 1
    assert harness.steps[-1] == "flush b'ab'"
    assert harness.loop.soon == []


def test_what_a_tick_leaves_over_gets_another_tick(harness: Harness) -> None:
    harness.add_engine()
    harness.engine.deliver = lambda now: harness.tick.schedule()  # type: ignore[method-assign]
    harness.tick.schedule()
    harness.loop.iterate()
    assert len(harness.loop.soon) == 1


def test_what_engines_put_out_leaves_in_the_same_tick_and_schedules_none(harness: Harness) -> None:
    harness.add_engine()
    harness.engine.acknowledge = lambda: harness.sink.write(b"ack")  # type: ignore[method-assign]
    harness.tick.schedule()
    harness.loop.iterate()
    assert harness.steps[-1] == "flush b'ack'"
    assert harness.loop.soon == []
    harness.sink.write(b"later")
    assert len(harness.loop.soon) == 1


def test_a_delivered_message_schedules_the_tick_that_sends_it(harness: Harness) -> None:
    index = SubscriptionIndex()
    index.insert(SinkSubscription(harness.sink, b"a", b"", b"1"))
    publish(index, b"a", b"", b"", b"hi")
    harness.loop.iterate()
    assert harness.steps == ["flush b'MSG a 1 2\\r\\nhi\\r\\n'"]


def test_flush_tells_whether_a_receiver_is_congested(harness: Harness) -> None:
    harness.sink.write(b"x")
    assert harness.tick.flush() is False
    harness.owner.congested = True
    harness.sink.write(b"x")
    assert harness.tick.flush() is True


@pytest.mark.parametrize("step", ["apply", "write", "acknowledge", "deliver"])
def test_an_engine_that_raises_has_no_further_step_in_this_tick_and_the_others_do(
    harness: Harness, step: str, noted_faults: list[BaseException]
) -> None:
    harness.add_engine()
    others: list[str] = []
    harness.tick.add(FakeEngine(others))
    harness.loop.iterate()
    harness.steps.clear()
    others.clear()
    harness.engine.fails_at = step
    harness.sink.write(b"x")
    harness.tick.schedule()
    harness.loop.iterate()
    order = ["apply", "write", "acknowledge", "deliver"]
    assert harness.steps == [*order[: order.index(step)], "begin_again", "flush b'x'"]
    assert others == order
    assert harness.failures == [] and noted_faults == [harness.engine.error]
    noted_faults.clear()
    harness.steps.clear()
    harness.engine.fails_at = ""
    harness.loop.fire()  # it has another tick, although nothing asks for one
    harness.loop.iterate()
    assert harness.steps == order


@pytest.mark.parametrize("step", ["on_time 1000", "next_deadline"])
def test_a_timer_that_raises_in_one_engine_comes_for_the_others(
    harness: Harness, step: str, noted_faults: list[BaseException]
) -> None:
    other = FakeEngine([])
    harness.tick.add(harness.engine)
    harness.tick.add(other)
    harness.engine.fails_at = step
    other.deadline = 2_000
    harness.loop.iterate()
    for timer in tuple(harness.loop.timers):
        timer.callback(*timer.args)
    assert "on_time 1000" in other.steps
    assert set(noted_faults) == {harness.engine.error}
    noted_faults.clear()


def test_a_tick_that_fails_itself_is_run_again(harness: Harness, noted_faults: list[BaseException]) -> None:
    harness.add_engine()
    harness.tick.run_engines = _fails  # type: ignore[method-assign]
    harness.tick.schedule()
    harness.loop.iterate()
    del harness.tick.run_engines
    assert harness.steps == [] and len(noted_faults) == 1
    noted_faults.clear()
    harness.loop.fire()
    assert harness.steps[:4] == ["apply", "write", "acknowledge", "deliver"]


def _fails(now: int) -> None:
    raise LookupError("no")


@pytest.mark.parametrize("part", ["_run", "_on_timer", "_again"])
def test_what_the_loop_calls_is_called_again_after_it_raised_at_its_entry(
    part: str, monkeypatch: pytest.MonkeyPatch, noted_faults: list[BaseException]
) -> None:
    whole, failing = getattr(Tick, part), True

    def raising(tick: Tick) -> None:
        if failing:
            raise LookupError("no")
        whole(tick)

    monkeypatch.setattr(Tick, part, raising)
    harness = Harness()
    harness.engine.deadline = 5_000
    harness.tick.add(harness.engine)
    harness.loop.iterate()
    if part == "_again":
        harness.tick._end_failed(LookupError("of the end"))
    for _ in range(4):
        harness.loop.fire_all()
        harness.loop.iterate()
    assert len(noted_faults) > 1
    noted_faults.clear()
    failing, harness.now = False, 5_000
    for _ in range(3):
        harness.loop.fire_all()
        harness.loop.iterate()
    assert "on_time 5000" in harness.steps
    assert harness.steps[-4:] == ["apply", "write", "acknowledge", "deliver"]


def test_the_timer_follows_the_earliest_deadline(harness: Harness) -> None:
    other = FakeEngine(harness.steps)
    harness.engine.deadline, other.deadline = 5_000_000_000, 3_000_001_000
    harness.tick.add(harness.engine)
    harness.tick.add(other)
    harness.loop.iterate()
    assert [timer.delay_s for timer in harness.loop.timers] == [3.0]
    other.deadline = None
    harness.tick.schedule()
    harness.loop.iterate()
    assert [timer.delay_s for timer in harness.loop.timers] == [4.999999]


def test_a_deadline_that_stays_keeps_its_timer(harness: Harness) -> None:
    harness.engine.deadline = 5_000
    harness.add_engine()
    before = list(harness.loop.timers)
    harness.tick.schedule()
    harness.loop.iterate()
    assert harness.loop.timers == before


def test_when_the_timer_fires_engines_do_what_is_due_and_a_tick_follows(harness: Harness) -> None:
    harness.engine.deadline = 5_000
    harness.add_engine()
    harness.now, harness.engine.deadline = 5_000, None
    harness.loop.fire()
    harness.loop.iterate()
    assert harness.steps == ["on_time 5000", "apply", "write", "acknowledge", "deliver"]
    assert harness.loop.timers == []


def test_stopping_does_what_is_left_and_no_timer_stays(harness: Harness) -> None:
    harness.engine.deadline = 5_000
    harness.add_engine()
    harness.sink.write(b"bye")
    harness.tick.stop()
    assert harness.steps == ["apply", "write", "acknowledge", "deliver", "flush b'bye'"]
    assert harness.loop.timers == []


async def test_it_runs_in_a_real_loop() -> None:
    steps: list[str] = []
    done = asyncio.Event()
    tick = Tick(asyncio.get_running_loop(), lambda: 1, steps.append)  # type: ignore[arg-type]
    engine = FakeEngine(steps)
    engine.deliver = lambda now: done.set()  # type: ignore[method-assign]
    tick.add(engine)
    await done.wait()
    assert steps == ["apply", "write", "acknowledge"]
    tick.stop()
