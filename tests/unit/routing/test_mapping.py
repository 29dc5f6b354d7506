"""Which subject a publish is routed to: order, weights, clusters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.routing import mapping
from penstock.routing.mapping import DROPPED, Destination, Mappings, SubjectMapping, WeightedChoice

pytestmark = pytest.mark.feature("core.subject-mapping", "core.weighted-mapping")


def never(n: int) -> int:
    raise AssertionError(f"asked for a number below {n}")


def to(subject: str, weight: int = 100, cluster: str = "") -> Destination:
    return Destination(subject=subject, weight=weight, cluster=cluster)


def mapped(subject: bytes, *mappings: SubjectMapping) -> bytes:
    return Mappings(mappings).decide(subject, never)[0]


def shares(
    subject: bytes, *destinations: Destination, source: str = "a", cluster: str = ""
) -> Counter[bytes]:
    """How many of the numbers 0..99 lead to each subject."""
    choice = WeightedChoice(SubjectMapping(source, destinations), cluster)
    return Counter(choice.choose(percent).subject(subject, never) for percent in range(100))


def refusal(source: str, *destinations: Destination) -> str:
    with pytest.raises(ConfigError) as caught:
        SubjectMapping(source, destinations)
    return caught.value.message


def test_what_no_mapping_is_for_stays() -> None:
    assert Mappings([SubjectMapping.to("a.*", "b.$1")]).decide(b"c.x", never) == (b"c.x", True)


def test_a_mapping_is_never_applied_to_what_a_mapping_made() -> None:
    mappings = (SubjectMapping.to("w.>", "v.>"), SubjectMapping.to("v.>", "u.>"))
    assert mapped(b"w.1", *mappings) == b"v.1"
    assert mapped(b"v.1", *mappings) == b"u.1"
    swap = (SubjectMapping.to("one", "two"), SubjectMapping.to("two", "one"))
    assert (mapped(b"one", *swap), mapped(b"two", *swap)) == (b"two", b"one")


def test_the_first_mapping_that_matches_decides() -> None:
    mappings = (SubjectMapping.to("a.b", "first"), SubjectMapping.to("a.*", "second"))
    assert mapped(b"a.b", *mappings) == b"first"
    assert mapped(b"a.b", *reversed(mappings)) == b"second"


def test_a_source_given_again_replaces_its_mapping_where_it_stood() -> None:
    mappings = [
        SubjectMapping.to("a.b", "old"),
        SubjectMapping.to("a.*", "x"),
        SubjectMapping.to("a.b", "new"),
    ]
    assert mapped(b"a.b", *mappings) == b"new"


def test_what_weights_leave_goes_to_the_source() -> None:
    assert shares(b"a", to("b", 98)) == {b"b": 98, b"a": 2}
    assert shares(b"a", to("b", 20), to("c", 30)) == {b"b": 20, b"c": 30, b"a": 50}
    assert shares(b"a") == {b"a": 100}
    assert shares(b"a", to("b", 0)) == {b"a": 100}


def test_what_weights_leave_is_dropped_where_the_source_is_a_destination() -> None:
    assert shares(b"a", to("a", 30), to("b", 20)) == {b"a": 30, b"b": 20, DROPPED: 50}
    assert shares(b"a", to("a", 30, "x"), to("b", 20)) == {b"b": 20, DROPPED: 80}
    assert shares(b"a.b", to("a.$1", 50), source="a.*") == {b"a.b": 100}, "only the very text counts"


def test_the_destinations_of_a_cluster_replace_the_others_on_its_servers() -> None:
    destinations = (to("b", 40), to("c", 60, "east"), to("d", 40, "east"), to("e", 10, "west"))
    assert shares(b"a", *destinations) == {b"b": 40, b"a": 60}
    assert shares(b"a", *destinations, cluster="east") == {b"c": 60, b"d": 40}
    assert shares(b"a", *destinations, cluster="west") == {b"e": 10, b"a": 90}
    assert shares(b"a", *destinations, cluster="north") == {b"b": 40, b"a": 60}


def test_chance_is_asked_only_where_it_decides() -> None:
    asked: list[int] = []

    def below(n: int) -> int:
        asked.append(n)
        return 0

    mappings = Mappings(
        [
            SubjectMapping("half", (to("b", 50),)),
            SubjectMapping.to("random", "c.{{random(5)}}"),
            SubjectMapping.to("plain", "d"),
        ]
    )
    assert mappings.decide(b"half", below) == (b"b", False)
    assert asked == [100]
    assert mappings.decide(b"random", below) == (b"c.0", False)
    assert asked[-1] == 5
    assert mappings.decide(b"plain", never) == (b"d", True)


@pytest.mark.parametrize(
    ("destinations", "text"),
    [
        ([to("b", 50), to("c", 60)], "total weight needs to be <= 100"),
        ([to("b", 60, "x"), to("c", 60, "x")], "total weight needs to be <= 100"),
        ([to("b", 101)], "Invalid weight 101 for mapping destination"),
        ([to("b", -1)], "Invalid weight -1 for mapping destination"),
        ([to("b", 10), to("b", 10)], 'duplicate entry for "b"'),
        ([to("b", 10, "x"), to("b", 10, "y")], 'duplicate entry for "b"'),
        ([to("b.{{foo(1)}}")], "invalid mapping destination: unknown function in {{foo(1)}}"),
        ([to("b.*")], "invalid subject"),
    ],
)
def test_destinations_that_can_not_be_are_refused(destinations: list[Destination], text: str) -> None:
    assert refusal("a", *destinations) == text


def test_a_source_must_be_a_filter() -> None:
    assert refusal("a..b", to("c")) == 'Subject "a..b" is not a valid subject'


@given(st.lists(st.integers(0, 100), max_size=8), st.booleans())
def test_the_numbers_are_shared_out_exactly_as_weighted(weights: list[int], lists_source: bool) -> None:
    destinations = [to(f"d{i}", weight) for i, weight in enumerate(weights)]
    if lists_source and destinations:
        destinations[0] = to("a", weights[0])
    if sum(weights) > 100:
        assert "total weight" in refusal("a", *destinations)
        return
    expected = Counter({d.subject.encode(): d.weight for d in destinations})
    expected[DROPPED if lists_source and destinations else b"a"] += 100 - sum(weights)
    assert shares(b"a", *destinations) == +expected


def test_a_mapping_is_prepared_for_the_first_subject_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload sets thousands at once, and clients wait meanwhile."""
    made: list[str] = []

    class Counted(mapping.WeightedChoice):
        def __init__(self, one: SubjectMapping, cluster: str = "") -> None:
            made.append(one.source)
            super().__init__(one, cluster)

    monkeypatch.setattr(mapping, "WeightedChoice", Counted)
    mappings = Mappings([SubjectMapping(f"a.{n}", (to(f"b.{n}"),)) for n in range(1000)])
    assert made == []
    for _ in range(2):
        assert mappings.decide(b"a.7", lambda n: 0) == (b"b.7", True)
    assert made == ["a.7"]


@pytest.mark.parametrize(
    ("sources", "prefix"),
    [
        (["a.b"], b"a.b"),
        (["a.b.*", "a.bc.>"], b"a.b"),
        (["$JS.hub.API.INFO", "$JS.hub.API.$KV.>"], b"$JS.hub.API."),
        (["a.b", "*.b"], b""),
        ([">"], b""),
        (["a*.b", "a"], b"a"),
        ([], b""),
    ],
)
def test_every_mapped_subject_begins_with_the_prefix(sources: list[str], prefix: bytes) -> None:
    assert Mappings(SubjectMapping(source, ()) for source in sources).prefix == prefix
