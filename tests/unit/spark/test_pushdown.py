"""Filters that the server can apply: what is pushed never loses a row the filter keeps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from penstock.protocol.subjects import matches
from penstock.spark.positions import SEQUENCE_MAX
from penstock.spark.pushdown import Pushed

pytestmark = pytest.mark.feature("spark.pushdown")

SEQ, SUBJECT, TIME, STREAM = ("seq",), ("subject",), ("time",), ("stream",)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def push(*filters: Filter, **given: Any) -> tuple[Pushed, list[Filter]]:
    pushed = Pushed(**given)
    return pushed, pushed.take(filters)


def test_sequences_become_a_range_and_leave_nothing_to_spark() -> None:
    pushed, left = push(GreaterThan(SEQ, 10), LessThanOrEqual(SEQ, 20), GreaterThanOrEqual(SEQ, 5))
    assert (pushed.start, pushed.end, left) == (11, 21, [])
    pushed, left = push(EqualTo(SEQ, 7), LessThan(SEQ, 100))
    assert (pushed.start, pushed.end, left) == (7, 8, [])
    several = In(SEQ, (3, 9))
    pushed, left = push(several)
    assert (pushed.start, pushed.end, left) == (3, 10, [several])


def test_subjects_become_filters_within_the_options_own() -> None:
    pushed, left = push(In(SUBJECT, ("a.b", "a.c", "z", None)), subjects=("a.*",))
    assert (pushed.subjects, left) == (("a.b", "a.c"), [])
    pushed, left = push(EqualTo(SUBJECT, "z"), subjects=("a.*",))
    assert (pushed.subjects, left) == ((), [])
    assert not pushed.wants("S")
    assert push(EqualTo(SUBJECT, "a.*"))[0].subjects == ()  # no message has such a subject
    pushed, left = push(EqualNullSafe(SUBJECT, "a.b"), StringStartsWith(SUBJECT, "a."))
    assert (pushed.subjects, left) == (("a.b",), [])


@pytest.mark.parametrize(
    ("prefix", "filters", "is_exact"),
    [
        ("orders.", ("orders.>",), True),
        ("orders.eu.x", ("orders.eu.>",), False),
        ("ord", None, False),
        ("", None, False),
        ("a.*.", None, False),
        ("a..", None, False),
    ],
)
def test_a_prefix_is_a_wildcard_where_it_ends_at_a_dot(
    prefix: str, filters: tuple[str, ...] | None, is_exact: bool
) -> None:
    given = StringStartsWith(SUBJECT, prefix)
    pushed, left = push(given)
    assert (pushed.subjects, left) == (filters, [] if is_exact else [given])


def test_filters_that_would_overlap_in_part_are_left_to_spark() -> None:
    given = StringStartsWith(SUBJECT, "a.b.")
    pushed, left = push(given, subjects=("a.*.c",))
    assert (pushed.subjects, left) == (("a.*.c",), [given])


def test_more_subjects_than_a_consumer_should_have_are_left_to_spark() -> None:
    given = In(SUBJECT, ("a", "b"))
    assert push(given, subjects_max=1)[1] == [given]
    assert push(given, subjects_max=2)[1] == []


def test_times_narrow_and_are_checked_again() -> None:
    local = NOON.astimezone(timezone(timedelta(hours=2)))
    filters = [GreaterThan(TIME, local), LessThan(TIME, NOON + timedelta(hours=1))]
    pushed, left = push(*filters)
    assert (pushed.after, pushed.before) == ("2026-01-31T12:00:00.000000Z", "2026-01-31T13:00:00.000001Z")
    assert left == filters
    pushed, _ = push(*filters, GreaterThanOrEqual(TIME, NOON - timedelta(days=1)))
    assert pushed.after == "2026-01-31T12:00:00.000000Z"


def test_streams_are_picked_and_what_is_never_null_needs_no_check() -> None:
    pushed, left = push(EqualTo(STREAM, "A"), IsNotNull(STREAM), IsNotNull(SEQ))
    assert (pushed.wants("A"), pushed.wants("B"), left) == (True, False, [])


def test_other_filters_are_left_alone() -> None:
    others: list[Filter] = [
        Not(EqualTo(SEQ, 5)),
        StringContains(SUBJECT, "x"),
        IsNotNull(("data",)),
        EqualTo(("data", "id"), 5),
        GreaterThan(TIME, NOON.replace(tzinfo=None)),
    ]
    pushed, left = push(*others)
    assert left == others
    assert pushed == Pushed()


words = st.sampled_from(["a", "b", "c"])
literals = st.lists(words, min_size=1, max_size=3).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2).map(".".join)
subject_filters = st.one_of(
    literals.map(lambda s: EqualTo(SUBJECT, s)),
    st.lists(literals, max_size=3).map(lambda s: In(SUBJECT, tuple(s))),
    st.text("ab.", max_size=4).map(lambda s: StringStartsWith(SUBJECT, s)),
    st.integers(0, 9).map(lambda n: GreaterThan(SEQ, n)),
    st.lists(st.integers(0, 9), max_size=3).map(lambda n: In(SEQ, tuple(n))),
)


def holds(given: Filter, subject: str, seq: int) -> bool:
    value = subject if given.attribute == SUBJECT else seq  # type: ignore[attr-defined]
    match given:
        case EqualTo():
            return bool(value == given.value)
        case In():
            return value in given.value
        case StringStartsWith():
            return subject.startswith(given.value)
        case GreaterThan():
            return bool(value > given.value)
    raise AssertionError


@given(st.lists(subject_filters, max_size=4), st.none() | patterns, literals, st.integers(1, 10))
def test_what_is_pushed_and_what_is_left_together_mean_the_filters(
    filters: list[Filter], option: str | None, subject: str, seq: int
) -> None:
    pushed, left = push(*filters, subjects=(option,) if option else None)
    by_server = pushed.start <= seq < pushed.end <= SEQUENCE_MAX
    if pushed.subjects is not None:
        by_server = by_server and any(matches(f, subject) for f in pushed.subjects)
    wanted = (option is None or matches(option, subject)) and all(holds(f, subject, seq) for f in filters)
    assert (by_server and all(holds(f, subject, seq) for f in left)) == wanted
