"""A replicated stream whose group takes nothing for a while: what waits is bounded, and goes on later."""

from __future__ import annotations

import json

import pytest

from penstock.jetstream import group_commands
from tests.support.replicated_engines import ReplicatedEngines

RETRY_NS = 100_000_000


def full_stream(monkeypatch: pytest.MonkeyPatch) -> ReplicatedEngines:
    """Stream S with consumer c, whose group takes nothing and has enough already."""
    monkeypatch.setattr(group_commands, "BACKLOG_BYTES_MAX", 2000)
    js = ReplicatedEngines(2)
    js.open("S", "s")
    config = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    js.publish(b"$JS.API.CONSUMER.DURABLE.CREATE.S.c", json.dumps(config).encode(), b"_IN.m")
    js.publish(b"s", b"first")
    js.settle()
    js.groups["S"].takes = False
    js.publish(b"s", bytes(3000))
    js.tick()
    assert js.replicas["S"][0].commands.is_full
    return js


def go_on(js: ReplicatedEngines) -> None:
    js.groups["S"].takes = True
    for one in js.engines:
        one.wait_until(one.now + RETRY_NS)
    js.settle()


def test_publishes_wait_in_the_sink_while_too_much_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    js = full_stream(monkeypatch)
    for _ in range(5):
        js.publish(b"s", bytes(1000))
        js.tick()
    stream = js.replicas["S"][0].stream
    assert stream.sink.batch.count == 5
    go_on(js)
    assert js.replicas["S"][1].stream.log.messages == stream.log.messages == 7


def test_consumers_deliver_nothing_while_too_much_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    js = full_stream(monkeypatch)
    heard = js.engines[0].listen(b"_IN.got")
    js.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": 9}', b"_IN.got")
    for _ in range(3):
        js.tick()
    assert not heard
    go_on(js)
    assert [payload for _, _, payload in heard] == [b"first", bytes(3000)]


def test_what_comes_while_several_entries_are_in_flight_becomes_one_entry() -> None:
    js = ReplicatedEngines(2)
    js.open("S", "s")
    entries = js.groups["S"].entries
    before = len(entries)
    for number in range(20):
        js.publish(b"s", b"%d" % number)
        js.tick()
    assert len(entries) - before == group_commands.ENTRIES_AHEAD
    js.tick()
    assert len(entries) - before == group_commands.ENTRIES_AHEAD
    js.commit("S")
    js.tick()
    assert len(entries) - before == group_commands.ENTRIES_AHEAD + 1
    js.settle()
    assert js.replicas["S"][1].stream.log.messages == 20
