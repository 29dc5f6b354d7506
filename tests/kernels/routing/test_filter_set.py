"""Sets of filters against comparing every pair, and what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.routing.filter_trie import (
    FilterSet,
    WorkLimitError,
    any_covered,
    overlapping_pair,
    uncovered,
)
from tests.reference import filter_set as model

tokens = st.sampled_from(["a", "b", "cc", "a*", "*", "*"])
filters = st.builds(
    lambda head, tail: ".".join([*head, *tail]),
    st.lists(tokens, min_size=1, max_size=4),
    st.sampled_from([[], [], [">"]]),
) | st.just(">")
literals = st.lists(st.sampled_from(["a", "b", "cc"]), min_size=1, max_size=4).map(".".join)
owners = st.sampled_from(["one", "two", "three"])
steps = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "discard"]), filters, owners), max_size=30)


@given(steps, st.lists(filters, max_size=4), st.sampled_from(["", "one", "two"]), literals)
def test_a_set_answers_as_comparing_every_pair_does(
    plan: list[tuple[str, str, str]], asked: list[str], besides: str, subject: str
) -> None:
    kernel, plain = FilterSet(), model.FilterSetModel()
    for what, f, owner in plan:
        getattr(kernel, what)(f.encode(), owner)
        getattr(plain, what)(f, owner)
    assert len(kernel) == len({f for f, _ in plain.pairs})
    encoded = [f.encode() for f in asked]
    assert kernel.overlaps(encoded, besides=besides or None) is plain.overlaps(asked, besides)
    for f in [*asked, subject]:
        assert kernel.covers(f.encode()) is plain.covers(f)
        assert kernel.owners_overlapping(f.encode()) == plain.owners_overlapping(f)
    assert sorted(map(str, kernel.owners_matching(subject.encode()))) == plain.owners_matching(subject)


@given(st.lists(filters, max_size=12))
def test_a_list_is_compared_as_pair_by_pair(drawn: list[str]) -> None:
    encoded = [f.encode() for f in drawn]
    assert overlapping_pair(encoded) == model.overlapping_pair(drawn)
    assert any_covered(encoded) is model.any_covered(drawn)
    assert uncovered(encoded) == [f.encode() for f in model.uncovered(drawn)]


@pytest.mark.parametrize("bad", [b"", b"a..b", b"a.>.b", b"a b"])
def test_what_is_no_filter_is_refused_and_changes_nothing(bad: bytes) -> None:
    kernel = FilterSet()
    for call in (lambda: kernel.add(bad, 1), lambda: kernel.overlaps([bad]), lambda: kernel.covers(bad)):
        with pytest.raises(ValueError, match="is no subject filter"):
            call()
    assert len(kernel) == 0


def seconds(call: Callable[[], object]) -> float:
    """The least of five runs."""
    found = []
    for _ in range(5):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


@pytest.mark.parametrize("shape", ["a%d", "a.b%d.*", "*.c%d.>", "x%d.*.y"])
@pytest.mark.parametrize("compare", [any_covered, overlapping_pair])
def test_filters_are_not_compared_pair_by_pair(shape: str, compare: Callable[[list[bytes]], object]) -> None:
    # Twenty times the filters: 400 times the pairs. Trees larger than a processor's caches take up
    # to five times as long for a filter, so that 20 times the work may take 100 times as long.
    few, many = ([(shape % n).encode() for n in range(count)] for count in (2000, 40_000))
    assert seconds(lambda: compare(many)) < 200 * seconds(lambda: compare(few))


def test_a_set_of_one_wide_level_is_freed_in_linear_time() -> None:
    def made_and_freed(count: int) -> None:
        kernel = FilterSet()
        for n in range(count):
            kernel.add(b"a%d" % n, None)

    assert seconds(lambda: made_and_freed(80_000)) < 200 * seconds(lambda: made_and_freed(4000))


def test_filters_that_have_to_be_compared_pair_by_pair_are_refused_after_the_work_allowed() -> None:
    def crossing(count: int) -> list[bytes]:
        return [b"a%d.x" % n for n in range(count)] + [b"*.y%d" % n for n in range(count)]

    assert overlapping_pair(crossing(500)) is None
    kernel = FilterSet()
    for f in crossing(2000)[:2000]:
        kernel.add(f, None)
    for call in (lambda: overlapping_pair(crossing(2000)), lambda: kernel.overlaps(crossing(2000)[2000:])):
        with pytest.raises(WorkLimitError, match="more than 1000000 steps: use fewer"):
            call()


def test_a_filter_of_very_many_tokens_is_compared() -> None:
    deep = b"a." * 100_000
    assert overlapping_pair([deep + b"b", deep + b"c"]) is None
    assert overlapping_pair([deep + b"b", b"*." * 100_000 + b"*"]) == (0, 1)
