"""Placement: the rules of the official server, and what must hold for any servers and any wish."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import JetStreamApiError
from penstock.jetstream.meta.placement import (
    PeerOffer,
    Placed,
    PlacementWish,
    peers_to_keep,
    place,
    preferred_leader,
    step_down_target,
)
from tests.support.examples import examples

pytestmark = pytest.mark.feature("stream.placement")
NONE = "no suitable peers for placement"


def server(peer: str, *tags: str, **fields: object) -> PeerOffer:
    return PeerOffer(peer=peer, name=peer.lower(), cluster="c", tags=tags, free=1000, **fields)  # type: ignore[arg-type]


def wish(replicas: int, **fields: object) -> PlacementWish:
    return PlacementWish(**{"replicas": replicas, "clusters": ["c"], **fields})  # type: ignore[arg-type]


def refused(wanted: PlacementWish, *offers: PeerOffer) -> str:
    with pytest.raises(JetStreamApiError) as info:
        place(wanted, offers)
    assert (info.value.code, info.value.err_code) == (400, 10005)
    return info.value.description


THREE = [server("A"), server("B"), server("C")]


def test_three_replicas_take_three_servers() -> None:
    assert sorted(place(wish(3), THREE).peers) == ["A", "B", "C"]


def test_more_replicas_than_servers_are_refused_without_a_reason() -> None:
    assert refused(wish(5), *THREE) == NONE


def test_an_unknown_cluster_is_refused_without_a_reason() -> None:
    assert refused(wish(1, clusters=["d"]), *THREE) == NONE


def test_no_server_at_all_is_named() -> None:
    assert refused(wish(1)) == f"{NONE}, jetstream not enabled in cluster"


def test_the_next_cluster_is_tried_when_the_first_has_too_few_servers() -> None:
    other = [structs.replace(one, peer=f"{one.peer}2", cluster="d") for one in THREE]
    found = place(wish(3, clusters=["c", "d"]), [THREE[0], *other])
    assert found.cluster == "d"
    assert sorted(found.peers) == ["A2", "B2", "C2"]


@pytest.mark.parametrize(
    ("wanted", "offers", "text"),
    [
        (wish(1, tags=["x"]), [server("A", "y")], "tags not matched ['x']"),
        (wish(1, tags=["x", "w"]), [server("A", "x"), server("B", "w")], "tags not matched ['w', 'x']"),
        (wish(1, tags=["!y"]), [server("A", "y")], "tags excluded ['y']"),
        (wish(1, tags=[" X "]), [server("A", "y")], "tags not matched [' X ']"),
        (wish(1, tags=["! Y"]), [server("A", "y")], "tags excluded [' Y']"),
        (wish(1), [server("A", "!jetstream")], "exclude tag set"),
        (wish(1, max_bytes=1001), THREE, "insufficient storage"),
        (wish(3, unique_tag="az:"), [server(one, "az:1") for one in "ABC"], "server tag not unique"),
        (wish(1, unique_tag="az:"), THREE, "server tag not unique"),
        (wish(3, ha_streams_max=1), [server(one, ha_streams=1) for one in "ABC"], "miscellaneous issue"),
        (wish(3), [server(one, online=one == "A") for one in "ABC"], "peer offline"),
        (wish(1), [server("A", known=False)], "peer offline"),
        (
            wish(2, tags=["x"], max_bytes=2000),
            [server("A", "!jetstream"), server("B", "x"), server("C", "z")],
            "exclude tag set, insufficient storage, tags not matched ['x']",
        ),
    ],
)
def test_a_refusal_names_its_reasons(wanted: PlacementWish, offers: list[PeerOffer], text: str) -> None:
    assert refused(wanted, *offers) == f"{NONE}, {text}"


def test_one_of_three_servers_may_be_offline() -> None:
    assert sorted(place(wish(3), [*THREE[:2], server("C", online=False)]).peers) == ["A", "B", "C"]


def test_online_and_current_servers_come_first() -> None:
    offers = [server("A", online=False), server("B", current=False), server("C", streams=9)]
    assert place(wish(3), offers).peers == ("C", "B", "A")


def test_a_lone_replica_goes_where_most_storage_is_free() -> None:
    offers = [structs.replace(one, free=free) for one, free in zip(THREE, (100, 900, 500), strict=True)]
    assert place(wish(1), offers).peers == ("B",)


def test_a_few_bytes_do_not_draw_every_new_stream_to_one_server() -> None:
    offers = [structs.replace(one, free=10**9 + spare) for one, spare in zip(THREE, (0, 1, 2), strict=True)]
    chosen = Counter(place(wish(1, salt=str(n)), offers).peers[0] for n in range(300))
    assert min(chosen.values()) > 50


def test_replicated_streams_go_where_few_of_them_are() -> None:
    offers = [*THREE, server("D"), structs.replace(server("E"), free=10**6)]
    offers = [structs.replace(one, ha_streams=one.peer in "ABE") for one in offers]
    assert set(place(wish(2), offers).peers) == {"C", "D"}


def test_a_tag_with_the_unique_prefix_turns_the_rule_off() -> None:
    offers = [server(one, "az:1") for one in "ABC"]
    for tag in ("az:1", "AZ:1"):
        assert len(place(wish(3, unique_tag="az:", tags=[tag]), offers).peers) == 3


@pytest.mark.feature("cluster.tags")
@pytest.mark.parametrize("wanted", ["id:abc", "id:AbC", " ID:ABC ", "!id:x", "!ID:X", "! id:x "])
def test_case_and_outer_spaces_of_a_wanted_tag_do_not_count(wanted: str) -> None:
    """Servers' own tags have none of either: nats.js asks for a tag as the configuration has it."""
    offers = [server("A", "id:x"), server("B", "id:abc"), server("C", "id:x")]
    assert place(wish(1, tags=[wanted]), offers).peers == ("B",)
    if not wanted.startswith("!"):
        assert step_down_target("", "", [wanted], "A", offers) == "B"


@pytest.mark.feature("cluster.tags")
def test_each_unique_tag_gets_one_replica_on_its_best_server() -> None:
    offers = [server("A", "az:1"), server("B", "az:1", streams=1), server("C", "az:2"), server("D", "az:3")]
    assert set(place(wish(3, unique_tag="az:"), offers).peers) == {"A", "C", "D"}


@pytest.mark.feature("cluster.tags")
def test_the_tags_of_servers_that_stay_are_taken() -> None:
    offers = [server("A", "az:1"), server("B", "az:1"), server("C", "az:2")]
    assert place(wish(2, unique_tag="az:", keep=["A"]), offers).peers == ("A", "C")


def test_servers_to_avoid_are_not_chosen() -> None:
    assert place(wish(1, avoid=["A", "B"]), THREE).peers == ("C",)
    assert refused(wish(3, avoid=["A"]), *THREE) == NONE


TAGS = ["ssd", "az:1", "az:2", "az:3", "!jetstream", "hdd"]
OFFERS = st.lists(
    st.builds(
        PeerOffer,
        peer=st.sampled_from("ABCDEFGH"),
        cluster=st.sampled_from(["c", "c", "c", "d"]),
        tags=st.lists(st.sampled_from(TAGS), max_size=2),
        online=st.booleans(),
        current=st.booleans(),
        known=st.sampled_from([True, True, True, False]),
        free=st.sampled_from([0, 10, 100]),
        streams=st.integers(0, 3),
        ha_streams=st.integers(0, 3),
    ),
    unique_by=lambda offer: offer.peer,
    max_size=8,
)
WISHES = st.builds(
    PlacementWish,
    replicas=st.integers(1, 5),
    clusters=st.sampled_from([["c"], ["c", "d"], ["d"]]),
    tags=st.lists(st.sampled_from(["ssd", "!hdd", "az:1", "!az:2"]), max_size=1),
    max_bytes=st.sampled_from([0, 10, 50]),
    unique_tag=st.sampled_from(["", "", "az:"]),
    ha_streams_max=st.sampled_from([0, 0, 2]),
    keep=st.lists(st.sampled_from("ABCXY"), max_size=2, unique=True),
    avoid=st.lists(st.sampled_from("DEF"), max_size=2),
    salt=st.text(max_size=3),
)


def placed(wanted: PlacementWish, offers: list[PeerOffer]) -> Placed | str:
    try:
        return place(wanted, offers)
    except JetStreamApiError as error:
        return error.description


@settings(max_examples=examples(150), deadline=None)
@given(WISHES, OFFERS, st.randoms(use_true_random=False))
def test_whatever_the_servers_a_placement_keeps_the_rules(
    wanted: PlacementWish, offers: list[PeerOffer], order: random.Random
) -> None:
    found = placed(wanted, offers)
    shuffled = offers.copy()
    order.shuffle(shuffled)
    assert placed(wanted, shuffled) == found
    if isinstance(found, str):
        assert found.startswith(NONE)
        return
    assert len(set(found.peers)) == len(found.peers) == wanted.replicas
    kept = tuple(wanted.keep)[: wanted.replicas]
    assert found.peers[: len(kept)] == kept
    by_id = {offer.peer: offer for offer in offers}
    new = [by_id[peer] for peer in found.peers[len(kept) :]]
    for offer in new:
        assert offer.known
        assert offer.cluster == found.cluster
        assert "!jetstream" not in offer.tags
        assert offer.peer not in wanted.avoid
        assert offer.free >= wanted.max_bytes
        assert not (wanted.replicas > 1 and 0 < wanted.ha_streams_max <= offer.ha_streams)
        for tag in wanted.tags:
            assert (tag.removeprefix("!") in offer.tags) != tag.startswith("!")
    if wanted.unique_tag and not any("az:" in tag for tag in wanted.tags):
        zones = [next(tag for tag in offer.tags if tag.startswith("az:")) for offer in new]
        assert len(set(zones)) == len(zones)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(1, 5), max_size=60))
def test_equal_servers_get_equally_many_replicas(count: int, streams: list[int]) -> None:
    peers = [f"P{n}" for n in range(count)]
    replicated, lone = Counter[str](), Counter[str]()
    for n, replicas in enumerate(streams):
        offers = [
            PeerOffer(
                peer=peer, cluster="c", streams=replicated[peer] + lone[peer], ha_streams=replicated[peer]
            )
            for peer in peers
        ]
        if replicas > count:
            continue
        (replicated if replicas > 1 else lone).update(place(wish(replicas, salt=str(n)), offers).peers)
        spread = [replicated[peer] for peer in peers]
        assert max(spread) - min(spread) <= 1
    if not any(1 < replicas <= count for replicas in streams):
        spread = [lone[peer] for peer in peers]
        assert max(spread) - min(spread) <= 1


def test_the_preferred_leader_is_online_and_leads_few() -> None:
    offers = [server("A", online=False), server("B"), server("C")]
    assert preferred_leader("ABC", offers, {"B": 2, "C": 1}) == "C"
    assert preferred_leader("ABC", offers, {}) == "B"
    assert preferred_leader("A", offers, {}) == "A"
    assert preferred_leader("", offers, {}) == ""


def test_a_scale_down_keeps_the_leader_then_the_online_members_with_the_least_lag() -> None:
    lags = {"A": 5, "B": 0, "C": 1, "D": 0}
    assert peers_to_keep("A", "ABCDE", lags, {"A", "C", "E"}, 3) == ("A", "C", "E")
    assert peers_to_keep("", "ABC", lags, {"A", "B", "C"}, 1) == ("B",)
    assert peers_to_keep("C", "ABC", lags, set(), 1) == ("C",)


@pytest.mark.parametrize(
    ("name", "cluster", "tags", "text"),
    [
        ("a", "", [], 'preferred server "a" is already leader'),
        ("z", "", [], 'preferred server "z" not known'),
        ("", "d", [], "no replacement peer connected"),
        ("", "", ["none"], "no replacement peer connected"),
    ],
)
def test_a_step_down_to_an_impossible_server_is_refused(
    name: str, cluster: str, tags: list[str], text: str
) -> None:
    with pytest.raises(JetStreamApiError) as info:
        step_down_target(name, cluster, tags, "A", THREE)
    assert (info.value.err_code, info.value.description) == (10005, text)


def test_a_step_down_goes_to_the_named_server_or_to_one_with_the_tags() -> None:
    members = [
        server("A", "x"),
        server("B", "x", online=False),
        server("C", "x", current=False),
        server("D", "x"),
    ]
    assert step_down_target("b", "", [], "A", members) == "B"
    assert step_down_target("", "c", ["x"], "A", members) == "D"
    assert step_down_target("", "", [], "A", members) is None


def test_a_step_down_of_a_group_of_one_has_no_other_server() -> None:
    with pytest.raises(JetStreamApiError):
        step_down_target("", "", [], "A", [server("A")])
