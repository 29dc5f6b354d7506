"""Filter pushdown: translates Spark's filters to sequences, times and subjects.

`seq` bounds the planned range; `subject` (equals, in, starts with) becomes consumer filters; `time` becomes
the sequences stored between two times; `stream` selects streams.

Invariants: pushing a filter never loses a row that the filter keeps. A filter is reported as fully handled
only if the pushed form is equivalent. Times are truncated to microseconds in the column, so Spark evaluates
time filters again.

Rejected: pushing partly overlapping wildcards (a consumer's filters must not overlap); pushing into
streaming queries (Spark offers no filters there; use the options).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.protocol.subjects import is_subset, is_valid_subject, overlaps
from penstock.spark.positions import SEQUENCE_MAX, format_time

# More filters cost the server more than the rows they save.
SUBJECTS_MAX = 256

_NEVER_NULL = ("subject", "seq", "time", "stream", "headers")


@dataclass
class Pushed:
    """The part of the streams left to read. subjects, streams: None means all, () means none."""

    subjects_max: int = SUBJECTS_MAX
    start: int = 0
    end: int = SEQUENCE_MAX
    after: str | None = None
    """Lower bound of the store time, inclusive (RFC3339)."""
    before: str | None = None
    """Upper bound of the store time, exclusive (RFC3339)."""
    subjects: tuple[str, ...] | None = None
    streams: tuple[str, ...] | None = None

    def wants(self, stream: str) -> bool:
        """Whether anything of `stream` is left to read."""
        return self.subjects != () and (self.streams is None or stream in self.streams)

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply `filters` and return those that Spark must still evaluate."""
        return [given for given in filters if not self._take(given)]

    def _take(self, given: Filter) -> bool:
        """Apply one filter. True if the pushed form is equivalent to it."""
        path: tuple[str, ...] = getattr(given, "attribute", ())
        column = path[0] if len(path) == 1 else None
        if isinstance(given, IsNotNull):
            return column in _NEVER_NULL
        values = _values(given)
        if column == "seq":
            return self._take_seq(given, values)
        if column == "time":
            return self._take_time(given)
        if column == "stream" and values is not None:
            names = tuple(v for v in values if isinstance(v, str))
            self.streams = names if self.streams is None else tuple(s for s in self.streams if s in names)
            return True
        if column == "subject":
            return self._take_subject(given, values)
        return False

    def _take_seq(self, given: Filter, values: list[Any] | None) -> bool:
        if values is not None:
            numbers = [v for v in values if isinstance(v, int)]
            self._bound(min(numbers, default=1), max(numbers, default=0) + 1)
            return len(numbers) == 1  # several values become one range, which includes those in between
        value = getattr(given, "value", None)
        if not isinstance(value, int):
            return False
        match given:
            case GreaterThan():
                self._bound(value + 1, SEQUENCE_MAX)
            case GreaterThanOrEqual():
                self._bound(value, SEQUENCE_MAX)
            case LessThan():
                self._bound(0, value)
            case LessThanOrEqual():
                self._bound(0, value + 1)
            case _:
                return False
        return True

    def _bound(self, start: int, end: int) -> None:
        self.start, self.end = max(self.start, start), min(self.end, end)

    def _take_time(self, given: Filter) -> bool:
        value = getattr(given, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            return False
        value = value.astimezone(timezone.utc)
        if isinstance(given, (GreaterThan, GreaterThanOrEqual, EqualTo, EqualNullSafe)):
            self.after = max(filter(None, (self.after, format_time(value))))
        if isinstance(given, (LessThan, LessThanOrEqual, EqualTo, EqualNullSafe)):
            # A message within the same microsecond may be later by nanoseconds.
            text = format_time(value + timedelta(microseconds=1))
            self.before = min(filter(None, (self.before, text)))
        return False

    def _take_subject(self, given: Filter, values: list[Any] | None) -> bool:
        if values is not None:
            literal = [v for v in dict.fromkeys(values) if isinstance(v, str) and is_valid_subject(v)]
            return self._narrow(literal)
        if not isinstance(given, StringStartsWith) or not isinstance(given.value, str):
            return False
        tokens, _, rest = given.value.rpartition(".")
        if not is_valid_subject(tokens):
            return False
        return self._narrow([f"{tokens}.>"]) and not rest

    def _narrow(self, wanted: list[str]) -> bool:
        """Intersect the subjects with `wanted`; False, without a change, if filters cannot express that."""
        found: list[str] = []
        for one in wanted:
            for other in self.subjects if self.subjects is not None else (">",):
                if is_subset(one, other):
                    found.append(one)
                elif is_subset(other, one):
                    found.append(other)
                elif overlaps(one, other):
                    return False
        if len(found) > self.subjects_max:
            return False
        self.subjects = tuple(dict.fromkeys(found))
        return True


def _values(given: Filter) -> list[Any] | None:
    """The accepted values of an equality or IN filter; None for other filters."""
    if isinstance(given, In):
        return list(given.value)
    if isinstance(given, (EqualTo, EqualNullSafe)):
        return [given.value]
    return None
