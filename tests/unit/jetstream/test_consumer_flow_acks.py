"""Ack policy flow_control: answers to flow control are the acks, and survive as acks do."""

from __future__ import annotations

import pytest

from penstock.kernels.wire.dispatch import publish
from tests.support.consumers import SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.ack-flow-control")


def answer(bench: ConsumerHarness, subject: bytes, stream_seq: int = 0, consumer_seq: int = 0) -> None:
    """One answer to flow control; with what was stored, if anything was."""
    lines = f"Nats-Last-Consumer: {consumer_seq}\r\nNats-Last-Stream: {stream_seq}\r\n"
    header = f"NATS/1.0\r\n{lines}\r\n".encode() if stream_seq else b""
    publish(bench.index, subject, b"", header, b"")
    bench.tick()


def asked(inbox: Inbox) -> tuple[list[int], list[bytes]]:
    """(sequences of messages, requests for flow control) that came."""
    seqs, requests = [], []
    for one in inbox.take():
        if one.header.startswith(b"NATS/1.0 100 FlowControl Request\r\n"):
            requests.append(one.reply)
        elif not one.header:
            seqs.append(one.seq)
    return seqs, requests


def flowing(bench: ConsumerHarness, **config: object) -> None:
    bench.consumer("x", ack_policy="flow_control", deliver_subject="d", durable_name="x", **config)


def test_it_requires_api_level_4_and_has_its_heartbeat() -> None:
    bench = ConsumerHarness()
    flowing(bench)
    config = bench.info("x")["config"]
    assert config["metadata"]["_nats.req.level"] == "4"
    assert (config["idle_heartbeat"], config["flow_control"]) == (SECOND, True)
    assert (config["max_ack_pending"], config.get("ack_wait")) == (1000, None)


def test_the_end_of_the_stream_asks_with_a_heartbeat_and_a_full_window_at_once() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    flowing(bench, max_ack_pending=3)
    bench.store_messages(*["s.1"] * 4)
    seqs, [request] = asked(inbox)
    assert seqs == [1, 2, 3]
    answer(bench, request, 3, 3)
    assert asked(inbox) == ([4], [])
    bench.pass_time(SECOND)
    assert len(asked(inbox)[1]) == 1
    assert bench.floors("x") == (4, 4, 3, 3)


def test_nothing_comes_again_by_itself() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    flowing(bench)
    bench.store_messages("s.1", "s.2")
    asked(inbox)
    bench.pass_time(600 * SECOND)
    assert asked(inbox)[0] == []
    assert bench.info("x")["num_ack_pending"] == 2


def test_redelivery_after_restart_keeps_what_answers_acked() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    flowing(bench)
    bench.store_messages(*["s.1"] * 5)
    bench.pass_time(SECOND)
    seqs, [request] = asked(inbox)
    answer(bench, request, 3, 3)
    inbox.close()
    again = bench.restarted()
    assert again.floors("x") == (5, 5, 3, 3)
    assert again.info("x")["num_ack_pending"] == 2
    inbox = Inbox(again, b"d")
    again.pass_time(2 * SECOND)
    seqs, [request] = asked(inbox)
    assert seqs == []
    assert again.api("CONSUMER.RESET.S.x")["reset_seq"] == 4
    again.tick()
    assert asked(inbox)[0] == [4, 5]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_what_is_acked_leaves_a_stream_that_keeps_what_is_needed(retention: str) -> None:
    bench = ConsumerHarness(stream={"retention": retention})
    inbox = Inbox(bench, b"d")
    flowing(bench)
    bench.store_messages(*["s.1"] * 4)
    bench.pass_time(SECOND)
    _, [request] = asked(inbox)
    assert bench.state("S")["messages"] == 4
    answer(bench, request, 3, 3)
    assert (bench.state("S")["messages"], bench.state("S")["first_seq"]) == (1, 4)


def test_acks_by_subject_have_no_listener() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    flowing(bench)
    bench.store_messages("s.1")
    [message] = inbox.take()
    assert not publish(bench.index, message.reply, b"", b"", b"")
    bench.tick()
    assert bench.info("x")["num_ack_pending"] == 1


def test_an_answer_to_another_request_and_one_that_lies_ack_nothing_more_than_was_delivered() -> None:
    bench = ConsumerHarness()
    inbox = Inbox(bench, b"d")
    flowing(bench)
    bench.store_messages("s.1", "s.2")
    bench.pass_time(SECOND)
    _, [request] = asked(inbox)
    answer(bench, request + b"x", 2, 2)
    assert bench.floors("x") == (2, 2, 0, 0)
    answer(bench, request, 99, 99)
    assert bench.floors("x") == (2, 2, 0, 0)
