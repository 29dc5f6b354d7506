"""Consumers without acks of a replicated stream: what they deliver leaves when it is committed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.jetstream.consumer import late_sending
from tests.support.engine import Message
from tests.support.examples import examples
from tests.support.replicated_engines import ReplicatedEngines

pytestmark = pytest.mark.feature("consumer.ack-policy")


class Reading:
    """Two engines with stream S and consumer c, which takes no acks. heard: what its client got, at either
    engine."""

    def __init__(self, **fields: Any) -> None:
        self.js = js = ReplicatedEngines(2)
        js.open("S", "s")
        config = {"durable_name": "c", "ack_policy": "none", **fields}
        body = json.dumps({"stream_name": "S", "config": config}).encode()
        js.publish(b"$JS.API.CONSUMER.DURABLE.CREATE.S.c", body, b"_IN.m")
        js.settle()
        self.heard: list[list[Message]] = [one.listen(b"_IN.got") for one in js.engines]

    def pull(self, count: int, **fields: Any) -> None:
        at = self.js.groups["S"].leader
        body = json.dumps({"batch": count, **fields}).encode()
        self.js.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", body, b"_IN.got", at=at)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.js.publish(b"s", b"%d" % number, at=self.js.groups["S"].leader)

    @property
    def messages(self) -> list[bytes]:
        return [payload for heard in self.heard for _, header, payload in heard if not header]

    @property
    def statuses(self) -> list[bytes]:
        return [header.split(b"\r\n")[0] for heard in self.heard for _, header, _ in heard if header]


def test_messages_leave_when_their_delivery_is_committed() -> None:
    one = Reading()
    one.send(1, 2)
    one.js.settle()
    one.pull(5)
    one.js.tick()
    assert not one.messages
    one.js.commit("S")
    one.js.tick()
    assert one.messages == [b"1", b"2"]


def test_a_status_follows_the_messages_that_precede_it() -> None:
    one = Reading()
    one.send(1)
    one.js.settle()
    one.pull(5, no_wait=True)
    one.js.tick()
    assert not one.heard[0]
    one.js.settle()
    assert [payload for _, _, payload in one.heard[0]] == [b"1", b""]
    assert one.statuses == [b"NATS/1.0 408 Requests Pending"] or len(one.statuses) == 1


@pytest.mark.parametrize("keeps", [0, 1])
def test_a_new_leader_delivers_what_the_old_one_had_not_committed(keeps: int) -> None:
    one = Reading()
    one.send(1, 2)
    one.js.settle()
    one.pull(5)
    one.js.tick()
    one.js.lead("S", 1, keeps=keeps)
    one.js.settle()
    assert len(one.messages) == 2 * keeps
    one.pull(5)
    one.js.settle()
    assert one.messages == [b"1", b"2"]
    assert any(b"409 Leadership Change" in status for status in one.statuses)


@given(st.lists(st.integers(0, 9), max_size=60))
@settings(max_examples=examples(60))
def test_whatever_becomes_of_leaders_each_message_is_delivered_once(does: list[int]) -> None:
    one = Reading()
    sent = 0
    for what in does:
        if what < 3:
            sent += 1
            one.send(sent)
        elif what < 5:
            one.pull(what)
        elif what < 7:
            one.js.tick()
        elif what < 9:
            one.js.commit("S", 1)
        else:
            group = one.js.groups["S"]
            in_flight = len(group.entries) - group.committed
            one.js.lead("S", 1 - group.leader, keeps=sent % (in_flight + 1))
    one.js.settle()
    one.pull(100)
    one.js.settle()
    one.js.settle()
    assert len(set(one.messages)) == len(one.messages)
    stored = one.js.replicas["S"][0].stream.log.messages
    assert len(one.messages) == stored


def test_a_consumer_waits_while_too_much_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_sending, "HELD_BYTES_MAX", 1)
    one = Reading()
    one.send(1)
    one.js.settle()
    one.pull(5)
    one.js.tick()
    one.send(2)
    for _ in range(5):
        one.js.tick()
        one.js.commit("S", 1)
    one.js.settle()
    assert one.messages == [b"1", b"2"]


def test_a_push_consumer_sends_flow_control_requests_in_their_place() -> None:
    one = Reading(deliver_subject="_IN.got", flow_control=True, idle_heartbeat=1_000_000_000)
    for _ in range(40):
        one.js.publish(b"s", bytes(40_000))
    one.js.settle()
    kinds = ["status" if header else "message" for _, header, _ in one.heard[0]]
    assert "status" in kinds[1:]
    assert kinds[0] == "message"


def test_a_consumer_with_acks_does_not_wait() -> None:
    one = Reading(ack_policy="explicit")
    one.send(1)
    one.js.settle()
    one.pull(5)
    one.js.tick()
    assert one.messages == [b"1"]
