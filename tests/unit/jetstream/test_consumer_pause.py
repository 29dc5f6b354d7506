"""Paused consumers: nothing is delivered until the time is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.protocol.durations import format_time
from tests.support.consumers import SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.pause")


def pause(bench: ConsumerHarness, for_ns: int) -> Any:
    return bench.api("CONSUMER.PAUSE.S.x", {"pause_until": format_time(bench.now + for_ns)})


def test_a_paused_consumer_delivers_when_its_pause_is_over() -> None:
    bench = ConsumerHarness()
    bench.consumer("x", durable_name="x")
    answer = pause(bench, 10 * SECOND)
    assert (answer["paused"], answer["pause_remaining"]) == (True, 10 * SECOND)
    assert answer["type"] == "io.nats.jetstream.api.v1.consumer_pause_response"
    inbox = bench.pull("x", b"1")
    bench.store_messages("s.1")
    bench.pass_time(10 * SECOND - 1)
    assert inbox.take() == []
    info = bench.info("x")
    assert (info["paused"], info["pause_remaining"]) == (True, 1)
    bench.pass_time(1)
    assert inbox.seqs() == [1]
    assert "paused" not in bench.info("x")


def test_it_may_be_resumed_before_and_survives_a_restart() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1")
    bench.consumer("x", durable_name="x")
    pause(bench, 10 * SECOND)
    again = bench.restarted()
    inbox = again.pull("x", b"1")
    assert inbox.take() == []
    assert again.api("CONSUMER.PAUSE.S.x")["paused"] is False
    assert inbox.seqs() == [1]


def test_one_shot_requests_are_not_kept_waiting() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1")
    bench.consumer("x", pause_until=format_time(bench.now + SECOND))
    assert bench.pull("x", {"batch": 1, "no_wait": True}).statuses() == ["404 No Messages"]


def test_heartbeats_go_on() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    until = format_time(bench.now + 10 * SECOND)
    bench.consumer("x", deliver_subject="d", idle_heartbeat=SECOND, pause_until=until)
    bench.store_messages("s.1")
    bench.pass_time(3 * SECOND)
    assert inbox.statuses() == ["100 Idle Heartbeat"] * 3


def test_both_edges_are_announced() -> None:
    bench = ConsumerHarness()
    heard = bench.listen(b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.x")
    bench.consumer("x", durable_name="x")
    pause(bench, SECOND)
    bench.pass_time(SECOND)
    assert [json.loads(payload)["paused"] for _, _, payload in heard] == [True, False]


def test_a_stopping_server_tells_waiting_requests() -> None:
    bench = ConsumerHarness()
    consumer = bench.consumer("x", durable_name="x")
    inbox = bench.pull("x", {"batch": 7})
    consumer.end_pulls()
    [status] = inbox.take()
    assert status.header.startswith(b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 7\r\n")
