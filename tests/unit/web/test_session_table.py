"""Sessions of the web page, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.web.session_table import (
    IDLE_S,
    LIFE_S,
    SESSIONS_MAX,
    USER_SESSIONS_MAX,
    SessionTable,
    TooManySessionsError,
)

pytestmark = pytest.mark.feature("monitoring.web")


def test_a_session_is_found_by_its_token_only() -> None:
    table: SessionTable[str] = SessionTable()
    table.add("token", "csrf", "ann", "visitor", 0.0)
    found = table.find("token", 1.0)
    assert found is not None
    assert found.visitor == "visitor"
    assert [table.find(other, 1.0) for other in ("", "toke", "tokens", "TOKEN", "\ud800")] == [None] * 5


def test_the_csrf_token_of_another_session_proves_nothing() -> None:
    table: SessionTable[str] = SessionTable()
    table.add("a", "csrf-a", "ann", "1", 0.0)
    table.add("b", "csrf-b", "bob", "2", 0.0)
    found = table.find("a", 1.0)
    assert found is not None
    assert found.proves("csrf-a")
    assert not any(found.proves(other) for other in ("csrf-b", "", "csrf-a ", "é", "\ud800"))


def test_a_session_ends_when_it_is_idle_and_use_keeps_it() -> None:
    table: SessionTable[str] = SessionTable()
    table.add("used", "", "ann", "used", 0.0)
    table.add("idle", "", "ann", "idle", 0.0)
    assert table.find("used", IDLE_S) is not None
    assert table.find("idle", IDLE_S + 1) is None
    assert table.expire(IDLE_S + 1) == ["idle"]
    assert table.find("used", IDLE_S + 1) is not None


def test_a_session_ends_after_its_life_however_much_it_is_used() -> None:
    table: SessionTable[str] = SessionTable()
    table.add("token", "", "ann", "visitor", 0.0)
    now_s = 0.0
    while now_s + IDLE_S / 2 < LIFE_S:
        now_s += IDLE_S / 2
        assert table.find("token", now_s) is not None
    assert table.find("token", LIFE_S + 1) is None


def test_a_user_with_many_sessions_loses_the_one_unused_for_longest() -> None:
    table: SessionTable[str] = SessionTable()
    for at in range(USER_SESSIONS_MAX):
        assert table.add(f"t{at}", "", "ann", f"v{at}", float(at)) == []
    table.find("t0", 100.0)
    assert table.add("new", "", "ann", "new", 101.0) == ["v1"]
    assert len(table) == USER_SESSIONS_MAX


def test_no_login_ends_the_session_of_another_user() -> None:
    table: SessionTable[str] = SessionTable()
    for at in range(SESSIONS_MAX):
        table.add(f"t{at}", "", f"user{at}", "", 0.0)
    with pytest.raises(TooManySessionsError, match="try again later"):
        table.add("late", "", "late", "", 1.0)
    assert table.add("again", "", "user5", "own", 1.0) == [""]
    assert table.find("t5", 1.0) is None
    assert table.find("t6", 1.0) is not None


def test_a_logout_ends_one_session_and_clear_ends_all() -> None:
    table: SessionTable[str] = SessionTable()
    for name in "abc":
        table.add(name, "", "ann", name, 0.0)
    assert table.end("b") == ["b"]
    assert table.end("b") == []
    assert sorted(table.clear()) == ["a", "c"]
    assert len(table) == 0


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 40), st.floats(0, 4000)), max_size=120))
def test_the_table_never_holds_more_than_its_bounds_and_hands_back_what_it_ends(
    steps: list[tuple[str, int, float]],
) -> None:
    table: SessionTable[int] = SessionTable()
    added, ended, now_s = 0, [], 0.0
    for user, number, pause_s in steps:
        now_s += pause_s
        if number % 3 == 0:
            ended += table.end(f"{number}")
        else:
            ended += table.add(f"{user}{added}", "", user, added, now_s)
            added += 1
        assert len(table) <= 5 * USER_SESSIONS_MAX
        assert len(table) + len(ended) == added
    assert len(set(ended)) == len(ended)
