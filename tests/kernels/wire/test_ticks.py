"""When the end of a tick runs: in the loop's next iteration, or within a read that comes alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing.subscription_index import SubscriptionIndex
from penstock.kernels.wire.dispatch import ClientSink, ServiceSink
from penstock.kernels.wire.ingress import Ingress
from penstock.kernels.wire.sinks import SinkSubscription
from penstock.kernels.wire.ticks import AT_ONCE_MAX, MESSAGE_WORK, WORK_MAX, TickTrigger
from tests.reference import ticks as reference

SINKS = 3


class Owner:
    def __init__(self, harness: Harness, number: int) -> None:
        self.harness, self.number = harness, number
        self.sink = ClientSink(harness.trigger.dirty_sinks, self)
        self.congested = False

    def flush(self) -> bool:
        self.sink.take()
        self.harness.flushed.append(self.number)
        return self.congested


class Harness:
    """A trigger, a loop that is turned by hand, and three sinks."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []
        self.ends: list[tuple[bool, tuple[int, ...]]] = []
        self.flushed: list[int] = []
        self.trigger = TickTrigger(self.soon.append, self.end)
        self.owners = [Owner(self, i) for i in range(SINKS)]

    def end(self) -> None:
        due = self.trigger.begin()
        self.trigger.done()
        self.trigger.flush()
        self.note(due)

    def note(self, engines_due: bool) -> None:
        self.ends.append((engines_due, tuple(self.flushed)))
        self.flushed.clear()

    def mark(self, sink: int) -> None:
        self.owners[sink].sink.write(b"x")

    def read(
        self, sinks: list[int], *, engines: bool, n: int = 0, messages: int = 0, full: bool = False
    ) -> None:
        def work() -> None:
            for sink in sinks:
                self.mark(sink)
            if engines:
                self.trigger.schedule()

        self.trigger.read(work, n, messages, full)
        if self.flushed:  # a read that ends the tick itself calls `end` only for engines
            self.note(False)

    def iterate(self) -> None:
        due = self.soon[:]
        self.soon.clear()
        for callback in due:
            callback()


sinks = st.lists(st.integers(0, SINKS - 1), max_size=3)
steps = st.one_of(
    st.tuples(st.just("mark"), st.integers(0, SINKS - 1)),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("read"), sinks, st.booleans()),
    st.tuples(st.just("read alone"), sinks, st.booleans()),
    st.tuples(  # bytes, messages, full
        st.just("large read"),
        sinks,
        st.booleans(),
        st.integers(0, WORK_MAX),
        st.integers(0, 500),
        st.booleans(),
    ),
    st.tuples(st.just("reads alone"), st.integers(1, 2 * AT_ONCE_MAX)),
    st.tuples(st.just("iteration")),
)


@given(st.lists(steps, max_size=60))
def test_ends_of_ticks_come_when_the_model_says(script: list[tuple[object, ...]]) -> None:
    harness, model = Harness(), reference.TickModel()
    for name, *arguments in script:
        for each in (harness, model):
            match name:
                case "read":
                    each.read(arguments[0], engines=arguments[1])  # type: ignore[arg-type]
                case "read alone":
                    each.iterate()
                    each.read(arguments[0], engines=arguments[1])  # type: ignore[arg-type]
                case "large read":
                    marked, engines, n, messages, full = arguments
                    each.read(marked, engines=engines, n=n, messages=messages, full=full)  # type: ignore[arg-type]
                case "reads alone":
                    for _ in range(arguments[0]):  # type: ignore[call-overload]
                        each.read([0], engines=False)
                        each.iterate()
                case "mark":
                    each.mark(arguments[0])  # type: ignore[arg-type]
                case "schedule":
                    (harness.trigger if each is harness else model).schedule()
                case _:
                    each.iterate()
        assert harness.ends == model.ends
        assert harness.trigger.scheduled == model.scheduled == bool(harness.soon)
        assert len(harness.soon) <= 1
        assert harness.trigger.at_once == model.at_once
        assert harness.trigger.engines_due == model.engines_due
    harness.iterate()
    assert len(harness.trigger.dirty_sinks) == 0, "nothing that was marked is left behind"


def test_reads_that_come_together_are_covered_by_one_end() -> None:
    harness = Harness()
    harness.read([0], engines=False)
    harness.iterate()
    assert harness.trigger.at_once == AT_ONCE_MAX
    for _ in range(AT_ONCE_MAX):
        harness.read([0], engines=False)
    assert harness.trigger.at_once == 0
    harness.ends.clear()
    for sink in range(SINKS):
        harness.read([sink, 0], engines=True)
    assert harness.ends == []
    harness.iterate()
    assert harness.ends == [(True, (0, 1, 2))]
    assert harness.trigger.at_once == 0, "reads came together: the next one waits too"


def test_a_read_that_filled_its_buffer_is_not_alone_and_a_large_tick_ends_within_it() -> None:
    harness = Harness()
    harness.read([0], engines=False)
    harness.iterate()
    assert harness.trigger.at_once == AT_ONCE_MAX
    harness.ends.clear()
    harness.read([0], engines=True, n=WORK_MAX // 2, full=True)
    assert harness.ends == []
    harness.read([1], engines=True, n=WORK_MAX // 2, full=True)
    assert harness.ends == [(True, (0, 1))]
    harness.read([2], engines=True, n=100)
    assert len(harness.soon) == 1
    harness.iterate()
    assert harness.ends == [(True, (0, 1)), (True, (2,))]


def test_messages_count_besides_their_bytes() -> None:
    harness = Harness()
    harness.read([0], engines=True, n=100, messages=WORK_MAX // MESSAGE_WORK + 1)
    assert harness.ends == [(True, (0,))]


def test_reads_without_work_for_engines_are_flushed_together_however_large() -> None:
    harness = Harness()
    for sink in range(SINKS):
        harness.read([sink], engines=False, n=WORK_MAX, full=True)
    assert harness.ends == []
    harness.iterate()
    assert harness.ends == [(False, (0, 1, 2))]


def test_what_engines_mark_is_flushed_by_the_same_end_and_schedules_none() -> None:
    harness = Harness()
    harness.trigger.schedule()
    assert harness.trigger.begin()
    harness.mark(0)
    harness.trigger.done()
    harness.trigger.flush()
    assert harness.flushed == [0]
    harness.iterate()
    assert harness.soon == []


def test_what_a_read_that_failed_has_marked_still_gets_its_end() -> None:
    harness = Harness()
    harness.read([0], engines=False)
    harness.iterate()
    harness.ends.clear()

    def fail() -> None:
        harness.mark(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        harness.trigger.read(fail)
    assert harness.ends == []
    harness.iterate()
    assert harness.ends == [(False, (1,))]


def test_flush_tells_of_a_congested_receiver() -> None:
    harness = Harness()
    harness.mark(0)
    harness.mark(1)
    harness.owners[0].congested = True
    assert harness.trigger.flush() is True
    assert harness.flushed == [0, 1]
    assert harness.trigger.flush() is False


def test_a_connection_tells_how_much_its_reads_bring_and_whether_they_fill_its_buffer() -> None:
    harness = Harness()
    index = SubscriptionIndex()
    stream = ServiceSink(lambda *message: harness.trigger.schedule())
    index.insert(SinkSubscription(stream, b"a"))
    ingress = Ingress(harness.owners[0].sink, index)
    ingress.trigger, ingress.is_direct = harness.trigger, True
    publish = b"PUB a 1\r\nx\r\n"

    def read(data: bytes) -> None:
        with ingress.parser.get_buffer() as room:
            room[: len(data)] = data
        ingress.received(len(data))

    read(publish * (WORK_MAX // MESSAGE_WORK + 1))
    assert harness.ends == [(True, ())], "much work ends the tick that was scheduled"
    harness.iterate()
    assert harness.trigger.at_once == AT_ONCE_MAX
    harness.ends.clear()
    read(publish)
    assert harness.ends == [(True, ())], "it comes alone"
    with ingress.parser.get_buffer() as room:
        size = len(room)
    read(publish + b"PUB b %d\r\n" % size + b"x" * (size - len(publish) - 8 - len(str(size))))
    assert (len(harness.ends), harness.trigger.scheduled) == (1, True), "there is more behind it"
