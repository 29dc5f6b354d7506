"""The block `mappings` of nats.conf."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.routing.mapping import Destination, SubjectMapping
from penstock.server.config.conf_parser import parse
from penstock.server.config.directives import options_of
from penstock.server.config.server_options import ServerOptions

pytestmark = pytest.mark.feature("core.subject-mapping")


def options(text: str) -> ServerOptions:
    return options_of(parse(text, "t.conf", environ={}))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        options(text)
    return str(caught.value)


def test_a_source_leads_to_a_string_a_map_or_an_array_of_maps() -> None:
    found = options(
        """
        mappings {
            plain: other
            "x.*.*": "y.{{wildcard(2)}}.$1"
            one: { destination: two, weight: 10 }
            many: [
                { dest: a, weight: 98% }
                { Destination: b, Weight: "2" }
                { dest: c, weight: 40%, cluster: east }
            ]
            nowhere: []
        }
        """
    )
    assert found.mappings == (
        SubjectMapping.to("plain", "other"),
        SubjectMapping.to("x.*.*", "y.{{wildcard(2)}}.$1"),
        SubjectMapping("one", (Destination(subject="two", weight=10),)),
        SubjectMapping(
            "many",
            (
                Destination(subject="a", weight=98),
                Destination(subject="b", weight=2),
                Destination(subject="c", weight=40, cluster="east"),
            ),
        ),
        SubjectMapping("nowhere", ()),
    )


def test_both_names_of_the_block_may_stand_and_their_case_is_free() -> None:
    found = options("Mappings: { a: b }\nmaps { c: d }")
    assert found.mappings == (SubjectMapping.to("a", "b"), SubjectMapping.to("c", "d"))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("{ dest: b, weight: 101 }", "Invalid weight 101 for mapping destination"),
        ("{ dest: b, weight: '-5%' }", "Invalid weight -5 for mapping destination"),
        ("{ dest: b, weight: x }", 'Invalid weight "x" for mapping destination'),
        ("{ dest: b, weight: '98 %' }", 'Invalid weight "98 " for mapping destination'),
        ("{ dest: b, weight: true }", "Unknown entry type for weight of True"),
        ("{ dest: b, weight: 1.5 }", "Unknown entry type for weight of 1.5"),
        ("{ dest: b }", 'Missing weight for mapping destination "b"'),
        ("{ weight: 10 }", 'Missing destination for the mapping of "a": give it `destination: ...`'),
        ("{ dest: 12, weight: 1 }", "dest is 12; it must be a string"),
        ("{ dest: b, weight: 10, foo: x }", 'Unknown field "foo" for mapping destination'),
        ("[ b ]", "Expected an entry for the mapping destination"),
        ("12", "Expected an entry for the mapping destination"),
        ("[{ dest: b, weight: 50 }, { dest: c, weight: 60 }]", "total weight needs to be <= 100"),
        ("[{ dest: b, weight: 50 }, { dest: b, weight: 10 }]", 'duplicate entry for "b"'),
        (
            "'b.$1'",
            'Error adding mapping for "a" to "b.$1" : invalid mapping destination: wildcard index out',
        ),
    ],
)
def test_what_can_not_be_is_refused_with_its_place(block: str, text: str) -> None:
    error = refusal(f"\nmappings {{ a: {block} }}")
    assert error.startswith("t.conf:2:")
    assert text in error


def test_a_source_that_is_no_subject_is_refused() -> None:
    assert refusal("mappings { a..b: c }") == 't.conf:1:12: Subject "a..b" is not a valid subject'


def test_a_block_that_is_no_map_is_refused() -> None:
    assert "must be a map" in refusal("mappings: 1")
