"""Reply and deliver subjects that point back into the server: nothing runs in the middle of a tick."""

from __future__ import annotations

import json

import pytest

from penstock.kernels.wire.dispatch import publish
from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("stream.api-errors")

REFUSED = {"CONSUMER.DELETE.S.x": 10038, "STREAM.PURGE.S": 10025, "STREAM.DELETE.S": 10038}
"""Requests that are done when their body is empty, and the error when it is a payload meant for others."""


class Target:
    """An API subject as the destination of what the server sends: what arrived there, and what came of it."""

    def __init__(self, bench: ConsumerHarness, request: str) -> None:
        self.subject = f"$JS.API.{request}"
        self._bench = bench
        self._sent = bench.listen(self.subject.encode())
        self._advisories = bench.listen(b"$JS.EVENT.ADVISORY.API")

    @property
    def bodies(self) -> list[bytes]:
        """The payloads that were sent to it."""
        return [payload for _, _, payload in self._sent]

    @property
    def answers(self) -> list[int]:
        """For each request to it that was worked on: its err_code, 0 if it succeeded."""
        audits = [json.loads(payload) for _, _, payload in self._advisories]
        responses = [json.loads(one["response"]) for one in audits if one["subject"] == self.subject]
        return [response.get("error", {}).get("err_code", 0) for response in responses]

    @property
    def took_effect(self) -> bool:
        """The consumer, stream or messages are gone. Reads them without a request, which has a tick."""
        streams = self._bench.engine.streams
        if self.subject.endswith("STREAM.DELETE.S"):
            return "S" not in streams
        if self.subject.endswith("STREAM.PURGE.S"):
            return streams["S"].log.messages == 0
        return "x" not in streams["S"].consumers


@pytest.mark.parametrize("request_subject", REFUSED)
def test_a_pub_ack_sent_to_the_api_is_a_request_of_the_next_tick_and_refused(request_subject: str) -> None:
    bench = ConsumerHarness()
    bench.consumer("x")
    target = Target(bench, request_subject)
    publish(bench.index, b"s.1", target.subject.encode(), b"", b"")
    bench.tick()
    assert [json.loads(body) for body in target.bodies] == [{"stream": "S", "seq": 1}]
    assert target.answers == []
    bench.tick()
    assert target.answers == [REFUSED[request_subject]]
    assert not target.took_effect


@pytest.mark.parametrize("request_subject", REFUSED)
def test_a_confirmation_sent_to_the_api_is_a_request_of_the_next_tick_and_done(request_subject: str) -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1")
    bench.consumer("x")
    bench.consumer("y")
    messages = bench.pull("x", b"1").take() + bench.pull("y", b"1").take()
    target = Target(bench, request_subject)
    for message in messages:
        bench.ack(message, b"", target.subject.encode())
    bench.tick()
    assert target.bodies == [b"", b""]
    assert target.answers == []
    assert not target.took_effect
    bench.tick()
    gone = {"CONSUMER.DELETE.S.x": 10014, "STREAM.DELETE.S": 10059}
    assert target.answers == [0, gone.get(request_subject, 0)]
    assert target.took_effect


@pytest.mark.parametrize("request_subject", REFUSED)
@pytest.mark.parametrize(
    ("pull", "fitting"), [(b'{"batch":5,"max_bytes":60}', 1), (b'{"batch":5,"expires":1000000000}', 3)]
)
def test_messages_sent_to_the_api_are_refused_and_the_status_behind_them_is_done(
    request_subject: str, pull: bytes, fitting: int
) -> None:
    bench = ConsumerHarness()
    bench.consumer("x")
    bench.consumer("y")
    target = Target(bench, request_subject)
    publish(bench.index, b"$JS.API.CONSUMER.MSG.NEXT.S.y", target.subject.encode(), b"", pull)
    bench.tick()
    assert target.bodies == []
    bench.store_messages(*["s.1"] * 3, payload=b"x" * 10)
    assert [body for body in target.bodies if body] == [b"x" * 10] * fitting
    assert target.answers == []
    assert not target.took_effect
    bench.tick()
    assert target.answers[:fitting] == [REFUSED[request_subject]] * fitting
    bench.pass_time(2 * SECOND)
    bench.tick()
    assert target.bodies[fitting] == b""
    assert 0 in target.answers[fitting:]
    assert target.took_effect


@pytest.mark.parametrize("request_subject", REFUSED)
def test_messages_pushed_to_the_api_are_refused_and_the_heartbeat_behind_them_is_done(
    request_subject: str,
) -> None:
    bench = ConsumerHarness()
    target = Target(bench, request_subject)
    bench.define("x", deliver_subject=target.subject, ack_policy="none", idle_heartbeat=SECOND)
    bench.store_messages(*["s.1"] * 3)
    assert target.bodies == [b"payload"] * 3
    assert target.answers == []
    bench.tick()
    assert target.answers == [REFUSED[request_subject]] * 3
    assert not target.took_effect
    bench.pass_time(SECOND)
    bench.tick()
    assert target.bodies[3] == b""
    assert target.answers[3] == 0
    assert target.took_effect


def test_what_is_sent_to_a_pull_subject_is_a_pull_that_nothing_answers() -> None:
    """It has no reply subject, which is where messages would go."""
    bench = ConsumerHarness()
    bench.consumer("x")
    bench.consumer("y")
    target = Target(bench, "CONSUMER.MSG.NEXT.S.x")
    publish(bench.index, b"s.1", target.subject.encode(), b"", b"")
    bench.tick()
    (message,) = bench.pull("y", b"1").take()
    bench.ack(message, b"", target.subject.encode())
    bench.tick()
    bench.tick()
    assert len(target.bodies) == 2
    info = bench.info("x")
    assert (info["num_waiting"], info["delivered"]["consumer_seq"], info["num_pending"]) == (0, 0, 1)


def test_what_is_delivered_into_a_stream_has_the_deliver_subject_there() -> None:
    bench = ConsumerHarness()
    bench.create("T", "t.>")
    bench.define("x", deliver_subject="t.here", ack_policy="none")
    bench.store_messages("s.1", "s.2")
    bench.tick()
    bench.tick()
    assert bench.state("T", subjects_filter=">")["subjects"] == {"t.here": 2}


def test_a_reply_to_an_ack_subject_acks_nothing() -> None:
    bench = ConsumerHarness()
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
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2")
    bench.consumer("x")
    refused, other = bench.pull("x", b"2").take()
    bench.ack(refused, b"-NAK " + delay)
    bench.ack(other, b"+ACK")
    bench.tick()
    bench.pass_time(2 * SECOND)
    assert bench.info("x")["num_ack_pending"] == 1
