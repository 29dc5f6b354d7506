"""The work of a tick that has little to do. Python calls are counted: most of its time is spent on them.

A client that publishes one message and waits for its ack has a tick for each: these calls set its rate.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness

CALLS_MAX = 44  # there are 40; 80 when each boundary of containment was a call with a function to call


def calls_of_a_publish(js: EngineHarness) -> int:
    """Python functions of the product that are called to store a message, to ack it and to set the timer."""
    publish(js.index, b"s", b"reply", b"", b"x")
    js.tick()  # what is done only once is done
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call" and "/src/penstock/" in frame.f_code.co_filename

    acks = js.listen(b"reply")
    publish(js.index, b"s", b"reply", b"", b"x")
    sys.setprofile(count)
    try:
        js.tick()
        js.engine.tick.next_deadline()
    finally:
        sys.setprofile(None)
    assert len(acks) == 1
    return calls


def test_a_publish_that_is_alone_in_its_tick_takes_few_calls() -> None:
    js = EngineHarness()
    js.create("S", "s")
    assert calls_of_a_publish(js) <= CALLS_MAX


def test_streams_and_consumers_without_work_take_no_calls() -> None:
    js = EngineHarness()
    js.create("S", "s")
    alone = calls_of_a_publish(js)
    for i in range(50):
        js.create(f"T{i}", f"t.{i}")
        config = {"durable_name": "c", "ack_policy": "explicit"}
        js.api(f"CONSUMER.DURABLE.CREATE.T{i}.c", {"stream_name": f"T{i}", "config": config})
    assert calls_of_a_publish(js) == alone
