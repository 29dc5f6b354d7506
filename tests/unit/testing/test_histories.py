"""The checks of what clients of a replicated stream saw find what is wrong, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.histories import (
    Action,
    Delivery,
    Operation,
    Outcome,
    Stored,
    consumer_violations,
    is_linearizable,
    not_linearizable,
    violations,
)

DONE, REFUSED, FAILED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.FAILED, Outcome.UNKNOWN


def put(tag: str, seq: int, at: float, until: float, outcome: Outcome = DONE) -> Operation:
    return Operation(Action.PUBLISH, "s", tag, at, until, outcome, seq)


def cas(tag: str, expected: int, seq: int, at: float, until: float, outcome: Outcome = DONE) -> Operation:
    return Operation(Action.CAS, "s", tag, at, until, outcome, seq, expected)


def read(tag: str, seq: int, at: float, until: float) -> Operation:
    return Operation(Action.READ, "s", tag, at, until, DONE, seq)


def allows(order: tuple[Operation, ...], skipped: frozenset[int]) -> bool:
    """Whether a sequential order explains the answers; of the unknown ones some did not happen."""
    last_tag, last_seq = "", 0
    for index, one in enumerate(order):
        if index in skipped or one.outcome is FAILED:
            continue
        if one.action is Action.READ:
            if one.tag != last_tag:
                return False
            continue
        if one.action is Action.CAS:
            if one.outcome is REFUSED:
                if last_seq == one.expected:
                    return False
                continue
            if last_seq != one.expected:
                return False
        if one.seq <= last_seq:
            return False
        last_tag, last_seq = one.tag, one.seq
    return True


def reference(history: list[Operation]) -> bool:
    """Tries every order that keeps real time."""
    for order in permutations(history):
        times = enumerate(order)
        if any(later.returned < one.invoked for i, one in times for later in order[i + 1 :]):
            continue
        free = [index for index, one in enumerate(order) if one.outcome is UNKNOWN]
        for mask in range(1 << len(free)):
            if allows(order, frozenset(one for bit, one in enumerate(free) if mask >> bit & 1)):
                return True
    return not history


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Requests of one subject with sequences 1 to n, some impossible; every sequence is known."""
    size = draw(st.integers(1, 5))
    seqs = draw(st.permutations(range(1, size + 1)))
    tags = [f"t{index}" for index in range(size)]
    made = []
    for index in range(size):
        at = draw(st.integers(0, 8))
        until = at + draw(st.integers(1, 5))
        action = draw(st.sampled_from(list(Action)))
        if action is Action.READ:
            which = draw(st.integers(-1, size - 1))
            made.append(read(tags[which] if which >= 0 else "", seqs[which] if which >= 0 else 0, at, until))
            continue
        outcomes = [DONE, UNKNOWN, FAILED] + [REFUSED] * (action is Action.CAS)
        outcome = draw(st.sampled_from(outcomes))
        ends = inf if outcome is UNKNOWN else until
        expected = draw(st.integers(0, size)) if action is Action.CAS else 0
        made.append(Operation(action, "s", tags[index], at, ends, outcome, seqs[index], expected))
    return made


@given(histories())
def test_the_search_agrees_with_trying_every_order(history: list[Operation]) -> None:
    written = {one.tag for one in history if one.action is not Action.READ}
    known = [Stored(one.seq, "s", one.tag) for one in history if one.tag in written]
    assert is_linearizable(history, stored=known) == reference(history)


def test_a_read_of_an_older_value_than_one_acknowledged_is_found() -> None:
    history = [put("a", 1, 0, 1), put("b", 2, 2, 3), read("a", 1, 4, 5)]
    assert is_linearizable(history) is False
    assert is_linearizable([*history[:2], read("a", 1, 2.5, 5)]) is True
    assert not_linearizable(history) == (["s"], [])


def test_sequences_against_real_time_are_found() -> None:
    assert is_linearizable([put("a", 2, 0, 1), put("b", 1, 2, 3)]) is False
    assert is_linearizable([put("a", 2, 0, 3), put("b", 1, 2, 3)]) is True


def test_a_refused_compare_and_set_that_should_have_won_is_found() -> None:
    assert is_linearizable([put("a", 1, 0, 1), cas("b", 1, 0, 2, 3, REFUSED)]) is False
    assert is_linearizable([put("a", 1, 0, 1), cas("b", 0, 0, 2, 3, REFUSED)]) is True


def test_two_winners_of_one_compare_and_set_are_found() -> None:
    history = [cas("a", 0, 1, 0, 2), cas("b", 0, 2, 1, 3)]
    assert is_linearizable(history) is False
    found = violations(history, [Stored(1, "s", "a"), Stored(2, "s", "b")])
    assert len(found) == 1
    assert "stored after 1 instead of 0" in found[0]


def test_a_write_without_an_answer_may_show_later_or_never() -> None:
    lost = put("b", 0, 2, inf, UNKNOWN)
    assert is_linearizable([put("a", 1, 0, 1), lost, read("a", 1, 3, 4), read("b", 2, 5, 6)]) is True
    assert is_linearizable([put("a", 1, 0, 1), lost, read("b", 2, 3, 4), read("a", 1, 5, 6)]) is False
    assert violations([put("a", 1, 0, 1), lost], [Stored(1, "s", "a")]) == []


def test_a_search_without_end_says_so() -> None:
    history = [put(str(index), 0, 0, inf, UNKNOWN) for index in range(12)]
    history += [read("nothing", 99, 1, 2)]
    assert is_linearizable(history, 1000) is None
    assert not_linearizable(history[:1]) == ([], [])


GOOD = [put("a", 1, 0, 1), put("b", 2, 2, 3), cas("c", 2, 3, 4, 5), put("d", 0, 5, 6, FAILED)]
STORED = [Stored(1, "s", "a"), Stored(2, "s", "b"), Stored(3, "s", "c")]


def test_a_history_without_faults_has_no_violation() -> None:
    assert violations(GOOD, STORED) == []
    assert is_linearizable(GOOD) is True


@pytest.mark.parametrize(
    ("operations", "stored", "text"),
    [
        (GOOD, STORED[:2], "acknowledged and lost"),
        (GOOD, [STORED[0], Stored(2, "s", "x"), STORED[2]], "acknowledged and lost"),
        (GOOD, [*STORED, Stored(4, "s", "a")], "stored 2 times: 'a'"),
        (GOOD, [*STORED, Stored(4, "s", "d")], "refused and stored at 4"),
        (GOOD, [*STORED, Stored(4, "s", "z")], "stored and never sent: 'z'"),
        (
            [replace(GOOD[0], seq=2), replace(GOOD[1], seq=1)],
            [Stored(1, "s", "b"), Stored(2, "s", "a")],
            "stored at 1, before 2, which was answered first",
        ),
        ([*GOOD[:2], replace(GOOD[2], expected=1)], STORED, "stored after 2 instead of 1"),
    ],
)
def test_a_planted_violation_is_named(operations: list[Operation], stored: list[Stored], text: str) -> None:
    found = violations(operations, stored)
    assert any(text in one for one in found), found


def test_deliveries_after_a_confirmed_ack_and_missing_ones_are_found() -> None:
    deliveries = [Delivery(1, 0.0), Delivery(2, 0.0), Delivery(1, 2.0)]
    assert consumer_violations(deliveries, {2: 1.0}, [1, 2]) == []
    assert consumer_violations(deliveries, {1: 1.0}, [1, 2]) == [
        "1 delivered to a request sent after the confirmation of its ack"
    ]
    assert consumer_violations(deliveries, {}, [1, 2, 3]) == ["3 never delivered"]
