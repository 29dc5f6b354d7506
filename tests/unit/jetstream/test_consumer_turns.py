"""Many consumers of one stream share what their receivers take: none starves beside the others."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream import engine_tick as tick
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.consumer.fair_scheduler import QUANTUM_MIN, TICK_MESSAGES, FairScheduler
from penstock.kernels.wire.dispatch import ClientSink, publish
from penstock.kernels.wire.frames import FrameParser
from penstock.kernels.wire.sinks import DirtyList, SinkSubscription
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("consumer.fair-turns")

CONSUMERS = 20


@dataclass(eq=False)
class Served:
    turn: int = 0
    messages: int = 0


def test_the_shares_of_a_tick_get_smaller_with_the_consumers_in_it() -> None:
    assert FairScheduler().quantum(0) == FairScheduler().quantum(1) == TICK_MESSAGES
    assert FairScheduler().quantum(100) == TICK_MESSAGES // 100
    assert FairScheduler().quantum(100_000) == QUANTUM_MIN


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=200),
    st.permutations(range(30)),
)
def test_those_that_are_always_busy_are_never_apart_by_more_than_one_share(
    busy: int, ticks: list[tuple[int, int]], order: list[int]
) -> None:
    """Each tick there is room for a few of them only, and they come in any order."""
    turns = FairScheduler()
    consumers = [Served() for _ in range(busy)]
    for room, share in ticks:
        asked = [consumers[i] for i in order if i < busy]
        for consumer in turns.in_order(asked)[:room]:
            consumer.messages += share
            consumer.turn = turns.delivered(consumer.turn, share)
    counts = [one.messages for one in consumers]
    assert max(counts) - min(counts) <= 2 * max(share for _, share in ticks)


def test_who_was_idle_is_not_served_first_for_what_it_missed() -> None:
    turns = FairScheduler()
    busy, idle = Served(), Served()
    for _ in range(100):
        busy.turn = turns.delivered(busy.turn, 10)
    idle.turn = turns.delivered(idle.turn, 10)
    assert busy.turn - idle.turn <= 10


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
    monkeypatch.setattr(tick, "CONSUMERS_TICK", 10)
    js, served = crowded(35)
    assert max(served) == 10 and sum(served) == 35
    wakes = js.wakes
    js.tick()
    assert js.wakes == wakes  # nobody is left


def test_a_timer_works_on_only_so_many_deadlines_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick, "CONSUMERS_TICK", 10)
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
    monkeypatch.setattr(tick, "CONSUMERS_TICK", 10)
    js = EngineHarness()
    js.create("S", "s", max_consumers=35)
    written: list[str] = []
    confirmed: list[str] = []
    write, confirm = ConsumerReplica.write, ConsumerReplica.confirm
    monkeypatch.setattr(ConsumerReplica, "write", lambda self: (written.append(self.name), write(self))[1])
    monkeypatch.setattr(
        ConsumerReplica, "confirm", lambda self: (confirmed.append(self.name), confirm(self))[1]
    )
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
    confirmed.clear()
    while len(heard) < 35:
        before = len(confirmed)
        js.tick()
        assert len(confirmed) - before <= 10
        assert set(confirmed[before:]) <= set(written)
    assert all(consumer.state.num_pending == 0 for consumer in js.engine.streams["S"].consumers.values())
