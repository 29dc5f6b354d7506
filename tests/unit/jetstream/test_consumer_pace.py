"""How fast a consumer delivers: replay in the original pace, and a rate limit."""

from __future__ import annotations

import itertools

import pytest

from tests.support.consumers import MS, SECOND, ConsumerHarness, Inbox

pytestmark = pytest.mark.feature("consumer.replay-policy", "consumer.rate-limit")

RATE_BPS = 80_000  # ten thousand bytes a second


def spaced(bench: ConsumerHarness, *pauses_ms: int) -> None:
    for pause in pauses_ms:
        bench.pass_time(pause * MS)
        bench.store_messages("s.x")


def arrivals(bench: ConsumerHarness, inbox: Inbox, *, ms: int, step_ms: int = 1) -> list[int]:
    """When messages came, in ms from now."""
    times = []
    for at in range(0, ms, step_ms):
        times += [at] * len(inbox.seqs())
        bench.pass_time(step_ms * MS)
    return times


def test_replay_original_keeps_the_pauses_between_messages() -> None:
    bench = ConsumerHarness()
    spaced(bench, 0, 100, 250, 50)
    bench.consumer("c", replay_policy="original")
    inbox = bench.pull("c", {"batch": 10, "expires": 60 * SECOND})
    assert arrivals(bench, inbox, ms=600) == [0, 100, 350, 400]


def test_replay_original_holds_for_a_push_consumer() -> None:
    bench = ConsumerHarness()
    spaced(bench, 0, 100, 250)
    inbox = Inbox(bench, b"deliver")
    bench.consumer("c", replay_policy="original", deliver_subject="deliver")
    bench.tick()
    assert arrivals(bench, inbox, ms=600) == [0, 100, 350]


def test_once_it_has_caught_up_a_replay_goes_on_at_once() -> None:
    bench = ConsumerHarness()
    spaced(bench, 0, 100)
    bench.consumer("c", replay_policy="original")
    inbox = bench.pull("c", {"batch": 2, "expires": 60 * SECOND})
    assert arrivals(bench, inbox, ms=200) == [0, 100]
    more = bench.pull("c", {"batch": 2, "expires": 60 * SECOND})
    spaced(bench, 5000, 5000)
    assert more.seqs() == [3, 4]


def test_a_replayed_message_that_is_refused_comes_again_without_a_pause() -> None:
    bench = ConsumerHarness()
    spaced(bench, 0, 100)
    bench.consumer("c", replay_policy="original")
    inbox = bench.pull("c", {"batch": 10, "expires": 60 * SECOND})
    first = inbox.take()[0]
    bench.ack(first, b"-NAK")
    bench.tick()
    assert inbox.seqs() == [1]


def test_a_rate_limit_holds_back_what_exceeds_it() -> None:
    bench = ConsumerHarness(stream={"max_msg_size": 1200})
    bench.store_messages(*["s.x"] * 6, payload=b"p" * 950)  # about 1000 bytes each with subjects
    inbox = Inbox(bench, b"deliver")
    bench.consumer("c", deliver_subject="deliver", rate_limit_bps=RATE_BPS)
    bench.tick()
    times = arrivals(bench, inbox, ms=800)
    assert times[0] == 0
    pauses = [after - before for before, after in itertools.pairwise(times[1:])]
    assert len(times) == 6
    assert all(95 <= pause <= 105 for pause in pauses), times


def test_a_rate_limit_can_be_changed() -> None:
    bench = ConsumerHarness(stream={"max_msg_size": 1200})
    bench.store_messages(*["s.x"] * 4, payload=b"p" * 950)
    inbox = Inbox(bench, b"deliver")
    bench.consumer("c", deliver_subject="deliver", rate_limit_bps=RATE_BPS)
    bench.tick()
    assert len(inbox.take()) == 1
    bench.consumer("c", deliver_subject="deliver")
    bench.tick()
    assert len(inbox.take()) == 3


def test_a_rate_limit_is_for_push_consumers() -> None:
    bench = ConsumerHarness()
    answer = bench.define("c", ack_policy="explicit", rate_limit_bps=RATE_BPS)
    assert answer["error"]["err_code"] == 10086
