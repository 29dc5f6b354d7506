"""Replicas that differ are noticed by the hash of what their entries did."""

from __future__ import annotations

import pytest

from penstock.jetstream import state_hash
from penstock.jetstream.state_hash import StateHash
from tests.support.replicated_engines import ReplicatedEngines


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_hash, "CHECK_ENTRIES", 16)


def running(js: ReplicatedEngines, entries: int = 70) -> None:
    for number in range(entries):
        js.publish(b"s.%d" % (number % 3), b"x")
        js.settle()


def stream() -> ReplicatedEngines:
    js = ReplicatedEngines(2)
    js.open("S", "s.>")
    return js


def test_equal_replicas_have_equal_hashes_and_no_difference() -> None:
    js = stream()
    running(js)
    one, other = js.replicas["S"]
    assert one.hash.value == other.hash.value != b""
    assert not (one.difference or other.difference)


def test_a_replica_that_lost_a_message_is_noticed_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    js = stream()
    running(js, 20)
    js.replicas["S"][1].stream.log.remove(3)
    running(js)
    difference = js.replicas["S"][1].difference
    assert "differs from its leader's" in difference
    assert [(one.stream, one.why) for one in js.engines[1].engine.containment.problems()] == [
        ("S", difference)
    ]
    assert caplog.text.count("differs from its leader's") == 1
    assert not js.replicas["S"][0].difference
    assert js.replicas["S"][1].stream.log.last_seq == 90  # it goes on


def test_a_difference_that_does_not_last_is_noticed_all_the_same() -> None:
    js = stream()
    js.publish(b"s.1", b"x")
    js.settle()
    js.replicas["S"][1].stream.log.remove(1)
    running(js, 1)
    js.publish(b"$JS.API.STREAM.PURGE.S", b"")
    js.settle()
    running(js)
    assert js.replicas["S"][1].stream.log.messages == js.replicas["S"][0].stream.log.messages
    assert js.replicas["S"][1].difference


def test_a_consumer_and_a_refusal_change_the_hash() -> None:
    js = stream()
    config = b'{"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}'
    js.publish(b"$JS.API.CONSUMER.DURABLE.CREATE.S.c", config, b"_IN.m")
    js.settle()
    replica = js.replicas["S"][0]

    def hashed(consumers: list[str], refusals: list[int]) -> bytes:
        one = StateHash(b"before")
        one.applied(7, replica.stream, replica.standby, consumers, refusals)
        return one.value

    before = hashed(["c"], [])
    replica.standby.by_name["c"].state.skip(5)
    assert len({before, hashed(["c"], []), hashed([], []), hashed([], [10043]), hashed(["gone"], [1])}) == 5


def test_a_leader_puts_its_hash_into_the_log_only_among_other_entries() -> None:
    js = stream()
    running(js, 40)
    before = len(js.groups["S"].entries)
    for _ in range(50):
        js.settle()
    assert len(js.groups["S"].entries) == before
