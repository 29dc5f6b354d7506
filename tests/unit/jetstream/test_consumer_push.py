"""Push consumers: interest, heartbeats, flow control, queue groups."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.consumer.push import WINDOW_MAX, WINDOW_MIN
from penstock.kernels.wire.dispatch import publish
from tests.support.consumers import MS, SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.push")


def pushed(bench: ConsumerHarness, **config: Any) -> None:
    bench.consumer("x", **{"ack_policy": "none", "deliver_subject": "d", **config})


def beats(inbox: Inbox) -> list[tuple[int, int]]:
    """[(last consumer sequence, last stream sequence)] of the heartbeats that came, which must be all."""
    got = []
    for message in inbox.take():
        first, *lines = message.header.decode().split("\r\n")
        assert first == "NATS/1.0 100 Idle Heartbeat"
        fields = dict(line.split(": ") for line in lines if line)
        got.append((int(fields["Nats-Last-Consumer"]), int(fields["Nats-Last-Stream"])))
    return got


def test_it_delivers_while_a_client_listens() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.1", "s.2")
    pushed(bench)
    assert bench.info("x").get("push_bound") is None
    inbox = Inbox(bench, b"d")
    bench.tick()
    assert inbox.seqs() == [1, 2]
    assert bench.info("x")["push_bound"] is True
    inbox.close()
    bench.store_messages("s.3")
    assert bench.floors("x") == (2, 2, 2, 2)
    again = Inbox(bench, b"d")
    bench.tick()
    assert again.seqs() == [3]


def test_subscribing_wakes_the_server_only_while_a_consumer_waits_for_it() -> None:
    bench = ConsumerHarness()
    pushed(bench)
    bench.tick()
    wakes = bench.wakes
    Inbox(bench, b"d")
    assert bench.wakes == wakes + 1
    bench.tick()
    wakes = bench.wakes
    Inbox(bench, b"other")
    assert bench.wakes == wakes


def test_members_of_a_deliver_group_share_the_messages() -> None:
    bench = ConsumerHarness()
    members = [Inbox(bench, b"d", b"group") for _ in range(2)]
    pushed(bench, deliver_group="group")
    bench.store_messages(*[f"s.{i}" for i in range(20)])
    got = [member.seqs() for member in members]
    assert sorted(got[0] + got[1]) == list(range(1, 21))
    assert min(len(got[0]), len(got[1])) >= 5


def test_it_beats_while_there_is_nothing_to_deliver() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    pushed(bench, idle_heartbeat=SECOND)
    bench.pass_time(900 * MS)
    bench.store_messages("s.1", "s.2")
    assert inbox.seqs() == [1, 2]
    bench.pass_time(900 * MS)
    assert beats(inbox) == []
    bench.pass_time(100 * MS)
    assert beats(inbox) == [(2, 2)]
    bench.pass_time(3 * SECOND)
    assert beats(inbox) == [(2, 2)] * 3


def test_an_ephemeral_without_listener_goes_after_its_threshold() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    pushed(bench)
    bench.pass_time(20 * SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["x"]
    bench.pass_time(SECOND // 2)  # at no moment that a timer could have been set to
    wakes = bench.wakes
    inbox.close()
    assert bench.wakes == wakes + 1  # the removal itself makes it look
    bench.tick()
    bench.pass_time(5 * SECOND - 1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["x"]
    bench.pass_time(1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []


@pytest.mark.parametrize("filter_subject", [b"d", b"*", b">"])
def test_only_subscriptions_that_cover_its_subject_make_a_consumer_look(filter_subject: bytes) -> None:
    bench = ConsumerHarness()
    pushed(bench)
    bench.tick()
    wakes = bench.wakes
    others = [Inbox(bench, other) for other in (b"e", b"d.*", b"*.d")]
    assert bench.wakes == wakes
    inbox = Inbox(bench, filter_subject)
    assert bench.wakes == wakes + 1
    bench.tick()
    wakes = bench.wakes
    for other in others:
        other.close()
    assert bench.wakes == wakes
    inbox.close()
    assert bench.wakes == wakes + 1
    bench.tick()
    bench.pass_time(5 * SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []
    assert bench.index.on_insert is None and bench.index.on_remove is None


def test_an_ack_starts_the_threshold_of_an_unheard_consumer_again() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    pushed(bench, ack_policy="explicit")
    bench.store_messages("s.a")
    (message,) = inbox.take()
    inbox.close()
    bench.tick()
    bench.pass_time(4 * SECOND)
    bench.ack(message)
    bench.tick()
    bench.pass_time(5 * SECOND - 1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["x"]
    bench.pass_time(1)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []


def test_one_that_never_had_a_listener_goes_as_well() -> None:
    bench = ConsumerHarness()
    pushed(bench)
    bench.pass_time(4 * SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == ["x"]
    bench.pass_time(SECOND)
    assert bench.api("CONSUMER.NAMES.S")["consumers"] == []


class Flow:
    """A receiver of a consumer with flow control."""

    def __init__(self) -> None:
        self.bench = ConsumerHarness()
        self.inbox = Inbox(self.bench, b"d")
        pushed(self.bench, flow_control=True, idle_heartbeat=SECOND)

    def receive(self) -> tuple[int, list[bytes]]:
        """(messages, flow control subjects) that came."""
        messages, requests = 0, []
        for message in self.inbox.take():
            if message.header.startswith(b"NATS/1.0 100 FlowControl Request\r\n\r\n"):
                requests.append(message.reply)
            elif not message.header:
                messages += 1
        return messages, requests

    def answer(self, subject: bytes) -> None:
        publish(self.bench.index, subject, b"", b"", b"")
        self.bench.tick()


def test_flow_control_stalls_until_it_is_answered_and_widens_the_window() -> None:
    flow = Flow()
    payload = b"x" * 64 * 1024
    for _ in range(3):
        flow.bench.store_messages(*["s.1"] * 20, payload=payload)
    messages, [asked] = flow.receive()
    assert asked.startswith(b"$JS.FC.S.x.")
    assert messages * len(payload) < WINDOW_MIN + len(payload)
    flow.bench.store_messages("s.1")
    assert flow.receive() == (0, [])
    flow.answer(b"$JS.FC.S.x.zzzz")
    assert flow.receive() == (0, [])
    flow.answer(asked)
    more, again = flow.receive()
    assert messages + more == 61
    pump = flow.bench.engine.streams["S"].consumers["x"].pump
    assert pump.flow_window == min(2 * WINDOW_MIN, WINDOW_MAX)
    assert len(again) == 1
    assert again != [asked]


def test_a_heartbeat_says_which_flow_control_request_is_open() -> None:
    flow = Flow()
    flow.bench.store_messages(*["s.1"] * 20, payload=b"x" * 64 * 1024)
    _, [asked] = flow.receive()
    flow.bench.pass_time(SECOND)
    [beat] = flow.inbox.take()
    assert b"\r\nNats-Consumer-Stalled: " + asked + b"\r\n" in beat.header
    assert b"\r\nNats-Last-Stream: 20\r\n" in beat.header


def test_explicit_acks_work_for_push_as_well() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    pushed(bench, ack_policy="explicit", ack_wait=SECOND, max_ack_pending=2)
    bench.store_messages("s.1", "s.2", "s.3")
    _, second = inbox.take()
    bench.ack(second)
    bench.tick()
    assert inbox.seqs() == [3]
    bench.pass_time(SECOND)
    assert [(one.seq, one.numbers[0]) for one in inbox.take()] == [(1, 2), (3, 2)]


def test_headers_only_delivers_sizes() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    pushed(bench, headers_only=True)
    bench.store_messages("s.1", payload=b"12345")
    [message] = inbox.take()
    assert (message.header, message.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


def test_a_push_consumer_that_moved_delivers_to_its_new_subject() -> None:
    bench = ConsumerHarness()
    pushed(bench, durable_name="x")
    there = Inbox(bench, b"e")
    bench.store_messages("s.1")
    answer = bench.define("x", durable_name="x", ack_policy="none", deliver_subject="e")
    assert "error" not in answer, json.dumps(answer)
    assert there.seqs() == [1]
