"""Sources and mirrors that read their origin by a durable consumer that another client made (ADR-60)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.jetstream.durability import Durability
from tests.support.consumers import SECOND
from tests.support.engine import EngineHarness

pytestmark = pytest.mark.feature("sourcing.durable-consumer")

BY_CONSUMER = {"name": "O", "consumer": {"name": "c", "deliver_subject": "d.c"}}


def settle(js: EngineHarness) -> None:
    """Everything that follows from what was asked, but for what waits for time to pass."""
    for _ in range(12):
        js.tick()


def durable(js: EngineHarness, **config: Any) -> Any:
    settings = {"durable_name": "c", "ack_policy": "flow_control", "deliver_subject": "d.c", **config}
    return js.api("CONSUMER.CREATE.O.c", {"stream_name": "O", "config": settings})


def info(js: EngineHarness) -> Any:
    return js.api("CONSUMER.INFO.O.c")


def payloads(js: EngineHarness, name: str) -> list[bytes]:
    log = js.engine.streams[name].log
    found, seq = [], log.next_seq(1)
    while seq:
        one = log.load(seq)
        assert one is not None
        found.append(one.payload)
        seq = log.next_seq(seq + 1)
    return found


def source_error(js: EngineHarness, name: str = "S") -> Any:
    reported = js.api(f"STREAM.INFO.{name}")
    return (reported.get("mirror") or reported["sources"][0]).get("error")


def publish(js: EngineHarness, first: int, upto: int) -> None:
    for n in range(first, upto):
        js.request("o", b"%d" % n)


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
def test_a_source_takes_what_the_consumer_delivers_and_acks_what_is_stored(retention: str) -> None:
    js = EngineHarness()
    js.create("O", "o", retention=retention)
    assert "error" not in durable(js)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    settle(js)
    publish(js, 0, 6)
    settle(js)
    assert payloads(js, "S") == [b"%d" % n for n in range(6)]
    js.wait_until(js.now + 2 * SECOND)
    settle(js)
    reported = info(js)
    assert (reported["ack_floor"]["stream_seq"], reported["num_ack_pending"]) == (6, 0)
    assert js.state("O")["messages"] == (6 if retention == "limits" else 0)
    assert js.api("CONSUMER.NAMES.O")["consumers"] == ["c"]
    assert source_error(js) is None


def test_a_mirror_keeps_sequences_and_skips_what_the_consumer_passes_over() -> None:
    js = EngineHarness()
    js.create("O", "o.>")
    durable(js, filter_subject="o.a")
    for n in range(6):
        js.request("o.a" if n % 2 else "o.b", b"%d" % n)
    js.api("STREAM.CREATE.M", {"name": "M", "mirror": BY_CONSUMER})
    settle(js)
    assert payloads(js, "M") == [b"1", b"3", b"5"]
    assert (js.state("M")["last_seq"], js.state("M")["first_seq"]) == (6, 2)


def test_what_came_after_the_last_ack_comes_again_and_is_stored_once() -> None:
    js = EngineHarness()
    js.create("O", "o")
    durable(js)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    settle(js)
    publish(js, 0, 5)
    settle(js)
    assert info(js)["ack_floor"]["stream_seq"] == 0  # nothing asked for acks yet
    again = js.restart()
    settle(again)
    publish(again, 5, 7)
    again.wait_until(again.now + 3 * SECOND)
    settle(again)
    assert payloads(again, "S") == [b"%d" % n for n in range(7)]
    assert info(again)["ack_floor"]["stream_seq"] == 7


def test_nothing_is_acked_before_the_copy_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    js = EngineHarness()
    js.create("O", "o", retention="workqueue")
    durable(js, max_ack_pending=2)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    settle(js)
    with monkeypatch.context() as patch:
        copy = js.engine.streams["S"].durability
        patch.setattr(Durability, "is_durable", property(lambda one: one is not copy))
        publish(js, 0, 2)  # asks for flow control at once
        settle(js)
        assert payloads(js, "S") == [b"0", b"1"]
        assert js.state("O")["messages"] == 2
    publish(js, 2, 3)
    js.wait_until(js.now + SECOND)  # the heartbeat names the request that waits
    settle(js)
    assert payloads(js, "S") == [b"0", b"1", b"2"]
    assert js.state("O")["first_seq"] == 3


def test_a_consumer_of_another_policy_is_refused_and_one_that_comes_later_is_found() -> None:
    js = EngineHarness()
    js.create("O", "o")
    publish(js, 0, 2)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    mirror = {"name": "O", "consumer": {"name": "c", "deliver_subject": "d.m"}}
    js.api("STREAM.CREATE.M", {"name": "M", "mirror": mirror})
    js.wait_until(js.now + 6 * SECOND)
    missing = source_error(js)
    assert (missing["err_code"], missing["description"]) == (
        10045,
        "no response from $JS.API.CONSUMER.RESET.O.c",
    )
    durable(js, ack_policy="none", flow_control=True, idle_heartbeat=SECOND)
    js.wait_until(js.now + 20 * SECOND)
    assert source_error(js)["err_code"] == 10217
    assert source_error(js, "M")["err_code"] == 10214
    js.api("CONSUMER.DELETE.O.c")
    durable(js)
    js.wait_until(js.now + 20 * SECOND)
    settle(js)
    assert source_error(js) is None
    assert payloads(js, "S") == [b"0", b"1"]


def test_another_stream_of_the_origins_name_is_read_from_its_beginning() -> None:
    js = EngineHarness()
    js.create("O", "o")
    durable(js)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    settle(js)
    publish(js, 0, 3)
    settle(js)
    js.api("STREAM.DELETE.O")
    js.now += 1
    js.create("O", "o")
    durable(js)
    publish(js, 3, 5)
    js.wait_until(js.now + 30 * SECOND)
    settle(js)
    assert payloads(js, "S") == [b"%d" % n for n in range(5)]


def test_the_consumer_stays_when_the_stream_that_read_it_goes() -> None:
    js = EngineHarness()
    js.create("O", "o")
    durable(js)
    js.api("STREAM.CREATE.S", {"name": "S", "sources": [BY_CONSUMER]})
    settle(js)
    js.api("STREAM.DELETE.S")
    settle(js)
    assert js.api("CONSUMER.NAMES.O")["consumers"] == ["c"]
