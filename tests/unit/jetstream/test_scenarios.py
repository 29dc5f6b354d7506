"""The scenarios of the JetStream model's description, step by step, with their counters.

The old text prints the *next* sequence as "last delivered"; modern infos print the last one delivered, so
those numbers are one lower here. All other counters are as printed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.kernels.wire.dispatch import publish
from tests.support.consumers import MS, SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.counters")

ORDERS = {"subjects": ["ORDERS.*"]}
MINUTE = 60 * SECOND


def orders() -> ConsumerHarness:
    return ConsumerHarness(stream=ORDERS)


def state(bench: ConsumerHarness) -> dict[str, Any]:
    answer: dict[str, Any] = bench.request("$JS.API.STREAM.INFO.S")["state"]
    return answer


def counters(bench: ConsumerHarness, name: str) -> tuple[tuple[int, int], tuple[int, int], int, int]:
    """(last delivered, ack floor, pending acks, redelivered), each sequence as (consumer, stream)."""
    info = bench.info(name)
    delivered, floor = info["delivered"], info["ack_floor"]
    return (
        (delivered["consumer_seq"], delivered["stream_seq"]),
        (floor["consumer_seq"], floor["stream_seq"]),
        info["num_ack_pending"],
        info["num_redelivered"],
    )


def publish_order(bench: ConsumerHarness, n: int) -> None:
    bench.store_messages("ORDERS.processed", payload=b"order %d" % n)


def next_order(bench: ConsumerHarness, name: str, *, ack: bool = True) -> bytes:
    message = bench.pull(name, b"1").take()[0]
    if ack:
        bench.ack(message)
        bench.tick()
    return message.payload


def test_the_walkthrough_of_acknowledgements() -> None:
    bench = orders()
    bench.consumer("DISPATCH", durable_name="DISPATCH", ack_wait=SECOND)
    empty = state(bench)
    assert (empty["messages"], empty["bytes"], empty["first_seq"], empty["last_seq"]) == (0, 0, 0, 0)
    assert empty["consumer_count"] == 1
    assert counters(bench, "DISPATCH") == ((0, 0), (0, 0), 0, 0)
    publish_order(bench, 4)
    one = state(bench)
    assert (one["messages"], one["bytes"], one["first_seq"], one["last_seq"]) == (1, 53, 1, 1)
    assert next_order(bench, "DISPATCH") == b"order 4"
    assert counters(bench, "DISPATCH") == ((1, 1), (1, 1), 0, 0)
    publish_order(bench, 5)
    assert next_order(bench, "DISPATCH", ack=False) == b"order 5"
    assert counters(bench, "DISPATCH") == ((2, 2), (1, 1), 1, 0)
    bench.pass_time(2 * SECOND)
    assert next_order(bench, "DISPATCH", ack=False) == b"order 5"
    assert counters(bench, "DISPATCH") == ((3, 2), (1, 1), 1, 1)
    bench.pass_time(2 * SECOND)
    assert next_order(bench, "DISPATCH") == b"order 5"
    delivered, _, pending, redelivered = counters(bench, "DISPATCH")
    assert (delivered, pending, redelivered) == ((4, 2), 0, 0)


@pytest.mark.feature("stream.deduplication", "stream.duplicate-window")
def test_the_walkthrough_of_deduplication() -> None:
    """Four publishes with one id leave the first message, 67 bytes."""
    bench = orders()
    inbox = bench.inbox()
    header = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    for n in range(1, 5):
        publish(bench.index, b"ORDERS.new", inbox.subject, header, b"hello%d" % n)
        bench.tick()
    acks = [json.loads(message.payload) for message in inbox.take()]
    assert [(ack["seq"], ack.get("duplicate", False)) for ack in acks] == [
        (1, False), (1, True), (1, True), (1, True),
    ]  # fmt: skip
    held = state(bench)
    assert held["messages"] == 1
    # The text's 67 bytes are those of the client's header without a space behind the colon.
    assert held["bytes"] == 4 + 8 + 8 + 2 + len("ORDERS.new") + 4 + len(header) + len("hello1") + 8


@pytest.mark.feature("stream.size-accounting")
def test_hello_on_a_subject_of_four_characters_takes_39_bytes() -> None:
    bench = ConsumerHarness(stream={"subjects": ["four"]})
    bench.store_messages("four", payload=b"hello")
    assert state(bench)["bytes"] == 39


@pytest.mark.feature("consumer.deliver-policy", "consumer.start-once")
@pytest.mark.parametrize(
    ("name", "start", "first"),
    [
        ("ALL", {"deliver_policy": "all"}, b"order 1"),
        ("LAST", {"deliver_policy": "last"}, b"order 100"),
        ("TEN", {"deliver_policy": "by_start_sequence", "opt_start_seq": 10}, b"order 10"),
    ],
)
def test_the_walkthrough_of_starting_positions(name: str, start: dict[str, Any], first: bytes) -> None:
    """Where it starts is only the first message; then it goes on."""
    bench = orders()
    for n in range(1, 101):
        publish_order(bench, n)
    bench.consumer(name, durable_name=name, filter_subject="ORDERS.processed", ack_policy="none", **start)
    assert next_order(bench, name, ack=False) == first
    publish_order(bench, 101)
    after = bench.restarted()
    following = b"order 101" if name == "LAST" else b"order %d" % (int(first.split()[1]) + 1)
    assert next_order(after, name, ack=False) == following


def test_the_walkthrough_of_a_start_two_minutes_ago() -> None:
    from penstock.protocol.durations import format_time

    bench = orders()
    for n in range(1, 4):
        publish_order(bench, n)
        bench.pass_time(MINUTE)
    at = format_time(bench.now - 2 * MINUTE)
    bench.consumer(
        "2MIN", durable_name="2MIN", ack_policy="none", deliver_policy="by_start_time", opt_start_time=at
    )
    assert next_order(bench, "2MIN", ack=False) == b"order 2"


@pytest.mark.feature("consumer.durable-ephemeral")
def test_the_walkthrough_of_an_ephemeral_monitor() -> None:
    """It lives as long as its subject has a subscriber, and a short grace period more."""
    bench = orders()
    for n in range(1, 4):
        publish_order(bench, n)
    monitor = Inbox(bench, b"my.monitor")
    bench.consumer("m", ack_policy="none", deliver_policy="last", deliver_subject="my.monitor")
    bench.tick()
    assert [message.payload for message in monitor.take()] == [b"order 3"]
    bench.pass_time(MINUTE)
    assert bench.info("m")["push_bound"]
    monitor.close()
    bench.tick()
    bench.pass_time(4 * SECOND)
    assert "error" not in bench.info("m")
    bench.pass_time(4 * SECOND)
    assert bench.info("m")["error"]["err_code"] == 10014


@pytest.mark.feature("consumer.replay-policy")
def test_the_walkthrough_of_replay_in_the_original_pace() -> None:
    """Messages stored ten seconds apart come ten seconds apart."""
    bench = orders()
    for n in range(1, 4):
        publish_order(bench, n)
        bench.pass_time(10 * SECOND)
    out = Inbox(bench, b"out.original")
    bench.consumer(
        "REPLAY",
        ack_policy="none",
        deliver_subject="out.original",
        replay_policy="original",
        sample_freq="100",
    )
    bench.tick()
    arrived = []
    for second in range(30):
        arrived += [(second, message.payload) for message in out.take()]
        bench.pass_time(SECOND)
    assert arrived == [(0, b"order 1"), (10, b"order 2"), (20, b"order 3")]


@pytest.mark.feature("consumer.ack-next")
@pytest.mark.parametrize(
    ("body", "wanted"), [(b"+NXT", 1), (b"+NXT 10", 10), (b'+NXT {"batch":3,"no_wait":true}', 3)]
)
def test_the_walkthrough_of_acks_that_ask_for_more(body: bytes, wanted: int) -> None:
    bench = orders()
    for n in range(20):
        publish_order(bench, n)
    bench.consumer("c")
    message = bench.pull("c", b"1").take()[0]
    inbox = bench.inbox()
    bench.ack(message, body, inbox.subject)
    bench.tick()
    got = inbox.take()
    assert [one.seq for one in got if not one.status] == list(range(2, 2 + wanted))
    assert bench.floors("c")[2:] == (1, 1)


@pytest.mark.feature("consumer.ack-sync")
@pytest.mark.parametrize("body", [b"", b"+ACK", b"-NAK", b"+WPI", b"+TERM"])
def test_every_acknowledgement_but_next_is_itself_acknowledged(body: bytes) -> None:
    bench = orders()
    publish_order(bench, 1)
    bench.consumer("c", ack_wait=100 * MS)
    message = bench.pull("c", b"1").take()[0]
    inbox = bench.inbox()
    bench.ack(message, body, inbox.subject)
    assert inbox.take() == []
    bench.tick()
    (confirmation,) = inbox.take()
    assert (confirmation.header, confirmation.payload) == (b"", b"")
