"""Priority groups (ADR-42): who of those that wait gets messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.consumer.standby import StandbyConsumer
from penstock.protocol.durations import format_time
from tests.support.consumers import MS, SECOND, ConsumerHarness, Delivered, Inbox

pytestmark = pytest.mark.feature("consumer.priority-groups")


def header_of(message: Delivered, name: str) -> str:
    for line in message.header.decode().split("\r\n"):
        key, _, value = line.partition(": ")
        if key == name:
            return value
    return ""


def listener(bench: ConsumerHarness, subject: str) -> Inbox:
    return Inbox(bench, subject.encode())


def group(**more: Any) -> dict[str, Any]:
    return {"priority_groups": ["jobs"], **more}


def pull(bench: ConsumerHarness, batch: int = 10, **more: Any) -> Inbox:
    return bench.pull("c", {"batch": batch, "expires": 60 * SECOND, "group": "jobs", **more})


# --- overflow --------------------------------------------------------------------------------------


def test_an_overflow_request_waits_until_enough_messages_are_pending() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="overflow"))
    waiting = pull(bench, min_pending=4)
    bench.store_messages("s.1", "s.2", "s.3")
    assert waiting.take() == []
    bench.store_messages("s.4")
    assert waiting.seqs() == [1]  # three are left then: below the threshold again
    bench.store_messages("s.5", "s.6")
    assert waiting.seqs() == [2, 3]


def test_an_overflow_request_is_served_once_enough_messages_are_unacked() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="overflow"))
    waiting = pull(bench, min_ack_pending=2)
    first = pull(bench, batch=2)
    bench.store_messages("s.1", "s.2", "s.3")
    assert first.seqs() == [1, 2]
    assert waiting.seqs() == [3]


def test_a_no_wait_request_that_is_no_overflow_yet_ends_with_404() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="overflow"))
    bench.store_messages("s.1", "s.2")
    got = bench.pull("c", {"batch": 10, "no_wait": True, "group": "jobs", "min_pending": 5})
    assert got.statuses() == ["404 No Messages"]


# --- pinned client ---------------------------------------------------------------------------------


def test_the_first_client_served_is_pinned_and_the_others_stand_by() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client"))
    events = listener(bench, "$JS.EVENT.ADVISORY.CONSUMER.PINNED.S.c")
    one, two = pull(bench), pull(bench)
    assert events.take() == []
    bench.store_messages("s.1", "s.2", "s.3")
    messages = one.take()
    pin = header_of(messages[0], "Nats-Pin-Id")
    assert pin and [header_of(m, "Nats-Pin-Id") for m in messages] == [pin] * 3
    assert [m.payload for m in messages] == [b"payload"] * 3
    assert two.take() == []
    event = json.loads(events.take()[0].payload)
    assert event["type"] == "io.nats.jetstream.advisory.v1.consumer_group_pinned"
    assert (event["group"], event["pinned_id"]) == ("jobs", pin)
    state = bench.info("c")["priority_groups"]
    assert [(one["group"], one["pinned_client_id"]) for one in state] == [("jobs", pin)]


def test_a_pull_with_another_pin_is_refused_with_423() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client"))
    pull(bench)
    bench.store_messages("s.1")
    assert pull(bench, id="other").statuses() == ["423 Nats-Pin-Id mismatch"]


def test_the_pin_ends_when_its_client_stays_away_and_a_stand_by_takes_over() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client", priority_timeout=2 * SECOND))
    events = listener(bench, "$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.S.c")
    one, two = pull(bench, batch=1), pull(bench)
    bench.store_messages("s.1", "s.2")
    pin = header_of(one.take()[0], "Nats-Pin-Id")
    assert two.take() == []
    bench.pass_time(1 * SECOND)
    again = pull(bench, batch=1, id=pin)  # the pinned client is still there
    assert again.seqs() == [2]
    bench.pass_time(1500 * MS)
    bench.store_messages("s.3")
    assert two.take() == []
    bench.pass_time(600 * MS)
    assert two.seqs() == [3]
    assert json.loads(events.take()[0].payload)["reason"] == "timeout"
    # The old pin is over: its client gets a status, forgets it and stands by.
    assert pull(bench, id=pin).statuses() == ["423 Nats-Pin-Id mismatch"]


@pytest.mark.parametrize("policy", ["pinned_client", "none"])
def test_a_standby_that_takes_over_holds_the_pin_it_knows(policy: str) -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client", priority_timeout=2 * SECOND))
    first = pull(bench, batch=1)
    bench.store_messages("s.1")
    pin = header_of(first.take()[0], "Nats-Pin-Id")
    standby = StandbyConsumer(bench.engine.streams["S"].consumers["c"].meta)
    standby.set_pin(pin, bench.now)
    if policy == "none":
        bench.consumer("c")
    bench.pass_time(SECOND)

    bench = bench.restarted()
    stream = bench.engine.streams["S"]
    stream.consumers.pop("c").close()
    events = listener(bench, "$JS.EVENT.ADVISORY.CONSUMER.>")
    store = stream.store.open_consumer("c")
    consumer = bench.engine.consumers.recover(stream, store, bench.now, standby.pin)
    if policy == "none":
        assert consumer.delivery.pinning.pin == b""
        return
    assert events.take() == []  # it is no new pin
    other = pull(bench)
    bench.store_messages("s.2")
    assert other.take() == []
    again = pull(bench, batch=1, id=pin).take()
    assert [(one.seq, header_of(one, "Nats-Pin-Id")) for one in again] == [(2, pin)]
    at = bench.info("c")["priority_groups"][0]
    assert (at["pinned_client_id"], at["pinned_ts"]) == (pin, format_time(standby.pin.since))
    bench.store_messages("s.3")
    bench.pass_time(1900 * MS)  # its client has the whole timeout to find the new leader
    assert other.take() == []
    bench.pass_time(200 * MS)
    assert other.seqs() == [3]
    assert [json.loads(one.payload)["type"].rpartition(".")[2] for one in events.take()] == [
        "consumer_group_unpinned",
        "consumer_group_pinned",
    ]


def test_a_waiting_request_with_an_old_pin_ends_with_423_when_its_turn_comes() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client", priority_timeout=1 * SECOND))
    one = pull(bench, batch=1)
    bench.store_messages("s.1")
    pin = header_of(one.take()[0], "Nats-Pin-Id")
    late = pull(bench, id=pin, batch=7)
    bench.pass_time(1100 * MS)
    bench.store_messages("s.2")
    got = late.take()
    assert [m.status for m in got] == ["423 Nats-Wrong-Pin-Id"]
    assert header_of(got[0], "Nats-Pending-Messages") == "7"


def test_unpin_hands_the_messages_to_the_next_client() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client"))
    events = listener(bench, "$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.S.c")
    one, two = pull(bench, batch=1), pull(bench)
    bench.store_messages("s.1", "s.2")
    assert one.seqs() == [1]
    answer = bench.request("$JS.API.CONSUMER.UNPIN.S.c", {"group": "jobs"})
    assert answer == {"type": "io.nats.jetstream.api.v1.consumer_unpin_response"}
    bench.tick()
    assert two.seqs() == [2]
    assert json.loads(events.take()[0].payload)["reason"] == "admin"


@pytest.mark.parametrize(
    ("body", "err_code"), [({}, 10025), ({"group": "no.name"}, 10162), ({"group": "other"}, 10160)]
)
def test_unpinning_what_is_no_group_is_refused(body: dict[str, str], err_code: int) -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client"))
    assert bench.request("$JS.API.CONSUMER.UNPIN.S.c", body)["error"]["err_code"] == err_code


def test_a_pinned_message_without_its_payload_has_both_headers() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", headers_only=True, **group(priority_policy="pinned_client"))
    one = pull(bench)
    bench.store_messages("s.1")
    message = one.take()[0]
    assert header_of(message, "Nats-Msg-Size") == "7"
    assert header_of(message, "Nats-Pin-Id")
    assert message.payload == b""


def test_a_message_too_large_for_the_first_request_pins_the_next_one() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="pinned_client"))
    small, large = pull(bench, max_bytes=20), pull(bench)
    bench.store_messages("s.1", payload=b"p" * 100)
    assert small.statuses() == ["409 Message Size Exceeds MaxBytes"]
    assert large.seqs() == [1]


# --- prioritized -----------------------------------------------------------------------------------


def test_requests_of_the_lowest_priority_are_served_first_and_take_turns() -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy="prioritized"))
    low = pull(bench, batch=2, priority=5)
    first, second = pull(bench, batch=2, priority=1), pull(bench, batch=1, priority=1)
    bench.store_messages("s.1", "s.2", "s.3", "s.4", "s.5")
    assert first.seqs() == [1, 3]
    assert second.seqs() == [2]
    assert low.seqs() == [4, 5]


# --- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "request_fields", "text"),
    [
        ("overflow", {"group": ""}, "Priority Group missing"),
        ("overflow", {"group": "x"}, "Invalid Priority Group"),
        ("overflow", {"id": "p"}, "Not a Pinned Client Priority consumer"),
        ("pinned_client", {"min_pending": 1}, "Not a Overflow Priority consumer"),
        ("prioritized", {"priority": 10}, "Priority must be between 0 and 9"),
    ],
)
def test_requests_that_do_not_fit_the_policy_are_refused(
    policy: str, request_fields: dict[str, Any], text: str
) -> None:
    bench = ConsumerHarness()
    bench.consumer("c", **group(priority_policy=policy))
    assert pull(bench, **request_fields).statuses() == [f"400 Bad Request - {text}"]


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"priority_policy": "overflow"}, 10159),
        ({"priority_policy": "overflow", "priority_groups": [""]}, 10161),
        ({"priority_policy": "overflow", "priority_groups": ["a b"]}, 10162),
        ({"priority_policy": "overflow", "priority_groups": ["a" * 17]}, 10162),
        ({"priority_groups": ["a"]}, 10196),
        ({"priority_timeout": SECOND}, 10197),
        (
            {"priority_policy": "overflow", "priority_groups": ["a"], "deliver_subject": "d"},
            10178,
        ),
    ],
)
def test_a_configuration_of_groups_that_makes_no_sense_is_refused(
    config: dict[str, Any], err_code: int
) -> None:
    bench = ConsumerHarness()
    answer = bench.define("c", **{"ack_policy": "explicit", **config})
    assert answer["error"]["err_code"] == err_code


def test_a_policy_can_be_given_to_a_consumer_and_taken_away() -> None:
    bench = ConsumerHarness()
    bench.consumer("c")
    bench.consumer("c", **group(priority_policy="pinned_client"))
    pull(bench)
    bench.store_messages("s.1")
    assert bench.info("c")["priority_groups"][0]["pinned_client_id"]
    bench.consumer("c")
    got = bench.pull("c", {"batch": 1, "no_wait": True})
    bench.store_messages("s.2")
    assert "priority_groups" not in bench.info("c")
    assert got.statuses() == ["404 No Messages"]
