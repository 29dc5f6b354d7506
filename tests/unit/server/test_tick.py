"""The end of a tick: its order, its timer, and what a failing engine stops."""

from __future__ import annotations

import asyncio
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

    def turn(self) -> None:
        """One turn of the loop."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def fire(self) -> None:
        """The one timer's time has come."""
        (handle,) = self.timers
        self.timers.clear()
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


class World:
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
        self.loop.turn()
        self.steps.clear()


@pytest.fixture
def world() -> World:
    return World()


def test_a_tick_applies_writes_acknowledges_delivers_and_flushes_in_this_order(world: World) -> None:
    world.add_engine()
    world.sink.write(b"x")
    world.tick.schedule()
    world.loop.turn()
    assert world.steps == ["apply", "write", "acknowledge", "deliver", "flush b'x'"]


def test_a_tick_without_work_for_engines_only_flushes(world: World) -> None:
    world.add_engine()
    world.sink.write(b"x")
    world.loop.turn()
    assert world.steps == ["flush b'x'"]


def test_a_read_that_comes_alone_after_one_that_did_ends_the_tick_itself(world: World) -> None:
    world.add_engine()

    def publish_to_stream() -> None:
        world.sink.write(b"x")
        world.tick.schedule()

    world.tick.trigger.read(publish_to_stream)
    assert world.steps == []
    world.loop.turn()
    world.steps.clear()
    world.tick.trigger.read(publish_to_stream)
    assert world.steps == ["apply", "write", "acknowledge", "deliver", "flush b'x'"]
    assert world.loop.soon == []


def test_what_is_no_exception_stops_everything_within_a_read_too(world: World) -> None:
    world.add_engine()
    world.tick.trigger.read(lambda: world.sink.write(b"x"))
    world.loop.turn()
    world.steps.clear()
    world.engine.fails_at, world.engine.error = "write", KeyboardInterrupt("stop")
    with pytest.raises(KeyboardInterrupt, match="stop"):
        world.tick.trigger.read(world.tick.schedule)
    assert world.steps == ["apply"]
    assert len(world.failures) == 1


def test_everything_of_one_turn_is_one_tick(world: World) -> None:
    world.add_engine()
    for _ in range(3):
        world.tick.schedule()
    world.sink.write(b"a")
    world.sink.write(b"b")
    world.loop.turn()
    assert world.steps.count("write") == 1
    assert world.steps[-1] == "flush b'ab'"
    assert world.loop.soon == []


def test_what_a_tick_leaves_over_gets_another_tick(world: World) -> None:
    world.add_engine()
    world.engine.deliver = lambda now: world.tick.schedule()  # type: ignore[method-assign]
    world.tick.schedule()
    world.loop.turn()
    assert len(world.loop.soon) == 1


def test_what_engines_put_out_leaves_in_the_same_tick_and_schedules_none(world: World) -> None:
    world.add_engine()
    world.engine.acknowledge = lambda: world.sink.write(b"ack")  # type: ignore[method-assign]
    world.tick.schedule()
    world.loop.turn()
    assert world.steps[-1] == "flush b'ack'"
    assert world.loop.soon == []
    world.sink.write(b"later")
    assert len(world.loop.soon) == 1


def test_a_delivered_message_schedules_the_tick_that_sends_it(world: World) -> None:
    index = SubscriptionIndex()
    index.insert(SinkSubscription(world.sink, b"a", b"", b"1"))
    publish(index, b"a", b"", b"", b"hi")
    world.loop.turn()
    assert world.steps == ["flush b'MSG a 1 2\\r\\nhi\\r\\n'"]


def test_flush_tells_whether_a_receiver_is_congested(world: World) -> None:
    world.sink.write(b"x")
    assert world.tick.flush() is False
    world.owner.congested = True
    world.sink.write(b"x")
    assert world.tick.flush() is True


@pytest.mark.parametrize("step", ["apply", "write", "acknowledge", "deliver"])
def test_an_engine_that_raises_has_no_further_step_in_this_tick_and_the_others_do(
    world: World, step: str, noted_faults: list[BaseException]
) -> None:
    world.add_engine()
    others: list[str] = []
    world.tick.add(FakeEngine(others))
    world.loop.turn()
    world.steps.clear()
    others.clear()
    world.engine.fails_at = step
    world.sink.write(b"x")
    world.tick.schedule()
    world.loop.turn()
    order = ["apply", "write", "acknowledge", "deliver"]
    assert world.steps == [*order[: order.index(step)], "begin_again", "flush b'x'"]
    assert others == order
    assert world.failures == [] and noted_faults == [world.engine.error]
    noted_faults.clear()
    world.steps.clear()
    world.engine.fails_at = ""
    world.loop.fire()  # it has another tick, although nobody asks for one
    world.loop.turn()
    assert world.steps == order


@pytest.mark.parametrize("step", ["on_time 1000", "next_deadline"])
def test_a_timer_that_raises_in_one_engine_comes_for_the_others(
    world: World, step: str, noted_faults: list[BaseException]
) -> None:
    other = FakeEngine([])
    world.tick.add(world.engine)
    world.tick.add(other)
    world.engine.fails_at = step
    other.deadline = 2_000
    world.loop.turn()
    for timer in tuple(world.loop.timers):
        timer.callback(*timer.args)
    assert "on_time 1000" in other.steps
    assert set(noted_faults) == {world.engine.error}
    noted_faults.clear()


def test_a_tick_that_fails_itself_is_run_again(world: World, noted_faults: list[BaseException]) -> None:
    world.add_engine()
    world.tick.run_engines = _fails  # type: ignore[method-assign]
    world.tick.schedule()
    world.loop.turn()
    del world.tick.run_engines
    assert world.steps == [] and len(noted_faults) == 1
    noted_faults.clear()
    world.loop.fire()
    assert world.steps[:4] == ["apply", "write", "acknowledge", "deliver"]


def _fails(now: int) -> None:
    raise LookupError("no")


def test_the_timer_follows_the_earliest_deadline(world: World) -> None:
    other = FakeEngine(world.steps)
    world.engine.deadline, other.deadline = 5_000_000_000, 3_000_001_000
    world.tick.add(world.engine)
    world.tick.add(other)
    world.loop.turn()
    assert [timer.delay_s for timer in world.loop.timers] == [3.0]
    other.deadline = None
    world.tick.schedule()
    world.loop.turn()
    assert [timer.delay_s for timer in world.loop.timers] == [4.999999]


def test_a_deadline_that_stays_keeps_its_timer(world: World) -> None:
    world.engine.deadline = 5_000
    world.add_engine()
    before = list(world.loop.timers)
    world.tick.schedule()
    world.loop.turn()
    assert world.loop.timers == before


def test_when_the_timer_fires_engines_do_what_is_due_and_a_tick_follows(world: World) -> None:
    world.engine.deadline = 5_000
    world.add_engine()
    world.now, world.engine.deadline = 5_000, None
    world.loop.fire()
    world.loop.turn()
    assert world.steps == ["on_time 5000", "apply", "write", "acknowledge", "deliver"]
    assert world.loop.timers == []


def test_stopping_does_what_is_left_and_no_timer_stays(world: World) -> None:
    world.engine.deadline = 5_000
    world.add_engine()
    world.sink.write(b"bye")
    world.tick.stop()
    assert world.steps == ["apply", "write", "acknowledge", "deliver", "flush b'bye'"]
    assert world.loop.timers == []


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
