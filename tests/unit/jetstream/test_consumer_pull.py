"""Pull requests: how they share messages and how each of them ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.consumers import MS, SECOND, ConsumerHarness, Delivered, Inbox

pytestmark = pytest.mark.feature("consumer.pull")

LEFT = "\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n"


def bench_with(messages: int, **config: Any) -> ConsumerHarness:
    bench = ConsumerHarness()
    bench.store_messages(*[f"s.{i}" for i in range(messages)])
    bench.consumer("x", **config)
    return bench


def seqs_and_statuses(inbox: Inbox) -> list[int | str]:
    return [one.status or one.seq for one in inbox.take()]


def size_of(message: Delivered) -> int:
    return len(message.subject) + len(message.reply) + len(message.header) + len(message.payload)


@pytest.mark.parametrize(
    ("body", "count"), [(b"", 1), (b"3", 3), (b'{"batch":2}', 2), (b"{}", 1), (b"many", 1)]
)
def test_a_request_gets_as_many_as_it_asks_for(body: bytes, count: int) -> None:
    bench = bench_with(5)
    assert bench.pull("x", body).seqs() == list(range(1, count + 1))
    assert bench.info("x")["num_waiting"] == 0


def test_a_request_without_expiry_waits_until_it_is_filled() -> None:
    bench = bench_with(0)
    inbox = bench.pull("x", {"batch": 2})
    bench.pass_time(3 * SECOND)
    bench.store_messages("s.1", "s.2", "s.3")
    assert inbox.seqs() == [1, 2]


def test_the_answer_to_an_expired_request_says_what_is_left_of_it() -> None:
    bench = bench_with(1)
    inbox = bench.pull("x", {"batch": 3, "expires": SECOND, "max_bytes": 1000})
    [message] = inbox.take()
    bench.pass_time(SECOND - 1)
    assert inbox.take() == []
    bench.pass_time(1)
    [status] = inbox.take()
    assert status.header.decode() == "NATS/1.0 408 Request Timeout" + LEFT % (2, 1000 - size_of(message))


def test_no_wait_without_messages_is_answered_at_once() -> None:
    assert bench_with(0).pull("x", {"batch": 3, "no_wait": True}).statuses() == ["404 No Messages"]


def test_no_wait_ends_when_everything_is_delivered() -> None:
    assert seqs_and_statuses(bench_with(2).pull("x", {"batch": 3, "no_wait": True})) == [
        1,
        2,
        "404 No Messages",
    ]


def test_no_wait_with_expiry_waits_for_one_message() -> None:
    bench = bench_with(0)
    inbox = bench.pull("x", {"batch": 3, "no_wait": True, "expires": SECOND})
    assert inbox.take() == []
    bench.store_messages("s.1")
    assert seqs_and_statuses(inbox) == [1, "404 No Messages"]
    inbox = bench.pull("x", {"batch": 3, "no_wait": True, "expires": SECOND})
    bench.pass_time(SECOND)
    assert inbox.statuses() == ["408 Request Timeout"]


def test_no_wait_behind_requests_that_want_everything_is_refused() -> None:
    bench = bench_with(2, max_ack_pending=1)
    bench.pull("x", {"batch": 5})
    assert bench.pull("x", {"batch": 1, "no_wait": True}).statuses() == ["408 Requests Pending"]


def test_a_message_larger_than_the_bytes_left_ends_the_request() -> None:
    bench = bench_with(2)
    [first] = bench.pull("x", b"1").take()
    inbox = bench.pull("x", {"batch": 3, "max_bytes": size_of(first) - 1})
    [status] = inbox.take()
    assert status.header.decode() == (
        "NATS/1.0 409 Message Size Exceeds MaxBytes" + LEFT % (3, size_of(first) - 1)
    )
    assert bench.info("x")["delivered"]["stream_seq"] == 1


def test_a_full_batch_with_bytes_left_gets_a_status() -> None:
    bench = bench_with(2)
    got = bench.pull("x", {"batch": 1, "max_bytes": 500}).take()
    assert [one.status for one in got] == ["", "409 Batch Completed"]
    assert got[1].header.decode() == "NATS/1.0 409 Batch Completed" + LEFT % (0, 500 - size_of(got[0]))


def test_bytes_used_up_exactly_end_the_request_in_silence() -> None:
    bench = bench_with(3)
    [first] = bench.pull("x", b"1").take()
    assert bench.pull("x", {"batch": 3, "max_bytes": size_of(first)}).seqs() == [2]
    assert bench.info("x")["num_waiting"] == 0


def test_requests_take_turns_message_by_message() -> None:
    bench = bench_with(0)
    inboxes = [bench.pull("x", {"batch": batch}) for batch in (3, 1, 2)]
    bench.store_messages(*["s.1"] * 6)
    assert [inbox.seqs() for inbox in inboxes] == [[1, 4, 6], [2], [3, 5]]


def test_a_request_that_no_client_waits_for_any_more_is_dropped() -> None:
    bench = bench_with(0)
    gone = bench.pull("x", {"batch": 3})
    inbox = bench.pull("x", {"batch": 3})
    gone.close()
    bench.store_messages("s.1", "s.2")
    assert inbox.seqs() == [1, 2]
    assert bench.info("x")["num_waiting"] == 1


def test_a_waiting_request_gets_heartbeats_from_its_last_message_on() -> None:
    bench = bench_with(0)
    inbox = bench.pull("x", {"batch": 3, "expires": 10 * SECOND, "idle_heartbeat": SECOND})
    bench.pass_time(900 * MS)
    bench.store_messages("s.1")
    assert inbox.seqs() == [1]
    bench.pass_time(900 * MS)
    assert inbox.take() == []
    bench.pass_time(100 * MS)
    [beat] = inbox.take()
    assert (
        beat.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    )
    bench.pass_time(SECOND)
    assert len(inbox.take()) == 1


def test_messages_for_another_request_do_not_delay_a_heartbeat() -> None:
    bench = bench_with(0)
    asked = {"batch": 3, "expires": 10 * SECOND, "idle_heartbeat": SECOND}
    first, second = bench.pull("x", asked), bench.pull("x", asked)
    bench.store_messages("s.1")
    assert first.seqs() == [1]
    bench.pass_time(600 * MS)
    bench.store_messages("s.2")
    assert (first.seqs(), second.seqs()) == ([], [2])
    bench.pass_time(400 * MS)
    assert (len(first.take()), len(second.take())) == (1, 0)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"batch": 10}, "409 Exceeded MaxRequestBatch of 3"),
        ({"expires": 2 * SECOND}, "409 Exceeded MaxRequestExpires of 1s"),
        ({"max_bytes": 5000}, "409 Exceeded MaxRequestMaxBytes of 1000"),
        ({"idle_heartbeat": 60 * MS, "expires": 100 * MS}, "400 Bad Request - heartbeat value too large"),
        ({"min_pending": 2}, "400 Bad Request - Not a Overflow Priority consumer"),
        ({"id": "a"}, "400 Bad Request - Not a Pinned Client Priority consumer"),
        ({"priority": 10}, "400 Bad Request - Priority must be between 0 and 9"),
    ],
)
def test_a_request_beyond_its_limits_is_refused(body: dict[str, Any], status: str) -> None:
    bench = bench_with(1, max_batch=3, max_expires=SECOND, max_bytes=1000)
    assert bench.pull("x", body).statuses() == [status]


def test_broken_json_is_a_bad_request() -> None:
    [status] = bench_with(1).pull("x", b"{nope").statuses()
    assert status.startswith("400 Bad Request - ")


def test_a_full_queue_refuses_but_not_those_who_listen_for_heartbeats() -> None:
    bench = bench_with(0, max_waiting=1)
    bench.pull("x", {"batch": 1, "expires": 10 * SECOND})
    assert bench.pull("x", {"batch": 1}).statuses() == ["409 Exceeded MaxWaiting"]
    assert bench.pull("x", {"batch": 1, "expires": 3 * SECOND, "idle_heartbeat": SECOND}).statuses() == []


def test_a_full_queue_makes_room_by_dropping_what_no_client_waits_for() -> None:
    bench = bench_with(0, max_waiting=1)
    bench.pull("x", {"batch": 1}).close()
    bench.pass_time(2 * SECOND)
    bench.pull("x", {"batch": 1})
    assert bench.info("x")["num_waiting"] == 1


def test_a_push_consumer_refuses_pulls() -> None:
    bench = ConsumerHarness()
    bench.consumer("x", deliver_subject="d")
    assert bench.pull("x", b"1").statuses() == ["409 Consumer is push based"]


def test_an_api_level_above_the_servers_is_refused_by_status() -> None:
    bench = bench_with(1)
    header = b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
    [(_, block, _)] = bench.messages("$JS.API.CONSUMER.MSG.NEXT.S.x", b"1", header)
    assert block.startswith(b"NATS/1.0 412 Required Api Level\r\n")


def test_max_ack_pending_holds_messages_back_until_acks_come() -> None:
    bench = bench_with(5, max_ack_pending=2)
    inbox = bench.pull("x", b"5")
    first, second = inbox.take()
    assert bench.info("x")["num_pending"] == 3
    bench.ack(second)
    bench.tick()
    assert inbox.seqs() == [3]
    bench.ack(first)
    bench.tick()
    assert inbox.seqs() == [4]


def test_a_one_shot_request_is_not_ended_while_acks_hold_it_up() -> None:
    bench = bench_with(3, max_ack_pending=1)
    inbox = bench.pull("x", {"batch": 3, "no_wait": True})
    [first] = inbox.take()
    bench.ack(first)
    bench.tick()
    assert inbox.seqs() == [2]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"expires": SECOND}, "408 Request Timeout"),
        ({"expires": 2 * SECOND, "idle_heartbeat": SECOND}, "404 No Messages"),
    ],
)
def test_a_one_shot_request_held_up_by_acks_ends_with_its_first_timer(
    body: dict[str, Any], status: str
) -> None:
    bench = bench_with(3, max_ack_pending=1)
    inbox = bench.pull("x", {"batch": 3, "no_wait": True, **body})
    assert inbox.seqs() == [1]
    bench.pass_time(SECOND - 1)
    assert inbox.take() == []
    bench.pass_time(1)
    assert inbox.statuses() == [status]


def test_pending_messages_that_left_the_stream_delay_no_client() -> None:
    bench = bench_with(4, max_ack_pending=2)
    inbox = bench.pull("x", b"4")
    assert inbox.seqs() == [1, 2]
    bench.api("STREAM.MSG.DELETE.S", {"seq": 2})
    bench.engine.pending.touch_consumer(bench.engine.streams["S"].consumers["x"])
    bench.tick()
    bench.tick()
    assert inbox.seqs() == [3]


def test_who_waits_hears_what_its_filters_match_also_after_they_changed() -> None:
    bench = bench_with(1, filter_subject="s.a")
    other = bench.consumer("y", filter_subjects=["s.b", "s.c.>"])
    assert other is not None
    inbox, beside = bench.pull("x", {"batch": 5}), bench.pull("y", {"batch": 5})
    bench.store_messages("s.a", "s.b", "s.c.1", "s.none", "s.a")
    assert (inbox.seqs(), beside.seqs()) == ([2, 6], [3, 4])
    bench.consumer("x", filter_subject="s.none")
    bench.store_messages("s.a")
    assert (inbox.seqs(), bench.info("x")["num_pending"]) == ([], 0)
    bench.store_messages("s.none")
    assert (inbox.seqs(), bench.info("y")["num_pending"]) == ([8], 0)
    bench.consumer("x")
    bench.store_messages("s.whatever")
    assert inbox.seqs() == [9]
    bench.consumer("x", filter_subject="s.a")
    bench.store_messages("s.b", "s.a")
    assert (inbox.seqs(), beside.seqs()) == ([11], [10])


def test_a_request_whose_time_is_over_gets_no_message_though_its_timer_is_late() -> None:
    bench = bench_with(0)
    inbox = bench.pull("x", {"batch": 1, "expires": SECOND})
    bench.now += SECOND
    bench.store_messages("s.1")
    assert inbox.statuses() == ["408 Request Timeout"]
    assert bench.pull("x", {"batch": 1}).seqs() == [1]
