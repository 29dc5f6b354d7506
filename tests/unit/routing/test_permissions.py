"""Permissions as rules: filters within filters, what gets through, replies that were granted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.routing.permissions import (
    RESPONSES_MAX,
    PermissionEntry,
    PermissionRules,
    Permissions,
    ResponseGrants,
    ResponsePermission,
    SubjectPermission,
    covers,
    overlaps,
)
from tests.reference.permissions import WORLD, matches, may_publish, may_read, subjects_of

pytestmark = pytest.mark.feature("security.permissions")

TOKEN = st.sampled_from(["a", "b", "*"])
# One token shorter than the model's subjects, so that `>` shows.
FILTER = st.builds(
    lambda tokens, tail: ".".join([*tokens[: 2 if tail else 3], *tail]),
    st.lists(TOKEN, min_size=1, max_size=3),
    st.sampled_from([[], [], [">"]]),
) | st.just(">")
ENTRIES = st.lists(FILTER.map(PermissionEntry), max_size=3).map(tuple)
SIDE = st.builds(SubjectPermission, allow=st.none() | ENTRIES, deny=ENTRIES)
PERMISSIONS = st.builds(
    Permissions, publish=SIDE, subscribe=SIDE, responses=st.none() | st.just(ResponsePermission())
)


@given(FILTER, FILTER)
def test_a_filter_covers_another_when_it_matches_all_its_subjects(outer: str, inner: str) -> None:
    assert covers(outer.encode(), inner.encode()) == (subjects_of(inner) <= subjects_of(outer))


@given(FILTER, FILTER)
def test_filters_overlap_when_they_share_a_subject(a: str, b: str) -> None:
    assert overlaps(a.encode(), b.encode()) == bool(subjects_of(a) & subjects_of(b))


@given(PERMISSIONS, st.sampled_from(WORLD))
def test_publishing_is_as_the_model_says(permissions: Permissions, subject: str) -> None:
    assert PermissionRules(permissions).may_publish(subject.encode()) == may_publish(permissions, subject)


@given(PERMISSIONS, FILTER, st.sampled_from(WORLD))
def test_nothing_is_delivered_that_may_not_be_read(
    permissions: Permissions, filter_: str, subject: str
) -> None:
    rules = PermissionRules(permissions)
    if not rules.may_subscribe(filter_.encode()) or not matches(filter_, subject):
        return
    filtered = rules.needs_filter(filter_.encode())
    delivered = not filtered or rules.may_receive(subject.encode())
    assert delivered == may_read(permissions, subject)


@given(PERMISSIONS, st.sampled_from(WORLD))
def test_a_literal_subject_may_be_subscribed_to_when_it_may_be_read(
    permissions: Permissions, subject: str
) -> None:
    rules = PermissionRules(permissions)
    assert rules.may_subscribe(subject.encode()) == may_read(permissions, subject)


@pytest.mark.parametrize(
    ("allow", "deny", "queue", "allowed"),
    [
        ((), ("s q",), b"q", False),
        ((), ("s q",), b"r", True),
        ((), ("s q",), b"", True),
        (("s q.*",), (), b"q.x", True),
        (("s q.*",), (), b"q", False),
        (("s q.*",), (), b"", False),
        (("s", "s q"), (), b"r", False),  # where queues are named, they alone decide
        (("s",), (), b"r", True),
        (("s q",), ("s",), b"q", False),
        ((), ("s", "s q"), b"r", True),
        (("> >",), (), b"any.name", True),
    ],
)
def test_entries_with_queues_decide_about_queues(
    allow: tuple[str, ...], deny: tuple[str, ...], queue: bytes, allowed: bool
) -> None:
    def entries(texts: tuple[str, ...]) -> tuple[PermissionEntry, ...]:
        return tuple(PermissionEntry.parse(text, queues=True) for text in texts)

    rules = Permissions(subscribe=SubjectPermission(entries(allow) or None, entries(deny))).rules
    assert rules.may_subscribe(b"s", queue) == allowed


@pytest.mark.parametrize(("text", "queues"), [("", True), ("a..b", True), ("a b c", True), ("a b", False)])
def test_an_entry_that_is_no_filter_is_refused(text: str, queues: bool) -> None:
    with pytest.raises(ConfigError):
        PermissionEntry.parse(text, queues=queues)


def test_a_grant_ends_with_its_messages_or_its_time() -> None:
    grants = ResponseGrants(ResponsePermission(max_msgs=2, expires_ns=100))
    grants.grant(b"r", 0)
    assert [grants.use(b"r", 100) for _ in range(3)] == [True, True, False]
    grants.grant(b"r", 0)
    assert not grants.use(b"r", 101)
    assert len(grants) == 0
    assert not grants.use(b"other", 0)


def test_a_grant_without_limits_stays() -> None:
    grants = ResponseGrants(ResponsePermission(max_msgs=-1, expires_ns=-1))
    grants.grant(b"r", 0)
    assert all(grants.use(b"r", 10**18) for _ in range(1000))


@pytest.mark.parametrize("expires_ns", [10, -1])
def test_unanswered_replies_do_not_pile_up(expires_ns: int) -> None:
    grants = ResponseGrants(ResponsePermission(max_msgs=1, expires_ns=expires_ns))
    for i in range(3 * RESPONSES_MAX):
        grants.grant(b"r%d" % i, i)
    assert len(grants) <= RESPONSES_MAX
    assert grants.use(b"r%d" % (3 * RESPONSES_MAX - 1), 3 * RESPONSES_MAX)
