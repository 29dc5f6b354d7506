"""Evaluates the part of PromQL that our rules and dashboard use, over samples with times.

The grammar is promql-parser's, which is Prometheus' own; what is here follows its documentation: a selector
takes the newest sample of the last five minutes; `rate` and `increase` add up increases, and a decrease is a
restart; `histogram_quantile` interpolates within a bucket. Left out: the extrapolation of increases to the
whole range, so numbers are a little lower than Prometheus'. What the rules do not use raises
NotImplementedError.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

LOOKBACK_S = 300.0
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if not a else math.copysign(math.inf, a),
}  # fmt: skip


class Point(NamedTuple):
    at_s: float
    value: float


class SampleStore:
    """Samples of scrapes, by series."""

    def __init__(self) -> None:
        self._series: dict[Labels, list[Point]] = defaultdict(list)

    def add(self, at_s: float, name: str, labels: dict[str, str], value: float) -> None:
        """Adds a sample; times of a series ascend."""
        self._series[frozenset({**labels, "__name__": name}.items())].append(Point(at_s, value))

    def select(self, selector: Any, at_s: float, range_s: float) -> dict[Labels, list[Point]]:
        """Series of a selector with their samples in (at_s - range_s, at_s]."""
        found = {}
        for labels, points in self._series.items():
            if _matches(selector, dict(labels)):
                inside = [point for point in points if at_s - range_s < point.at_s <= at_s]
                if inside:
                    found[labels] = inside
        return found


def _matches(selector: Any, labels: dict[str, str]) -> bool:
    if selector.offset is not None or selector.at is not None or selector.matchers.or_matchers:
        raise NotImplementedError(str(selector))
    if selector.name is not None and labels["__name__"] != selector.name:
        return False
    for matcher in selector.matchers.matchers:
        value, kind = labels.get(matcher.name, ""), str(matcher.op).rpartition(".")[2]
        is_equal = bool(re.fullmatch(matcher.value, value)) if "Re" in kind else value == matcher.value
        if is_equal == kind.startswith("Not"):
            return False
    return True


def evaluate(store: SampleStore, expression: Any, at_s: float) -> Vector | float:
    """The value of a parsed expression."""
    kind = type(expression).__name__
    if kind == "NumberLiteral":
        return float(expression.val)
    if kind == "ParenExpr":
        return evaluate(store, expression.expr, at_s)
    if kind == "VectorSelector":
        return {
            labels: points[-1].value for labels, points in store.select(expression, at_s, LOOKBACK_S).items()
        }
    if kind == "Call":
        return _call(store, expression, at_s)
    if kind == "AggregateExpr":
        return _aggregate(store, expression, at_s)
    if kind == "BinaryExpr":
        return _binary(store, expression, at_s)
    raise NotImplementedError(str(expression))


def _nameless(labels: Labels) -> Labels:
    return frozenset(one for one in labels if one[0] != "__name__")


def _only(labels: Labels, names: Iterable[str]) -> Labels:
    kept = set(names)
    return frozenset(one for one in labels if one[0] in kept)


def _without(labels: Labels, names: Iterable[str]) -> Labels:
    dropped = {*names, "__name__"}
    return frozenset(one for one in labels if one[0] not in dropped)


# --- functions of ranges


def _increase(points: list[Point]) -> float:
    return sum(new.value - (old.value if new.value >= old.value else 0.0) for old, new in pairwise(points))


def _call(store: SampleStore, call: Any, at_s: float) -> Vector:
    name, arguments = call.func.name, call.args
    if name == "histogram_quantile":
        quantile, buckets = (evaluate(store, one, at_s) for one in arguments)
        assert isinstance(quantile, float)
        assert isinstance(buckets, dict)
        return _quantiles(quantile, buckets)
    if name not in ("rate", "increase", "delta", "changes"):
        raise NotImplementedError(name)
    (matrix,) = arguments
    range_s = matrix.range.total_seconds()
    found: Vector = {}
    for labels, points in store.select(matrix.vector_selector, at_s, range_s).items():
        if name == "changes":
            found[_nameless(labels)] = float(sum(old.value != new.value for old, new in pairwise(points)))
        elif len(points) > 1:
            change = points[-1].value - points[0].value if name == "delta" else _increase(points)
            found[_nameless(labels)] = change / range_s if name == "rate" else change
    return found


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        groups[_without(labels, ["le"])].append((float(dict(labels)["le"]), count))
    return {labels: _quantile(quantile, sorted(group)) for labels, group in groups.items()}


def _quantile(quantile: float, buckets: list[tuple[float, float]]) -> float:
    """buckets: (upper bound, events up to it), ascending; the last bound is infinite."""
    if not buckets[-1][1]:
        return math.nan
    rank, low, below = quantile * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    raise AssertionError(buckets)


# --- operators


def _aggregate(store: SampleStore, aggregate: Any, at_s: float) -> Vector:
    inner = evaluate(store, aggregate.expr, at_s)
    assert isinstance(inner, dict)
    groups: dict[Labels, list[float]] = defaultdict(list)
    modifier = aggregate.modifier
    for labels, value in inner.items():
        if modifier is None:
            groups[frozenset()].append(value)
        elif str(modifier.type).endswith("By"):
            groups[_only(labels, modifier.labels)].append(value)
        else:
            groups[_without(labels, modifier.labels)].append(value)
    combine: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
    return {labels: combine[str(aggregate.op)](values) for labels, values in groups.items()}


def _binary(store: SampleStore, binary: Any, at_s: float) -> Vector | float:
    left, right = evaluate(store, binary.lhs, at_s), evaluate(store, binary.rhs, at_s)
    sign, matching = str(binary.op), None
    if binary.modifier is not None:
        if not str(binary.modifier.card).endswith("OneToOne") and sign != "and":
            raise NotImplementedError(str(binary))
        matching = binary.modifier.matching

    def key(labels: Labels) -> Labels:
        if matching is None:
            return _nameless(labels)
        if str(matching.type).endswith("Include"):
            return _only(labels, matching.labels)
        return _without(labels, matching.labels)

    if isinstance(left, float):
        raise NotImplementedError("a number on the left")
    if isinstance(right, float):
        number = right
        pairs = [(labels, value, number) for labels, value in left.items()]
    else:
        others = {key(labels): value for labels, value in right.items()}
        assert len(others) == len(right), f"many series match one: {binary}"
        pairs = [
            (labels, value, others[key(labels)]) for labels, value in left.items() if key(labels) in others
        ]
    if sign == "and":
        return {labels: value for labels, value, _ in pairs}
    if sign in COMPARISONS:
        return {labels: value for labels, value, other in pairs if COMPARISONS[sign](value, other)}
    return {key(labels): ARITHMETIC[sign](value, other) for labels, value, other in pairs}


def names_in(expression: Any) -> set[str]:
    """The names of metrics in an expression."""
    kind = type(expression).__name__
    if kind == "VectorSelector":
        return {expression.name}
    if kind == "MatrixSelector":
        return {expression.vector_selector.name}
    if kind == "BinaryExpr":
        return names_in(expression.lhs) | names_in(expression.rhs)
    if kind == "Call":
        return set().union(*map(names_in, expression.args))
    return names_in(expression.expr) if hasattr(expression, "expr") else set()
