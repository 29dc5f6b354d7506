"""ADR-37's rules of pulling, without a connection and with a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.pull import (
    UNBOUNDED_BATCH,
    HeartbeatMonitor,
    PriorityOptions,
    PullBudget,
    StatusKind,
    classify_status,
    consume_options,
    message_size,
    pending_in,
    status_error,
    status_in,
)
from penstock.errors import ConsumerGoneError, MisuseError, PullError
from penstock.protocol import status
from penstock.protocol.durations import NS_PER_S

pytestmark = pytest.mark.feature("client.pull-accounting", "client.pull-limits")


def test_defaults_are_those_of_the_adr() -> None:
    options = consume_options()
    assert (options.max_messages, options.max_bytes) == (500, 0)
    assert (options.expires_s, options.heartbeat_s) == (30.0, 15.0)
    assert (options.threshold_messages, options.threshold_bytes) == (250, 0)
    by_size = consume_options(max_bytes=1000)
    assert (by_size.max_messages, by_size.max_bytes, by_size.threshold_bytes) == (UNBOUNDED_BATCH, 1000, 500)
    assert consume_options(expires=600).heartbeat_s == 30.0
    assert consume_options(expires=1).heartbeat_s == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 1, "max_bytes": 1},
        {"max_messages": -1},
        {"max_bytes": 0},
        {"expires": 0.9},
        {"heartbeat": 0.4},
        {"heartbeat": 31, "expires": 100},
        {"heartbeat": 16, "expires": 30},
        {"max_messages": 10, "threshold_messages": 11},
        {"max_bytes": 10, "threshold_bytes": 11},
        {"threshold_messages": -1},
    ],
    ids=str,
)
def test_options_out_of_bounds_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(MisuseError):
        consume_options(**options)  # type: ignore[arg-type]


def test_the_first_request_fills_the_buffer_and_carries_every_option() -> None:
    priority = PriorityOptions(group="g", min_pending=3, min_ack_pending=4, priority=5)
    budget = PullBudget(consume_options(max_messages=10, expires=8, heartbeat=2, priority=priority))
    budget.pin_id = "pin"
    request = budget.next_request()
    assert request is not None
    assert (request.batch, request.max_bytes) == (10, 0)
    assert (request.expires, request.idle_heartbeat) == (8 * NS_PER_S, 2 * NS_PER_S)
    assert (request.group, request.min_pending, request.min_ack_pending, request.priority) == ("g", 3, 4, 5)
    assert request.id == "pin"
    assert budget.next_request() is None


def test_a_request_follows_when_half_is_handed_out() -> None:
    budget = PullBudget(consume_options(max_messages=10))
    budget.next_request()
    for _ in range(4):
        budget.handed_out(100)
        assert budget.next_request() is None
    budget.handed_out(100)
    request = budget.next_request()
    assert request is not None
    assert request.batch == 5


def test_a_buffer_of_one_message_never_gets_stuck() -> None:
    budget = PullBudget(consume_options(max_messages=1))
    for _ in range(5):
        request = budget.next_request()
        assert request is not None
        assert request.batch == 1
        assert budget.next_request() is None
        budget.handed_out(10)


def test_bytes_are_counted_when_they_are_the_limit() -> None:
    budget = PullBudget(consume_options(max_bytes=1000))
    request = budget.next_request()
    assert request is not None
    assert (request.batch, request.max_bytes) == (UNBOUNDED_BATCH, 1000)
    budget.handed_out(499)
    assert budget.next_request() is None
    budget.handed_out(1)
    request = budget.next_request()
    assert request is not None
    assert (request.batch, request.max_bytes) == (2, 500)


def test_what_a_pull_gives_back_is_asked_for_again() -> None:
    budget = PullBudget(consume_options(max_messages=10))
    budget.next_request()
    budget.handed_out(1)
    budget.released(9, 0)
    request = budget.next_request()
    assert request is not None
    assert request.batch == 10


def test_after_a_reset_only_what_is_buffered_counts() -> None:
    budget = PullBudget(consume_options(max_messages=10))
    budget.next_request()
    budget.reset(buffered_messages=4, buffered_bytes=400)
    assert (budget.pending_messages, budget.pending_bytes) == (4, 0)
    request = budget.next_request()
    assert request is not None
    assert request.batch == 6


@given(
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 20)),
    st.lists(st.one_of(st.integers(1, 30), st.just("give back"), st.just("pull"))),
)
def test_the_budget_never_overdraws_and_never_asks_for_nothing(
    max_messages: int, threshold: int | None, steps: list[int | str]
) -> None:
    threshold = None if threshold is None else min(threshold, max_messages)
    budget = PullBudget(consume_options(max_messages=max_messages, threshold_messages=threshold))
    open_on_server = 0
    for step in steps:
        request = budget.next_request()
        if request is not None:
            assert request.batch >= 1
            open_on_server += request.batch
        assert 0 <= budget.pending_messages <= max_messages
        assert budget.pending_messages == open_on_server
        if step == "give back":
            budget.released(open_on_server, 0)
            open_on_server = 0
        elif isinstance(step, int):
            for _ in range(min(step, open_on_server)):
                budget.handed_out(1)
                open_on_server -= 1
    # It can always go on: once everything asked for was handed out, it asks again.
    budget.released(open_on_server, 0)
    assert budget.next_request() is not None


@pytest.mark.feature("client.statuses")
@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (status.IDLE_HEARTBEAT, StatusKind.HEARTBEAT),
        (status.FLOW_CONTROL, StatusKind.HEARTBEAT),
        (status.NO_MESSAGES, StatusKind.ENDED),
        (status.REQUEST_TIMEOUT, StatusKind.ENDED),
        (status.INTEREST_EXPIRED, StatusKind.ENDED),
        (status.REQUESTS_PENDING, StatusKind.ENDED),
        (status.MESSAGE_SIZE_EXCEEDS_MAX_BYTES, StatusKind.ENDED),
        (status.BATCH_COMPLETED, StatusKind.ENDED),
        (status.WRONG_PIN_ID, StatusKind.ENDED),
        (status.EXCEEDED_MAX_REQUEST_BATCH.format(limit=7), StatusKind.WARNING),
        (status.EXCEEDED_MAX_REQUEST_EXPIRES.format(limit="1s"), StatusKind.WARNING),
        (status.EXCEEDED_MAX_REQUEST_MAX_BYTES.format(limit=7), StatusKind.WARNING),
        (status.EXCEEDED_MAX_WAITING, StatusKind.WARNING),
        (status.SERVER_SHUTDOWN, StatusKind.WARNING),
        (status.LEADERSHIP_CHANGE, StatusKind.WARNING),
        (status.NO_RESPONDERS, StatusKind.WARNING),
        (status.Status(599, "from the future"), StatusKind.WARNING),
        (status.BAD_REQUEST, StatusKind.TERMINAL),
        (status.HEARTBEAT_TOO_LARGE, StatusKind.TERMINAL),
        (status.CONSUMER_DELETED, StatusKind.TERMINAL),
        (status.CONSUMER_IS_PUSH_BASED, StatusKind.TERMINAL),
        (status.REQUIRED_API_LEVEL, StatusKind.TERMINAL),
    ],
)
def test_statuses_have_the_class_the_adr_gives_them(one: status.Status, kind: StatusKind) -> None:
    assert classify_status(one.code, one.text) is kind


@pytest.mark.feature("client.statuses")
def test_statuses_are_read_off_raw_messages() -> None:
    timeout = status.REQUEST_TIMEOUT.block([("Nats-Pending-Messages", "12"), ("Nats-Pending-Bytes", "34")])
    raw = (1, b"inbox", None, timeout, b"")
    assert status_in(raw) == (408, "Request Timeout")
    assert pending_in(raw) == (12, 34)
    assert pending_in((1, b"inbox", None, status.NO_MESSAGES.block(), b"")) == (0, 0)
    broken = status.REQUEST_TIMEOUT.block([("Nats-Pending-Messages", "x"), ("Nats-Pending-Bytes", "34")])
    assert pending_in((1, b"inbox", None, broken, b"")) == (0, 0)
    endless = b"NATS/1.0\r\nNats-Pending-Messages: %s\r\n\r\n" % (b"1" * 4301)
    assert pending_in((1, b"inbox", None, endless, b"")) == (0, 0)
    for header in (None, b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 408 x\r\n\r\n", b"NATS/1.0 "):
        assert status_in((1, b"s", b"reply", header, b"data")) is None


def test_a_message_counts_as_the_server_counts_it() -> None:
    assert message_size((1, b"subj", b"reply", b"head", b"data!")) == 4 + 5 + 4 + 5
    assert message_size((1, b"subj", None, None, b"")) == 4


def test_statuses_become_exceptions_that_name_the_consumer() -> None:
    assert isinstance(status_error(409, "Consumer Deleted", "C"), ConsumerGoneError)
    assert "'C'" in str(status_error(503, "", "C"))
    refused = status_error(409, "Exceeded MaxWaiting", "C")
    assert isinstance(refused, PullError)
    assert (refused.status, refused.description) == (409, "Exceeded MaxWaiting")


@pytest.mark.feature("client.missed-heartbeats")
def test_two_silent_heartbeats_are_missed_once() -> None:
    monitor = HeartbeatMonitor(5.0, now=100.0)
    assert monitor.deadline == 110.0
    assert not monitor.missed(109.9)
    monitor.heard(109.9)
    assert not monitor.missed(119.8)
    assert monitor.missed(119.9)
    assert not monitor.missed(120.0)
    assert monitor.missed(129.9)


@pytest.mark.feature("client.missed-heartbeats")
def test_silence_is_no_news_while_disconnected() -> None:
    monitor = HeartbeatMonitor(5.0, now=0.0)
    monitor.pause()
    assert not monitor.missed(1000.0)
    monitor.resume(1000.0)
    assert not monitor.missed(1009.9)
    assert monitor.missed(1010.0)
