"""Dead letters that move: what a consumer gives up is stored elsewhere, once, whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers
from tests.support.consumers import SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.dead-letters")

METADATA = {"penstock.dead_letter": "dead.orders"}


def bench_with_dead_stream(**config: Any) -> ConsumerHarness:
    bench = ConsumerHarness()
    bench.request("$JS.API.STREAM.CREATE.DEAD", {"name": "DEAD", "subjects": ["dead.>"]})
    bench.consumer("c", **{"max_deliver": 2, "ack_wait": SECOND, "metadata": METADATA, **config})
    return bench


def dead(bench: ConsumerHarness) -> list[Any]:
    for _ in range(4):
        bench.tick()
    log = bench.engine.streams["DEAD"].log
    return [log.load(seq) for seq in range(1, log.last_seq + 1)]


def deliver_until_given_up(bench: ConsumerHarness) -> None:
    for _ in range(2):
        bench.pull("c", {"batch": 10, "no_wait": True})
        bench.pass_time(1100 * 1_000_000)
    bench.pull("c", {"batch": 10, "no_wait": True})
    bench.tick()


def header_of(message: Any) -> dict[str, str]:
    return dict(headers.parse(message.header).headers)


def test_a_message_that_reached_max_deliver_moves_with_its_story() -> None:
    bench = bench_with_dead_stream()
    advisories = Inbox(bench, b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c")
    header = b"NATS/1.0\r\nColor: red\r\nNats-Msg-Id: order-7\r\n\r\n"
    publish(bench.index, b"s.orders", b"", header, b"the order")
    bench.tick()
    deliver_until_given_up(bench)
    (dead_letter,) = dead(bench)
    assert (dead_letter.subject, dead_letter.payload) == (b"dead.orders", b"the order")
    fields = header_of(dead_letter)
    created = bench.engine.streams["S"].consumers["c"].created
    assert fields.pop("Penstock-Dead-Letter-Time").endswith("Z")
    assert fields == {
        "Nats-Msg-Id": f"dead-letter.S.c.{created}.1",
        "Color": "red",
        "Penstock-Dead-Letter-Stream": "S",
        "Penstock-Dead-Letter-Consumer": "c",
        "Penstock-Dead-Letter-Subject": "s.orders",
        "Penstock-Dead-Letter-Sequence": "1",
        "Penstock-Dead-Letter-Deliveries": "2",
        "Penstock-Dead-Letter-Reason": "max_deliver",
        "Penstock-Dead-Letter-Msg-Id": "order-7",
    }
    event = json.loads(advisories.take()[0].payload)
    assert (event["stream_seq"], event["deliveries"]) == (1, 2)
    info = bench.info("c")
    assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 0)


def test_a_terminated_message_moves_with_the_reason() -> None:
    bench = bench_with_dead_stream()
    advisories = Inbox(bench, b"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c")
    bench.store_messages("s.1")
    message = bench.pull("c", {"batch": 1}).take()[0]
    bench.ack(message, b"+TERM no such customer")
    bench.tick()
    (dead_letter,) = dead(bench)
    assert header_of(dead_letter)["Penstock-Dead-Letter-Reason"] == "terminated: no such customer"
    event = json.loads(advisories.take()[0].payload)
    assert (event["stream_seq"], event["consumer_seq"], event["reason"]) == (1, 1, "no such customer")


def test_the_advisory_comes_only_after_the_letter_is_stored() -> None:
    bench = bench_with_dead_stream()
    advisories = Inbox(bench, b"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.c")
    bench.store_messages("s.1")
    bench.ack(bench.pull("c", {"batch": 1}).take()[0], b"+TERM")
    bench.tick()  # what is given up is written
    bench.engine.tick.apply(bench.now)  # the letter is published, not written
    assert advisories.take() == []
    for _ in range(3):
        bench.tick()
    assert len(advisories.take()) == 1


@pytest.mark.parametrize("ticks_before_the_crash", [0, 1, 2, 3])
@pytest.mark.parametrize("days_down", [0, 30])
def test_a_crash_at_any_time_leaves_exactly_one_letter(ticks_before_the_crash: int, days_down: int) -> None:
    bench = bench_with_dead_stream()
    bench.store_messages("s.1", "s.2")
    first, second = bench.pull("c", {"batch": 2}).take()
    bench.ack(first, b"+TERM")
    bench.ack(second)
    bench.engine.tick.apply(bench.now)
    bench.engine.tick.write()
    for _ in range(ticks_before_the_crash):
        bench.tick()
    bench.now += days_down * 86_400 * SECOND  # far beyond the duplicate window
    after = bench.restarted()
    after.tick()
    after.tick()
    assert [header_of(one)["Penstock-Dead-Letter-Sequence"] for one in dead(after)] == ["1"]
    assert after.info("c")["num_ack_pending"] == 0
    assert after.engine.streams["S"].consumers["c"].state.given_up() == []


def test_a_message_delivered_again_after_a_reset_is_not_settled_by_its_earlier_letter() -> None:
    bench = bench_with_dead_stream()
    bench.store_messages("s.1", "s.2")
    first, second = bench.pull("c", {"batch": 2}).take()
    bench.ack(first, b"+TERM")
    bench.ack(second)
    bench.tick()  # what is given up is written
    bench.engine.tick.apply(bench.now)  # the letter is published, not written
    bench.request("$JS.API.CONSUMER.RESET.S.c", {"seq": 1})
    again = bench.pull("c", {"batch": 2}).take()
    assert len(dead(bench)) == 1
    assert bench.info("c")["num_ack_pending"] == 2
    bench.ack(again[0], b"+TERM")
    assert len(dead(bench)) == 1  # it is there
    assert bench.info("c")["num_ack_pending"] == 1


def test_letters_wait_while_their_stream_refuses_them() -> None:
    bench = bench_with_dead_stream()
    full = {"name": "DEAD", "subjects": ["dead.>"], "max_msgs": 1, "discard": "new"}
    bench.request("$JS.API.STREAM.UPDATE.DEAD", full)
    bench.store_messages("dead.other", "s.1")
    bench.ack(bench.pull("c", {"batch": 1}).take()[0], b"+TERM")
    bench.tick()
    assert len(dead(bench)) == 1
    bench.request("$JS.API.STREAM.UPDATE.DEAD", {**full, "max_msgs": 5})
    bench.pass_time(6 * SECOND)
    assert [one.subject for one in dead(bench)] == [b"dead.other", b"dead.orders"]


def test_a_letter_of_a_message_that_is_gone_is_not_written() -> None:
    bench = bench_with_dead_stream()
    bench.store_messages("s.1")
    bench.ack(bench.pull("c", {"batch": 1}).take()[0], b"+TERM")
    bench.engine.streams["S"].log.remove(1)
    bench.tick()
    assert dead(bench) == []
    assert bench.engine.streams["S"].consumers["c"].state.given_up() == []


def test_what_was_given_up_before_moves_when_letters_are_asked_for() -> None:
    bench = bench_with_dead_stream(metadata={})
    bench.store_messages("s.1")
    deliver_until_given_up(bench)
    assert dead(bench) == []
    bench.consumer("c", max_deliver=2, ack_wait=SECOND, metadata=METADATA)
    bench.tick()
    bench.tick()
    assert len(dead(bench)) == 1


def test_many_letters_all_arrive() -> None:
    bench = bench_with_dead_stream(max_ack_pending=2000)
    bench.store_messages(*["s.x"] * 1000)
    for message in bench.pull("c", {"batch": 1000}).take():
        bench.ack(message, b"+TERM")
    for _ in range(20):
        bench.tick()
    assert [int(header_of(one)["Penstock-Dead-Letter-Sequence"]) for one in dead(bench)] == list(
        range(1, 1001)
    )


def test_a_client_can_not_pretend_that_a_letter_was_stored() -> None:
    bench = bench_with_dead_stream()
    consumer = bench.engine.streams["S"].consumers["c"]
    inbox = bench.inbox()
    publish(bench.index, b"$JS.DL.S.c.1", b"", b"", b'{"seq":1}', inbox._sink)
    assert consumer.dead_letters._answers == []


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"metadata": {"penstock.dead_letter": "dead..x"}}, "is not a valid subject to publish to"),
        ({"metadata": {"penstock.dead_letter": "dead.*"}}, "is not a valid subject to publish to"),
        ({"metadata": {"penstock.dead_letter": "s.dead"}}, "would be delivered by this consumer"),
        ({"metadata": {"penstock.dead_letter": "nobody.takes"}}, "create that stream first"),
        ({"ack_policy": "all"}, "needs ack policy explicit"),
    ],
)
def test_a_dead_letter_subject_that_can_not_work_is_refused(config: dict[str, Any], text: str) -> None:
    bench = bench_with_dead_stream()
    answer = bench.define("d", **{"ack_policy": "explicit", "metadata": METADATA, **config})
    assert answer["error"]["err_code"] == 10012
    assert text in answer["error"]["description"]
