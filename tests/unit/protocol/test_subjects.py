"""Subject grammar: small examples by hand, the rest against the plainest possible definition."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidSubjectError
from penstock.kernels.routing import grammar
from penstock.protocol import subjects as s

pytestmark = pytest.mark.feature("core.subjects")

# Every filter and every literal of up to three tokens over a tiny alphabet: small enough to try them all.
LITERALS = [".".join(t) for n in (1, 2, 3, 4) for t in product("ab", repeat=n)]
FILTERS = [
    ".".join(tokens)
    for n in (1, 2, 3)
    for tokens in product(("a", "b", "*", ">"), repeat=n)
    if ">" not in tokens[:-1]
]


def plainly_matches(pattern: list[str], subject: list[str]) -> bool:
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", subject[0]) and plainly_matches(pattern[1:], subject[1:])


def test_matching_agrees_with_the_plain_definition() -> None:
    for pattern in FILTERS:
        for subject in LITERALS:
            expected = plainly_matches(pattern.split("."), subject.split("."))
            assert s.matches(pattern, subject) is expected, (pattern, subject)


def test_two_filters_overlap_when_some_subject_matches_both() -> None:
    matched = {pattern: {x for x in LITERALS if s.matches(pattern, x)} for pattern in FILTERS}
    for one, other in product(FILTERS, repeat=2):
        assert s.overlaps(one, other) is bool(matched[one] & matched[other]), (one, other)


def test_a_subset_matches_nothing_that_its_superset_does_not() -> None:
    matched = {pattern: {x for x in LITERALS if s.matches(pattern, x)} for pattern in FILTERS}
    for one, other in product(FILTERS, repeat=2):
        if s.is_subset(one, other):
            assert matched[one] <= matched[other], (one, other)
    assert s.is_subset("a.b", "a.*")
    assert s.is_subset("a.*", "a.>")
    assert s.is_subset("a.>", ">")
    assert not s.is_subset("a.>", "a.*")
    assert not s.is_subset("*", "a")
    assert not s.is_subset("a", "a.>")


@pytest.mark.parametrize("subject", ["a", "a.b", "a*", "a.*b", "a>b.c", "$SYS.x", "ä.ö", "a.b.c.d.e.f"])
def test_subjects_one_may_publish_to(subject: str) -> None:
    assert s.is_valid_subject(subject)
    assert s.check_subject(subject) == subject


@pytest.mark.parametrize(
    "subject", ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nb", "a\0", "*", "a.>", "a.*.b"]
)
def test_subjects_one_may_not_publish_to(subject: str) -> None:
    assert not s.is_valid_subject(subject)
    with pytest.raises(InvalidSubjectError, match="publish"):
        s.check_subject(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.*.>", "a.b"])
def test_filters_one_may_subscribe_to(subject: str) -> None:
    assert s.check_filter(subject) == subject


@pytest.mark.parametrize("subject", ["", "a.>.b", ">.a", "a..*", "a. .b", "a.>."])
def test_filters_one_may_not_subscribe_to(subject: str) -> None:
    with pytest.raises(InvalidSubjectError, match="subscribe"):
        s.check_filter(subject)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "a/b", "a\\b", "a\tb"])
def test_names_of_assets_hold_no_dots_spaces_wildcards_or_path_separators(name: str) -> None:
    with pytest.raises(InvalidSubjectError, match="stream"):
        s.check_name(name, "stream")


def test_the_first_overlapping_pair_of_a_list_is_named() -> None:
    assert s.any_overlap(["a.*", "b.>", "a.x"]) == ("a.*", "a.x")
    assert s.any_overlap(["a.*", "b.>", "c"]) is None
    assert s.any_overlap([]) is None


SUBJECTISH = st.lists(st.sampled_from(["a", "b", "*", ">", "", "a*", " ", "\0", "ä"]), max_size=4).map(
    ".".join
)


@given(SUBJECTISH, SUBJECTISH)
def test_the_kernel_holds_the_same_rules(one: str, other: str) -> None:
    a, b = one.encode(), other.encode()
    assert s.is_valid_filter(one) is grammar.is_valid_filter(a)
    assert s.is_valid_subject(one) is grammar.is_literal_subject(a)
    if not (s.is_valid_filter(one) and s.is_valid_filter(other)):
        return
    assert s.has_wildcard(one) is grammar.has_wildcard(a)
    assert s.overlaps(one, other) is grammar.filters_overlap(a, b)
    assert s.is_subset(one, other) is grammar.filter_is_subset(a, b)
    if s.is_valid_subject(other):
        assert s.matches(one, other) is grammar.filter_matches(a, b)
