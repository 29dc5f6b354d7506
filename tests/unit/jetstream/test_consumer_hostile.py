"""Reply and deliver subjects that point back into the server: nothing runs in the middle of a tick."""

from __future__ import annotations

import pytest

from penstock.kernels.wire.dispatch import publish
from tests.support.consumers import SECOND, ConsumerBench

pytestmark = pytest.mark.feature("stream.api-errors")

DESTRUCTIVE = ("CONSUMER.DELETE.S.x", "STREAM.PURGE.S", "STREAM.DELETE.S", "CONSUMER.MSG.NEXT.S.x")


@pytest.mark.parametrize("request_subject", DESTRUCTIVE)
def test_a_pub_ack_sent_to_the_api_is_a_request_of_the_next_tick(request_subject: str) -> None:
    bench = ConsumerBench()
    bench.consumer("x")
    bench.consumer("y")
    publish(bench.index, b"s.1", b"$JS.API." + request_subject.encode(), b"", b"")
    bench.tick()
    bench.tick()


@pytest.mark.parametrize("request_subject", DESTRUCTIVE)
def test_a_confirmation_sent_to_the_api_is_one_as_well(request_subject: str) -> None:
    bench = ConsumerBench()
    bench.store_messages("s.1", "s.2")
    bench.consumer("x")
    bench.consumer("y")
    messages = bench.pull("x", b"2").take() + bench.pull("y", b"2").take()
    for message in messages:
        bench.ack(message, b"", b"$JS.API." + request_subject.encode())
    bench.tick()
    bench.tick()


@pytest.mark.parametrize("request_subject", DESTRUCTIVE)
@pytest.mark.parametrize("body", [b"5", b'{"batch":5,"max_bytes":60}', b'{"batch":5,"expires":1000000000}'])
def test_messages_and_statuses_sent_to_the_api_are_requests_too(request_subject: str, body: bytes) -> None:
    bench = ConsumerBench()
    bench.consumer("x")
    bench.consumer("y")
    inbox = bench.pull("y", b"9")
    target = b"$JS.API." + request_subject.encode()
    for name in ("x", "y"):
        publish(bench.index, f"$JS.API.CONSUMER.MSG.NEXT.S.{name}".encode(), target, b"", body)
    bench.store_messages(*["s.1"] * 20, payload=b"x" * 10)
    for _ in range(3):
        bench.tick()
    bench.pass_time(2 * SECOND)
    assert inbox.take()[0].seq == 1


@pytest.mark.parametrize("request_subject", DESTRUCTIVE)
def test_a_push_consumer_may_deliver_to_the_api(request_subject: str) -> None:
    bench = ConsumerBench()
    bench.define("x", deliver_subject="$JS.API." + request_subject, ack_policy="none", idle_heartbeat=SECOND)
    bench.consumer("y")
    inbox = bench.pull("y", b"9")
    bench.store_messages(*["s.1"] * 20)
    for _ in range(3):
        bench.tick()
    bench.pass_time(3 * SECOND)
    assert inbox.take()[0].seq == 1


def test_what_is_delivered_into_a_stream_has_the_deliver_subject_there() -> None:
    bench = ConsumerBench()
    bench.create("T", "t.>")
    bench.define("x", deliver_subject="t.here", ack_policy="none")
    bench.store_messages("s.1", "s.2")
    bench.tick()
    bench.tick()
    assert bench.state("T", subjects_filter=">")["subjects"] == {"t.here": 2}


def test_a_reply_to_an_ack_subject_acks_nothing() -> None:
    bench = ConsumerBench()
    bench.store_messages("s.1", "s.2")
    bench.consumer("x")
    bench.pull("x", b"1")
    target = b"$JS.ACK.S.x.1.1.1.1.0"
    publish(bench.index, b"$JS.API.CONSUMER.MSG.NEXT.S.x", target, b"", b"1")
    bench.tick()
    bench.tick()
    assert bench.floors("x")[0] == 2


@pytest.mark.parametrize("delay", [b'{"delay":9223372036854775807}', b"2562047h"])
def test_a_message_may_be_refused_for_longer_than_a_clock_can_say(delay: bytes) -> None:
    bench = ConsumerBench()
    bench.store_messages("s.1", "s.2")
    bench.consumer("x")
    refused, other = bench.pull("x", b"2").take()
    bench.ack(refused, b"-NAK " + delay)
    bench.ack(other, b"+ACK")
    bench.tick()
    bench.pass_time(2 * SECOND)
    assert bench.info("x")["num_ack_pending"] == 1
