"""The work of a tick that has little to do. Python calls are counted: most of its time is spent on them.

A client that publishes one message and waits for its ack has a tick for each. One that fetches messages one
by one has two, for its request and for its ack. These calls set their rates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from tests.support.engine import EngineHarness

# There are 30; 80 when each boundary of containment was a call with a function to call.
PUBLISH_CALLS_MAX = 32
# There are 102; 162 with a call for each part that may have something to do, and finds nothing.
FETCH_CALLS_MAX = 112


def calls_of(work: Callable[[], object]) -> int:
    """Python functions of the product that are called in the second run; in the first, what is done only once
    is done."""
    work()
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call" and "/src/penstock/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def end_of_tick(js: EngineHarness) -> None:
    """The end of a tick, behind which the server sets its timer."""
    js.tick()
    js.engine.tick.next_deadline()


def calls_of_a_publish(js: EngineHarness) -> int:
    """Calls to store a message, to ack it and to set the timer."""
    acks = js.listen(b"reply")

    def work() -> None:
        publish(js.index, b"s", b"reply", b"", b"x")
        end_of_tick(js)

    calls = calls_of(work)
    assert len(acks) == 2
    return calls


def calls_of_a_fetch(js: EngineHarness) -> int:
    """Calls to take a request for one message of consumer c of stream S, to deliver the message, and to apply
    its ack."""
    delivered: list[bytes] = []

    def hear(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None) -> None:
        delivered.append(reply)

    js.index.insert(SinkSubscription(ServiceSink(hear), b"inbox"))

    def work() -> None:
        body = b'{"batch":1,"expires":5000000000}'
        publish(js.index, b"$JS.API.CONSUMER.MSG.NEXT.S.c", b"inbox", b"", body)
        end_of_tick(js)
        publish(js.index, delivered[-1], b"", b"", b"+ACK")
        end_of_tick(js)

    calls = calls_of(work)
    assert len(delivered) == 2
    assert js.api("CONSUMER.INFO.S.c")["ack_floor"]["stream_seq"] == 2
    return calls


def create_consumer(js: EngineHarness, stream: str) -> None:
    """The durable pull consumer c."""
    config = {"durable_name": "c", "ack_policy": "explicit"}
    js.api(f"CONSUMER.DURABLE.CREATE.{stream}.c", {"stream_name": stream, "config": config})


def test_a_publish_that_is_alone_in_its_tick_takes_few_calls() -> None:
    js = EngineHarness()
    js.create("S", "s")
    assert calls_of_a_publish(js) <= PUBLISH_CALLS_MAX


def test_a_fetch_of_one_message_with_its_ack_takes_few_calls() -> None:
    js = EngineHarness()
    js.create("S", "s")
    create_consumer(js, "S")
    for _ in range(3):
        publish(js.index, b"s", b"", b"", b"x")
    js.tick()
    assert calls_of_a_fetch(js) <= FETCH_CALLS_MAX


def test_streams_and_consumers_without_work_take_no_calls() -> None:
    js = EngineHarness()
    js.create("S", "s")
    alone = calls_of_a_publish(js)
    for i in range(50):
        js.create(f"T{i}", f"t.{i}")
        create_consumer(js, f"T{i}")
    assert calls_of_a_publish(js) == alone
