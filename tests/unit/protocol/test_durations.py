"""Durations and times: text and nanoseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MisuseError
from penstock.protocol import durations as d

INT64 = st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1)
YEARS_1_TO_9999 = st.integers(min_value=d.parse_time("0001-01-01T00:00:00Z"), max_value=253402300799 * 10**9)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("1h2m3.5s", 3_723_500_000_000),
        ("-1.5ms", -1_500_000),
        ("+3us", 3_000),
        ("3µs", 3_000),
        ("3μs", 3_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("1.0000000009s", 1_000_000_000),  # beyond a nanosecond is cut
        ("2540400h10m10.000000000s", 9_145_440_610_000_000_000),
    ],
)
def test_go_durations_are_read_to_the_nanosecond(text: str, ns: int) -> None:
    assert d.parse_duration(text) == ns


@pytest.mark.parametrize(
    "text", ["", "5", "s", ".s", "5 s", "5S", "-", "1h-2m", "1d", "1e3s", "9999999h", "٣s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        d.parse_duration(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (245_000_000_000, "4m5s"),
        (18_367_001_000_000, "5h6m7.001s"),
        (-1_500_000_000, "-1.5s"),
        (3_600_000_000_000, "1h0m0s"),
    ],
)
def test_durations_are_printed_as_go_prints_them(ns: int, text: str) -> None:
    assert d.format_duration(ns) == text


@given(INT64)
def test_a_duration_survives_a_round_trip(ns: int) -> None:
    assert d.parse_duration(d.format_duration(ns)) == ns


@given(YEARS_1_TO_9999)
def test_a_time_survives_a_round_trip(ns: int) -> None:
    assert d.parse_time(d.format_time(ns)) == ns


def test_times_are_printed_without_trailing_zeros() -> None:
    assert d.format_time(1_700_000_000_000_000_000) == "2023-11-14T22:13:20Z"
    assert d.format_time(1_700_000_000_120_000_000) == "2023-11-14T22:13:20.12Z"
    assert d.format_time(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
    assert d.format_time(-1) == "1969-12-31T23:59:59.999999999Z"


def test_offsets_are_counted_in() -> None:
    assert d.parse_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000_000_000
    assert d.parse_time("2023-11-14T20:43:20.5-01:30") == 1_700_000_000_500_000_000


@pytest.mark.parametrize(
    "text", ["", "2023-11-14", "2023-11-14 22:13:20Z", "2023-13-14T22:13:20Z", "2023-11-14T22:13:20", "x"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        d.parse_time(text)


def test_no_time_is_zero_inside_and_year_one_on_the_wire() -> None:
    assert d.format_time_or_zero(0) == "0001-01-01T00:00:00Z"
    assert d.parse_time_or_zero("0001-01-01T00:00:00Z") == 0
    assert d.parse_time_or_zero(None) == 0
    assert d.parse_time_or_zero("") == 0


def hours_from_utc(hours: int) -> timezone:
    return timezone(timedelta(hours=hours))


@given(
    moment=st.datetimes(timezones=st.none() | st.builds(hours_from_utc, st.integers(-23, 23))),
    separator=st.sampled_from("T "),
    point=st.sampled_from(".,"),
    digits=st.integers(0, 9),
    shape=st.sampled_from(["Z", "colon", "hours"]),
)
def test_a_time_for_python_3_10_is_the_same_time(
    moment: datetime, separator: str, point: str, digits: int, shape: str
) -> None:
    text = moment.isoformat(separator, timespec="seconds")
    text, offset = text[:19], text[19:]
    if offset == "+00:00" and shape == "Z":
        offset = "Z"
    elif shape == "hours":
        offset = offset[:3]
    if digits:
        text += f"{point}{moment.microsecond:06d}000"[: digits + 1]
    text += offset
    older = d.for_python_3_10(text)
    assert datetime.fromisoformat(older) == datetime.fromisoformat(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d.\d\d:\d\d:\d\d(\.\d{6})?([+-]\d\d:\d\d)?", older)


@pytest.mark.parametrize("text", ["2026-01-31", "20260131T120000", "2026-W05", "soon", ""])
def test_text_that_is_no_extended_time_stays_as_it_is_for_python_3_10(text: str) -> None:
    assert d.for_python_3_10(text) == text
