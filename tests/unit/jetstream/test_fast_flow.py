"""Flow control of fast batches, the client's side: no pattern of lost acks may stall it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BatchNotEnabledError, BatchUnknownError, MisuseError
from penstock.protocol.api import ApiError, DecodeError, PubAck
from penstock.protocol.batch import (
    BatchGap,
    BatchRefused,
    FlowAck,
    Operation,
    batch_exception,
    check_batch_id,
    parse_answer,
    reply_end,
    reply_prefix,
)
from penstock.protocol.flow import FlowWindow
from tests.reference.batch_frames import FlowServer
from tests.support.examples import examples

pytestmark = pytest.mark.feature("fast-ingest.ack-window")

TOTAL = 100
PINGS_MAX = 8 * TOTAL


@settings(max_examples=examples(300), deadline=None)
@given(
    flow=st.integers(1, 100),
    outstanding=st.integers(1, 3),
    changes=st.lists(st.integers(1, 100), min_size=1),
    lost=st.lists(st.booleans(), min_size=1),
    late=st.lists(st.integers(0, 5), min_size=1),
)
def test_no_pattern_of_lost_and_late_acks_stalls_a_batch(
    flow: int, outstanding: int, changes: list[int], lost: list[bool], late: list[int]
) -> None:
    """Pings are what makes up for a lost last ack; every ping may lose its answer too, but not all of
    them."""
    window = FlowWindow(flow, outstanding, gap_ok=True)
    server = FlowServer(min(flow, changes[0]))
    in_flight: list[tuple[int, FlowAck]] = []
    counts = {"answers": 0, "pings": 0}

    def answer(ack: tuple[int, int]) -> None:
        n = counts["answers"]
        counts["answers"] += 1
        if not lost[n % len(lost)] or n % 7 == 6:
            in_flight.append((late[n % len(late)], FlowAck(*ack)))

    while window.sent < TOTAL:
        in_flight = [(wait - 1, ack) for wait, ack in in_flight]
        for wait, ack in list(in_flight):
            if wait < 0:
                in_flight.remove((wait, ack))
                window.on_answer(ack)
        if window.room:
            window.take()
            assert window.sent - window.acked <= flow * outstanding
            made = server.receive(min(flow, changes[server.received % len(changes)]))
            if window.sent == 1:
                answer(server.first())
            if made:
                answer(made)
        elif not in_flight:
            counts["pings"] += 1
            assert counts["pings"] < PINGS_MAX, "the batch stalls"
            answer(server.ping())
    assert window.acked <= window.sent


@pytest.mark.feature("fast-ingest.flow-ack")
def test_nothing_is_sent_before_the_first_answer() -> None:
    window = FlowWindow(10, 2, gap_ok=False)
    assert window.room == 1
    window.take()
    assert window.room == 0
    window.on_answer(FlowAck(0, 4))
    assert window.room == 7


def test_one_ack_speaks_for_the_lost_ones_before_it() -> None:
    window = FlowWindow(10, 2, gap_ok=False)
    window.take()
    window.on_answer(FlowAck(0, 10))
    window.take(19)
    assert window.room == 0
    window.on_answer(FlowAck(20, 10))
    assert window.room == 20


@pytest.mark.feature("fast-ingest.flow")
def test_the_server_can_not_raise_the_flow_above_the_clients() -> None:
    window = FlowWindow(10, 1, gap_ok=False)
    window.take()
    window.on_answer(FlowAck(0, 500))
    assert window.room == 9


def test_acks_that_come_late_or_twice_change_nothing() -> None:
    window = FlowWindow(10, 2, gap_ok=False)
    window.take()
    window.on_answer(FlowAck(0, 10))
    window.take(19)
    for ack in (FlowAck(20, 5), FlowAck(10, 10), FlowAck(9999, 10)):
        window.on_answer(ack)
    assert (window.acked, window.room) == (20, 10)


@pytest.mark.feature("fast-ingest.gap-ok", "fast-ingest.gap-fail", "fast-ingest.message-errors")
@pytest.mark.parametrize("gap_ok", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: BatchGap(2, 4), lambda: BatchRefused(3, ApiError(400, 10071, "wrong"))]
)
def test_a_gap_or_a_refusal_ends_only_a_batch_that_fails_at_gaps(
    gap_ok: bool, make: Callable[[], BatchGap | BatchRefused]
) -> None:
    window = FlowWindow(10, 2, gap_ok=gap_ok)
    window.take()
    window.on_answer(FlowAck(0, 10))
    window.on_answer(make())
    assert bool(window.room) is gap_ok


def test_the_first_last_word_counts() -> None:
    window = FlowWindow(10, 2, gap_ok=False)
    window.take()
    window.on_answer(PubAck(stream="S", seq=1, batch="b", count=1))
    window.on_answer(PubAck(error=ApiError(400, 10206, "batch publish ID unknown")))
    assert window.final is not None
    assert (window.final.count, window.acked, window.room) == (1, 1, 0)


@pytest.mark.parametrize(("flow", "outstanding"), [(0, 2), (65536, 2), (10, 0), (10, 4)])
def test_windows_that_make_no_sense_are_refused(flow: int, outstanding: int) -> None:
    with pytest.raises(MisuseError):
        FlowWindow(flow, outstanding, gap_ok=True)


# --- the grammar -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"type":"ack","seq":20,"msgs":10}', FlowAck(20, 10)),
        (b'{"type":"ack","seq":20,"msgs":10,"ack_msgs":10}', FlowAck(20, 10)),
        (b'{"seq":20,"ack_msgs":10}', FlowAck(20, 10)),
        (b'{"ack_msgs":10}', FlowAck(0, 10)),
        (b'{"type":"gap","last_seq":3,"seq":7}', BatchGap(3, 7)),
        (b'{"last_seq":3,"seq":7}', BatchGap(3, 7)),
        (b'{"seq":7}', BatchGap(0, 7)),
        (
            b'{"type":"err","seq":7,"error":{"code":400,"err_code":10071,"description":"d"}}',
            BatchRefused(7, ApiError(400, 10071, "d")),
        ),
        (
            b'{"seq":7,"error":{"code":400,"err_code":10071,"description":"d"}}',
            BatchRefused(7, ApiError(400, 10071, "d")),
        ),
        (
            b'{"stream":"S","seq":7,"batch":"b","count":7}',
            PubAck(stream="S", seq=7, batch="b", count=7),
        ),
        (
            b'{"error":{"code":400,"err_code":10203,"description":"d"},"stream":"S","seq":0}',
            PubAck(stream="S", error=ApiError(400, 10203, "d")),
        ),
        (
            b'{"error":{"code":400,"err_code":10203,"description":"d"}}',
            PubAck(error=ApiError(400, 10203, "d")),
        ),
    ],
)
def test_both_dialects_of_answers_are_read(text: bytes, expected: object) -> None:
    assert parse_answer(text) == expected


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"{nope", b'{"type":"ack","seq":"x"}'])
def test_what_is_no_answer_is_an_error(text: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_answer(text)


@pytest.mark.feature("fast-ingest.reply-subject")
def test_reply_subjects_say_all_there_is() -> None:
    prefix = reply_prefix("_INBOX.abc", "batch1", 100, gap_ok=False)
    assert prefix + reply_end(7, Operation.APPEND) == b"_INBOX.abc.batch1.100.fail.7.1.$FI"
    assert reply_prefix("p", "b", 1, gap_ok=True) + reply_end(2, Operation.PING) == b"p.b.1.ok.2.4.$FI"


@pytest.mark.feature("atomic.id-length", "fast-ingest.id-length")
@pytest.mark.parametrize("batch_id", ["", "a" * 65, "a.b", "a b", "*", ">", "a\r\n"])
def test_batch_ids_that_are_no_token_of_at_most_64_characters_are_refused(batch_id: str) -> None:
    with pytest.raises(MisuseError):
        check_batch_id(batch_id)


@pytest.mark.parametrize(("code", "official"), [(10203, 10205), (10206, 10208)])
def test_both_dialects_of_error_codes_are_the_same_exceptions(code: int, official: int) -> None:
    kind = BatchNotEnabledError if code == 10203 else BatchUnknownError
    text = "batch publish is disabled" if code == 10203 else "batch publish ID unknown"
    for err_code in (code, official):
        assert type(batch_exception(ApiError(400, err_code, text), "s")) is kind
