"""Who begins the meta group of a new cluster."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.replicated.founding import Begin, Presence, decide, needed


def presence(name: str, *, routes: int = 3, **fields: object) -> Presence:
    return Presence(name=name, peer=name.upper(), member=f"{name}.1", boot=1, routes=routes, **fields)  # type: ignore[arg-type]


def test_the_first_name_begins_when_all_expected_servers_are_there() -> None:
    a, b, c = (presence(name) for name in "abc")
    assert decide(a, [b, c], is_settled=False) == Begin(("a.1", "b.1", "c.1"))
    assert decide(b, [a, c], is_settled=True) is None


def test_one_of_three_may_be_missing_after_a_while() -> None:
    a, b = presence("a"), presence("b")
    assert decide(a, [b], is_settled=False) is None
    assert decide(a, [b], is_settled=True) == Begin(("a.1", "b.1"))
    assert decide(a, [], is_settled=True) is None


def test_a_server_to_which_there_is_a_route_is_waited_for() -> None:
    a = presence("a", routes=1, peers=2, replicating=2)
    assert decide(a, [presence("b")], is_settled=False) is None


def test_servers_without_jetstream_are_not_waited_for() -> None:
    a = presence("a", routes=5, peers=4, replicating=1)
    assert decide(a, [presence("b")], is_settled=False) == Begin(("a.1", "b.1"))


def test_the_others_begin_with_the_same_members() -> None:
    a = presence("a", has_meta=True, founders=("a.1", "b.1", "c.1"))
    assert decide(presence("c"), [a], is_settled=False) == Begin(("a.1", "b.1", "c.1"))


def test_a_server_that_is_no_founder_joins() -> None:
    a = presence("a", has_meta=True, founders=("a.1", "b.1"))
    assert decide(presence("c"), [a, presence("b")], is_settled=False) == Begin(())


def test_a_wiped_server_joins_although_its_name_was_a_founder() -> None:
    a = presence("a", has_meta=True, founders=("a.1", "b.1", "c.1"))
    wiped = Presence(name="c", peer="C", member="c.2", boot=1, routes=3)
    assert decide(wiped, [a], is_settled=True) == Begin(())


@pytest.mark.parametrize("number", range(2, 10))
def test_majorities_of_any_two_founded_groups_have_a_server_in_common(number: int) -> None:
    size = needed(number)
    quorum = size // 2 + 1
    assert 2 * quorum > number, f"{size} of {number} founders: two groups could decide"


@given(st.sets(st.sampled_from("abcdefg"), min_size=2, max_size=7), st.integers(0, 7))
def test_at_most_one_of_the_servers_that_see_each_other_begins(names: set[str], routes: int) -> None:
    seen = [presence(name, routes=routes) for name in names]
    begun = [
        one.name
        for one in seen
        if decide(one, [other for other in seen if other is not one], is_settled=True) is not None
    ]
    assert begun in ([], [min(names)])


def test_two_founders_with_different_sights_overlap() -> None:
    for sight in combinations("abcde", needed(5)):
        founders = decide(presence(sight[0], routes=5), [presence(one) for one in sight[1:]], is_settled=True)
        assert founders is not None
        assert len(founders.founders) // 2 + 1 > 5 // 2
