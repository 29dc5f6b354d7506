"""Ack sampling: metrics about how long acks took."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.consumers import MS, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.sampling")

SUBJECT = b"$JS.EVENT.METRIC.CONSUMER.ACK.S.c"


def metrics(inbox: Inbox) -> list[Any]:
    return [json.loads(message.payload) for message in inbox.take()]


def acked(bench: ConsumerHarness, count: int, body: bytes = b"") -> None:
    messages = bench.pull("c", {"batch": count}).take()
    bench.pass_time(25 * MS)
    for message in messages:
        bench.ack(message, body)
    bench.tick()


@pytest.mark.parametrize("body", [b"", b"+ACK", b"+NXT"])
def test_every_ack_is_sampled_at_a_hundred_percent(body: bytes) -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, SUBJECT)
    bench.store_messages("s.1", "s.2")
    bench.consumer("c", sample_freq="100%")
    acked(bench, 2, body)
    got = metrics(inbox)
    assert [(one["stream_seq"], one["consumer_seq"], one["deliveries"]) for one in got] == [
        (1, 1, 1),
        (2, 2, 1),
    ]
    assert {one["ack_time"] for one in got} == {25 * MS}
    assert got[0]["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert (got[0]["stream"], got[0]["consumer"]) == ("S", "c")


def test_a_quarter_of_the_acks_is_sampled_at_25_percent() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, SUBJECT)
    bench.store_messages(*["s.x"] * 40)
    bench.consumer("c", sample_freq="25")
    acked(bench, 40)
    assert len(metrics(inbox)) == 10


def test_nothing_is_gathered_while_no_client_listens() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1")
    consumer = bench.consumer("c", sample_freq="100")
    acked(bench, 1)
    assert consumer.acks.samples == []


def test_an_ack_of_what_is_not_pending_is_no_sample() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, SUBJECT)
    bench.store_messages("s.1")
    bench.consumer("c", sample_freq="100")
    message = bench.pull("c", {"batch": 1}).take()[0]
    bench.ack(message)
    bench.ack(message)
    bench.tick()
    assert len(metrics(inbox)) == 1
