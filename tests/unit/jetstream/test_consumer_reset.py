"""CONSUMER.RESET: a consumer starts again at a sequence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.consumers import SECOND, ConsumerHarness

pytestmark = pytest.mark.feature("consumer.reset")


def reset(bench: ConsumerHarness, body: Any = b"") -> Any:
    return bench.request("$JS.API.CONSUMER.RESET.S.c", body)


def with_five_delivered(**config: Any) -> ConsumerHarness:
    bench = ConsumerHarness()
    bench.store_messages(*["s.x"] * 5)
    bench.consumer("c", **config)
    messages = bench.pull("c", {"batch": 5}).take()
    for message in messages[:2]:
        bench.ack(message)
    bench.tick()
    return bench


def test_an_empty_reset_goes_back_to_the_ack_floor() -> None:
    bench = with_five_delivered()
    answer = reset(bench)
    assert answer["reset_seq"] == 3
    assert answer["type"] == "io.nats.jetstream.api.v1.consumer_reset_response"
    assert (answer["num_pending"], answer["num_ack_pending"]) == (3, 0)
    assert bench.floors("c") == (0, 2, 0, 2)
    assert bench.pull("c", {"batch": 5, "no_wait": True}).take()[0].numbers == (1, 3, 1, 2)


def test_a_reset_to_a_sequence_delivers_from_there_on() -> None:
    bench = with_five_delivered()
    assert reset(bench, {"seq": 2})["reset_seq"] == 2
    assert bench.pull("c", {"batch": 5, "expires": SECOND}).seqs() == [2, 3, 4, 5]


def test_a_reset_survives_a_restart() -> None:
    bench = with_five_delivered()
    reset(bench, {"seq": 4})
    after = bench.restarted()
    assert after.floors("c") == (0, 3, 0, 3)
    assert after.pull("c", {"batch": 5, "expires": SECOND}).seqs() == [4, 5]


def test_what_is_acked_after_a_reset_counts_again() -> None:
    bench = with_five_delivered()
    reset(bench, {"seq": 1})
    for message in bench.pull("c", {"batch": 5}).take():
        bench.ack(message)
    bench.tick()
    assert bench.floors("c") == (5, 5, 5, 5)


@pytest.mark.parametrize(
    ("config", "seq", "text"),
    [
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 2, "invalid reset: below start seq"),
        ({"deliver_policy": "last"}, 2, "invalid reset: not allowed"),
        ({"deliver_policy": "new"}, 2, "invalid reset: not allowed"),
    ],
)
def test_a_reset_that_the_deliver_policy_has_no_place_for_is_refused(
    config: dict[str, Any], seq: int, text: str
) -> None:
    bench = with_five_delivered(**config)
    error = reset(bench, {"seq": seq})["error"]
    assert (error["err_code"], error["description"]) == (10204, text)


def test_a_reset_of_no_consumer_or_stream_gets_no_answer() -> None:
    bench = ConsumerHarness()
    assert bench.messages("$JS.API.CONSUMER.RESET.S.c") == []
    assert bench.messages("$JS.API.CONSUMER.RESET.T.c", b"{") == []
