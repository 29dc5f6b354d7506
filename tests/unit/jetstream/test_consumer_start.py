"""Deliver policies and filters: which messages a consumer gets, and what it says is pending."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("consumer.deliver-policy", "consumer.filters")

#         1      2      3      4      5      6
STORED = ("s.a", "s.b", "s.a", "s.c", "s.b", "s.a")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"filter_subject": "s.a"}, [1, 3, 6]),
        ({"filter_subjects": ["s.a", "s.c"]}, [1, 3, 4, 6]),
        ({"filter_subject": "s.*"}, [1, 2, 3, 4, 5, 6]),
        ({"filter_subject": "s.z"}, []),
        ({"deliver_policy": "last"}, [6]),
        ({"deliver_policy": "last", "filter_subject": "s.b"}, [5]),
        ({"deliver_policy": "last", "filter_subject": "s.z"}, []),
        ({"deliver_policy": "new"}, []),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [4, 5, 6]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4, "filter_subject": "s.a"}, [6]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 40}, []),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T22:13:23Z"}, [4, 5, 6]),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}, [1, 2, 3, 4, 5, 6]),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2090-01-01T00:00:00Z"}, []),
        ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, [4, 5, 6]),
        ({"deliver_policy": "last_per_subject", "filter_subjects": ["s.b", "s.c"]}, [4, 5]),
    ],
)
@pytest.mark.parametrize("ack_policy", ["none", "all", "explicit"])
def test_a_consumer_begins_where_its_policy_says(
    config: dict[str, Any], expected: list[int], ack_policy: str
) -> None:
    bench = ConsumerHarness()
    for subject in STORED:
        bench.store_messages(subject)
        bench.now += SECOND
    answer = bench.define("x", ack_policy=ack_policy, **config)
    assert answer["num_pending"] == len(expected)
    inbox = bench.pull("x", b"100")
    got = inbox.take()
    assert [one.seq for one in got] == expected
    assert [one.subject.decode() for one in got] == [STORED[seq - 1] for seq in expected]
    assert [one.numbers[2:] for one in got] == [(i + 1, len(expected) - i - 1) for i in range(len(expected))]


def test_last_per_subject_goes_on_with_what_is_stored_later() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*STORED)
    consumer = bench.consumer("x", deliver_policy="last_per_subject", filter_subject="s.>")
    inbox = bench.pull("x", b"2")
    bench.store_messages("s.a", "s.d")
    assert bench.info("x")["num_pending"] == 3
    bench.pull("x", b"9", inbox)
    assert inbox.seqs() == [4, 5, 6, 7, 8]
    assert not consumer.pump.skipping


def test_other_filters_begin_with_the_last_messages_of_their_own() -> None:
    bench = ConsumerHarness()
    bench.store_messages("s.a", "s.b", "s.a", "s.b", "s.c")
    config = {"durable_name": "x", "deliver_policy": "last_per_subject"}
    bench.consumer("x", **config, filter_subject="s.a")
    bench.consumer("x", **config, filter_subjects=["s.b", "s.c"])
    assert bench.info("x")["num_pending"] == 2
    assert bench.pull("x", b"2").seqs() == [4, 5]
    bench.consumer("x", **config, filter_subject="s.a")
    bench.store_messages("s.a")
    assert bench.pull("x", b"1").seqs() == [6], "the last of s.a is behind it"


def test_last_per_subject_is_everything_where_a_stream_keeps_one_message_a_subject() -> None:
    bench = ConsumerHarness(stream={"max_msgs_per_subject": 1})
    bench.store_messages(*STORED)
    bench.consumer("x", deliver_policy="last_per_subject", filter_subject="s.>")
    assert bench.pull("x", b"9").seqs() == [4, 5, 6]


def test_pending_is_exact_while_messages_come_and_go() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*STORED)
    bench.consumer("all")
    bench.consumer("some", filter_subject="s.a")
    bench.pull("some", b"1")
    bench.api("STREAM.MSG.DELETE.S", {"seq": 3})
    bench.store_messages("s.a", "s.b")
    bench.api("STREAM.MSG.DELETE.S", {"seq": 8})
    assert [bench.info(name)["num_pending"] for name in ("all", "some")] == [6, 2]
    bench.api("STREAM.PURGE.S", {"filter": "s.a"})
    assert [bench.info(name)["num_pending"] for name in ("all", "some")] == [3, 0]


def test_a_changed_filter_takes_hold_at_once() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*STORED)
    bench.consumer("x", filter_subject="s.a")
    inbox = bench.pull("x", b"1")
    bench.define("x", ack_policy="explicit", filter_subject="s.b")
    assert bench.info("x")["num_pending"] == 2
    bench.pull("x", b"9", inbox)
    assert inbox.seqs() == [1, 2, 5]


def test_a_purge_moves_position_and_floors() -> None:
    bench = ConsumerHarness()
    bench.store_messages(*STORED)
    bench.consumer("x")
    bench.pull("x", b"2")
    bench.api("STREAM.PURGE.S", {"seq": 5})
    assert bench.floors("x") == (2, 4, 2, 4)
    assert bench.pull("x", b"2").seqs() == [5, 6]
    bench.api("STREAM.PURGE.S")
    assert bench.floors("x") == (4, 6, 4, 6)
    bench.store_messages("s.a")
    assert bench.pull("x", b"9").seqs() == [7]
