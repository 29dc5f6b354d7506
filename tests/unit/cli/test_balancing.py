"""Which leaders and connections move so that servers have about as many as each other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.reports.connection_balance import ServerConnections, surplus_connections
from penstock.cli.reports.leader_balance import LedAsset, leader_moves

pytestmark = pytest.mark.feature("cli.server")

SERVERS = ("a", "b", "c", "d")


def asset(name: str, leader: str, followers: str, cluster: str = "C") -> LedAsset:
    return LedAsset(name, cluster, leader, tuple(followers))


def test_leaders_spread_over_the_servers_that_have_the_asset() -> None:
    moves = leader_moves([asset(f"S{number}", "a", "bc") for number in range(3)])
    assert sorted(move.server for move in moves) == ["b", "c"]


def test_nothing_moves_where_the_difference_is_one_or_no_other_server_has_it() -> None:
    assert leader_moves([asset("S0", "a", "b"), asset("S1", "a", "b"), asset("S2", "b", "a")]) == []
    assert leader_moves([asset("S0", "a", ""), asset("S1", "a", ""), asset("S2", "", "ab")]) == []


def test_clusters_are_balanced_each_for_itself() -> None:
    found = [asset("S0", "a", "b", "east"), asset("S1", "a", "b", "west")]
    assert leader_moves(found) == []


@given(st.lists(st.tuples(st.permutations(SERVERS), st.integers(1, 4)), max_size=12))
def test_moves_never_widen_the_difference_and_a_second_run_has_none(
    drawn: list[tuple[list[str], int]],
) -> None:
    assets = [
        asset(f"S{number}", servers[0], "".join(servers[1:replicas]))
        for number, (servers, replicas) in enumerate(drawn)
    ]
    moves = {move.asset.name: move.server for move in leader_moves(assets)}
    after = [
        LedAsset(
            one.name,
            one.cluster,
            moves.get(one.name, one.leader),
            tuple({*one.followers, one.leader} - {moves.get(one.name, one.leader)}),
        )
        for one in assets
    ]
    replicated = [one for one in assets if one.followers]
    before_most = max(Counter(one.leader for one in replicated).values(), default=0)
    after_most = max(Counter(one.leader for one in after if one.followers).values(), default=0)
    assert after_most <= before_most
    assert all(moves[one.name] in one.followers for one in assets if one.name in moves)


def test_the_newest_connections_above_the_average_move() -> None:
    servers = [
        ServerConnections("a", "A", "C", [4, 1, 3, 2]),
        ServerConnections("b", "B", "C", [1]),
        ServerConnections("x", "X", "D", [1, 2, 3]),
    ]
    assert [(one.server_id, one.cid) for one in surplus_connections(servers)] == [("A", 4)]
    assert surplus_connections([]) == []
