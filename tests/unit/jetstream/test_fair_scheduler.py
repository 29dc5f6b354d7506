"""Many consumers of one stream share what their receivers take: none starves beside the others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.jetstream import pending_work
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.fair_scheduler import (
    ALONE_MESSAGES,
    QUANTUM_MIN,
    TICK_MESSAGES,
    FairScheduler,
)
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import FrameParser
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("consumer.fair-scheduling")

CONSUMERS = 20


@dataclass(eq=False)
class Delivery:
    position: int = 0


@dataclass(eq=False)
class Served:
    delivery: Delivery = field(default_factory=Delivery)
    messages: int = 0


def test_the_shares_of_a_tick_get_smaller_with_the_consumers_in_it() -> None:
    assert FairScheduler().quantum(0) == FairScheduler().quantum(1) == ALONE_MESSAGES
    assert FairScheduler().quantum(100) == TICK_MESSAGES // 100
    assert FairScheduler().quantum(100_000) == QUANTUM_MIN


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, QUANTUM_MIN)), min_size=1, max_size=200),
    st.permutations(range(30)),
)
@example(busy=6, ticks=[(2, 5), (5, 1), (2, 1), (5, 3), (5, 1), (1, 5)], order=list(range(30)))
def test_none_that_is_always_busy_gets_less_than_half_of_what_another_gets(
    busy: int, ticks: list[tuple[int, int]], order: list[int]
) -> None:
    """Each tick there is room for a few of them only, and they come in any order."""
    scheduler = FairScheduler()
    consumers = [Served() for _ in range(busy)]
    for room, share in ticks:
        asked = [consumers[i] for i in order if i < busy]
        for consumer in scheduler.in_order(asked)[:room]:
            consumer.messages += share
            consumer.delivery.position = scheduler.delivered(consumer.delivery.position, share)
    counts = [one.messages for one in consumers]
    assert max(counts) < 2 * min(counts) + 3 * QUANTUM_MIN


def test_equal_room_is_shared_equally() -> None:
    scheduler = FairScheduler()
    consumers = [Served() for _ in range(7)]
    for _ in range(7 * QUANTUM_MIN):
        for consumer in scheduler.in_order(consumers)[:3]:
            consumer.messages += 5
            consumer.delivery.position = scheduler.delivered(consumer.delivery.position, 5)
    counts = [one.messages for one in consumers]
    assert max(counts) - min(counts) <= QUANTUM_MIN + 5


def test_who_was_idle_is_served_first_for_one_quantum_only() -> None:
    scheduler = FairScheduler()
    busy, idle = Served(), Served()
    for _ in range(100):
        busy.delivery.position = scheduler.delivered(busy.delivery.position, QUANTUM_MIN)
    assert scheduler.in_order([busy, idle]) == [idle, busy]
    idle.delivery.position = scheduler.delivered(idle.delivery.position, QUANTUM_MIN - 1)
    assert scheduler.in_order([busy, idle]) == [idle, busy]
    idle.delivery.position = scheduler.delivered(idle.delivery.position, 1)
    assert scheduler.in_order([idle, busy]) == [busy, idle]


def test_what_exceeds_a_quantum_counts_towards_the_next_one() -> None:
    scheduler = FairScheduler()
    one, other = Served(), Served()
    one.delivery.position = scheduler.delivered(0, QUANTUM_MIN + 5)
    other.delivery.position = scheduler.delivered(0, QUANTUM_MIN)
    one.delivery.position = scheduler.delivered(one.delivery.position, QUANTUM_MIN - 5)
    assert scheduler.in_order([one, other]) == [other, one]


def counts(parser: FrameParser, sink: ClientSink, served: dict[int, int]) -> list[bytes]:
    """Counts what a connection took, by its sids; the ack subjects."""
    parser.feed(sink.take())
    replies = []
    for sid, _, reply, _, _ in parser.next_batch():
        if reply:
            served[sid] += 1
            replies.append(reply)
    return replies


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
@pytest.mark.parametrize("is_push", [False, True])
def test_consumers_that_deliver_to_one_slow_connection_get_equal_parts(
    ack_policy: str, is_push: bool
) -> None:
    harness = EngineHarness()
    harness.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    sink = ClientSink(DirtyList())
    sink.stall_threshold = 3000  # some thirty messages
    for i in range(CONSUMERS):
        harness.index.insert(SinkSubscription(sink, b"in.%d" % i, b"", b"%d" % i))
        config = {"name": f"c{i}", "durable_name": f"c{i}", "ack_policy": ack_policy, "max_ack_pending": -1}
        if is_push:
            config["deliver_subject"] = f"in.{i}"
        body = {"stream_name": "S", "config": config}
        harness.request(f"$JS.API.CONSUMER.CREATE.S.c{i}", body)
        if not is_push:
            ask = json.dumps({"batch": 10_000, "expires": 10**12}).encode()
            publish(harness.index, b"$JS.API.CONSUMER.MSG.NEXT.S.c%d" % i, b"in.%d" % i, b"", ask)
    for _ in range(1000):
        publish(harness.index, b"s", b"", b"", b"x" * 30)
    harness.tick()
    served = dict.fromkeys(range(CONSUMERS), 0)
    parser = FrameParser()
    ticks = 0
    while sum(served.values()) < 1000 * CONSUMERS // 2:
        acks = counts(parser, sink, served)
        if ticks % 2 and ack_policy != "none":
            # What was delivered is acked before the connection says that it has room: no way to the front.
            for reply in acks:
                publish(harness.index, reply, b"", b"", b"")
            harness.tick()
        sink.drained()
        harness.tick()
        ticks += 1
        assert ticks < 2000
    assert min(served.values()) > 0
    assert max(served.values()) / min(served.values()) <= 1.5
    while sum(served.values()) < 1000 * CONSUMERS:
        counts(parser, sink, served)
        sink.drained()
        harness.tick()
        ticks += 1
        assert ticks < 4000
    assert set(served.values()) == {1000}


@pytest.mark.parametrize("ack_policy", ["none", "explicit"])
def test_a_fast_connection_does_not_take_the_turns_of_those_that_share_a_slow_one(ack_policy: str) -> None:
    """The consumer of the fast connection is far ahead of all others, which must not make them equal."""
    harness = EngineHarness()
    harness.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s", "t"]})
    fast, slow = ClientSink(DirtyList()), ClientSink(DirtyList())
    slow.stall_threshold = 3000  # some thirty messages
    harness.index.insert(SinkSubscription(fast, b"in.fast", b"", b"100"))
    for i in range(CONSUMERS):
        harness.index.insert(SinkSubscription(slow, b"in.%d" % i, b"", b"%d" % i))
    for name, subject in [("fast", "t"), *((str(i), "s") for i in range(CONSUMERS))]:
        config = {
            "durable_name": f"c{name}", "ack_policy": ack_policy, "deliver_subject": f"in.{name}",
            "filter_subject": subject, "max_ack_pending": -1,
        }  # fmt: skip
        harness.request(f"$JS.API.CONSUMER.CREATE.S.c{name}", {"stream_name": "S", "config": config})
    for _ in range(1000):
        publish(harness.index, b"s", b"", b"", b"x" * 30)
    harness.tick()
    served = dict.fromkeys(range(CONSUMERS), 0)
    parser = FrameParser()
    ticks = 0
    while sum(served.values()) < 1000 * CONSUMERS // 2:
        acks = counts(parser, slow, served)
        for _ in range(1000):
            publish(harness.index, b"t", b"", b"", b"")
        for reply in acks if ack_policy != "none" else ():
            publish(harness.index, reply, b"", b"", b"")
        harness.tick()
        fast.take()
        slow.drained()
        harness.tick()
        ticks += 1
        assert ticks < 2000
    assert max(served.values()) / max(min(served.values()), 1) <= 1.5, served


def crowded(count: int) -> tuple[EngineHarness, list[int]]:
    """Consumers that each wait for a message, and how many are served in each tick once one comes."""
    js = EngineHarness()
    js.create("S", "s", max_consumers=count)
    heard = js.listen(b"served.*")
    for n in range(count):
        config = {"name": f"C{n}", "deliver_subject": f"served.{n}", "ack_policy": "none"}
        js.api(f"CONSUMER.CREATE.S.C{n}", {"stream_name": "S", "config": config})
    publish(js.index, b"s", b"", b"", b"x")
    served = []
    while len(heard) < count:
        before = len(heard)
        js.tick()
        served.append(len(heard) - before)
    return js, served


def test_a_tick_serves_only_so_many_consumers_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_work, "CONSUMERS_TICK", 10)
    js, served = crowded(35)
    assert max(served) == 10 and sum(served) == 35
    wakes = js.wakes
    js.tick()
    assert js.wakes == wakes  # no consumer is left


def test_a_timer_works_on_only_so_many_deadlines_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_work, "CONSUMERS_TICK", 10)
    js = EngineHarness()
    js.create("S", "s", max_consumers=35)
    for n in range(35):
        config = {"name": f"C{n}", "inactive_threshold": 1_000_000_000}
        js.api(f"CONSUMER.CREATE.S.C{n}", {"stream_name": "S", "config": config})
    present, left = js.engine.streams["S"].consumers, []
    js.now += 5_000_000_000
    while present:
        due = js.engine.tick.next_deadline()
        assert due is not None and due <= js.now
        before = len(present)
        js.engine.tick.on_time(js.now)
        js.tick()
        left.append(before - len(present))
    assert max(left) == 10 and sum(left) == 35


def test_acks_of_many_consumers_are_confirmed_after_they_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_work, "CONSUMERS_TICK", 10)
    js = EngineHarness()
    js.create("S", "s", max_consumers=35)
    written: list[str] = []
    write = ConsumerReplica.write
    monkeypatch.setattr(ConsumerReplica, "write", lambda self: (written.append(self.name), write(self))[1])
    for n in range(35):
        config = {"name": f"C{n}", "durable_name": f"C{n}", "ack_policy": "explicit"}
        js.api(f"CONSUMER.CREATE.S.C{n}", {"stream_name": "S", "config": config})
    js.request("s", b"x")
    answers = [js.messages(f"$JS.API.CONSUMER.MSG.NEXT.S.C{n}", {"batch": 1}) for n in range(35)]
    while not all(answers):
        js.tick()
    heard = js.listen(b"confirmed.*")
    for n in range(35):
        publish(js.index, b"$JS.ACK.S.C%d.1.1.1.%d.0" % (n, js.now), b"confirmed.%d" % n, b"", b"+ACK")
    written.clear()
    while len(heard) < 35:
        before = len(heard)
        js.tick()
        assert len(heard) - before <= 10
        assert {subject.replace(b"confirmed.", b"C").decode() for subject, _, _ in heard[before:]} <= set(
            written
        )
    assert all(consumer.state.num_pending == 0 for consumer in js.engine.streams["S"].consumers.values())
