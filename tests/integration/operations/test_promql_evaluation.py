"""The evaluation of PromQL that the tests of the alert rules rest on, by values from its documentation."""

from __future__ import annotations

import pytest

from tests.support.promql_evaluation import SampleStore, evaluate

promql = pytest.importorskip("promql_parser", reason="needs the dependency group `deploy`")


@pytest.fixture
def store() -> SampleStore:
    """At 60, 120 and 180 s: a counter that restarts, a gauge of two instances, and a histogram."""
    made = SampleStore()
    for at_s, count in ((60, 10), (120, 30), (180, 5)):
        made.add(at_s, "c_total", {"i": "1"}, count)
        made.add(at_s, "g", {"i": "1", "kind": "a"}, count)
        made.add(at_s, "g", {"i": "2", "kind": "b"}, 2)
        for bound, share in (("0.1", 0), ("0.5", 0.5), ("1", 1), ("+Inf", 1)):
            made.add(at_s, "h_bucket", {"le": bound}, at_s * share)
    made.add(180, "limit", {"i": "1"}, 10)
    return made


@pytest.mark.parametrize(("text", "values"), [
    ("g", [2, 5]), ('g{i="1"}', [5]), ('g{i=~"1|2", kind!="a"}', [2]), ('g{i!~"."}', []), ("g > 4", [5]),
    ("g >= 5 and c_total", []), ("g and on (i) c_total", [5]), ("sum by (i) (g)", [2, 5]), ("sum(g)", [7]),
    ("max without (i, kind) (g)", [5]), ("increase(c_total[5m])", [25]), ("rate(c_total[5m])", [25 / 300]),
    ("delta(g[5m])", [-5, 0]), ("changes(g[5m])", [0, 2]), ("increase(c_total[1m])", []),
    ("g / ignoring (kind) limit", [0.5]), ("histogram_quantile(0.5, h_bucket)", [0.5]),
    ("histogram_quantile(0.75, sum by (le) (rate(h_bucket[5m])))", [0.75]), ("missing / g", []),
])  # fmt: skip
def test_an_expression_has_these_values(store: SampleStore, text: str, values: list[float]) -> None:
    found = evaluate(store, promql.parse(text), 180)
    assert isinstance(found, dict)
    assert sorted(found.values()) == pytest.approx(values)


def test_a_sample_is_forgotten_after_five_minutes(store: SampleStore) -> None:
    assert evaluate(store, promql.parse("g"), 180 + 299)
    assert evaluate(store, promql.parse("g"), 180 + 301) == {}


@pytest.mark.parametrize("text", ["g offset 5m", "topk(1, g)", "avg_over_time(g[5m])", "1 + g"])
def test_what_the_rules_do_not_use_is_refused(store: SampleStore, text: str) -> None:
    with pytest.raises((NotImplementedError, KeyError)):
        evaluate(store, promql.parse(text), 180)
