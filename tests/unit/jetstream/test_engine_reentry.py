"""Messages that reach the API while the engine sends: requests wait, kernels keep what they send from."""

from __future__ import annotations

from typing import Any

from penstock.kernels.wire.dispatch import publish
from tests.support.engine import EngineHarness


def test_an_ack_sent_to_an_api_subject_is_a_request_of_the_next_tick() -> None:
    js = EngineHarness()
    js.create("S", "s")
    acks = js.listen(b"ack")
    for _ in range(2000):
        publish(js.index, b"s", b"$JS.API.STREAM.PURGE.S", b"", b"x" * 100)
        publish(js.index, b"s", b"ack", b"", b"x")
    js.tick()
    assert len(acks) == 2000
    requests = js.engine.api_stats.total
    js.tick()
    # (They are refused: a purge knows no field `stream`.)
    assert js.engine.api_stats.total == requests + 2000
    assert js.engine.streams["S"].log.messages == 4000


def test_messages_delivered_to_an_api_subject_change_the_stream_after_the_delivery() -> None:
    js = EngineHarness()
    js.create("S", "s")
    heard = js.listen(b"$JS.API.STREAM.PURGE.S")
    for _ in range(500):
        publish(js.index, b"s", b"", b"", b"")
    js.tick()
    config = {"deliver_subject": "$JS.API.STREAM.PURGE.S", "ack_policy": "none", "name": "c"}
    answer: Any = js.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
    assert "error" not in answer
    js.tick()
    assert len(heard) == 500  # all of them, though the first already asks for the purge
    js.tick()
    assert js.engine.streams["S"].log.messages == 0


def test_a_stream_recreated_in_one_tick_does_not_get_the_old_ones_messages() -> None:
    js = EngineHarness()
    js.create("S", "s")
    publish(js.index, b"s", b"", b"", b"old")
    stream = js.engine.streams["S"]
    js.engine.registry.delete("S")
    js.create("S", "s")
    js.tick()
    assert js.engine.streams["S"] is not stream
    assert js.engine.streams["S"].log.messages == 0
