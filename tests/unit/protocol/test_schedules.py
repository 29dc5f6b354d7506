"""Schedule patterns: what they mean, when they come next, and what the clocks' changes do to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import MisuseError
from penstock.protocol.durations import NS_PER_S, format_time, parse_time
from penstock.protocol.schedule_patterns import Cron, format_occurrence, load_zone, next_occurrence

pytestmark = pytest.mark.feature("stream.schedules")

NOON = "2026-03-10T12:00:00Z"  # a Tuesday


def following(pattern: str, after: str = NOON, zone: str = "", now: str = "") -> str:
    start = parse_time(after)
    found = next_occurrence(
        pattern, load_zone(zone) if zone else None, start, parse_time(now) if now else start
    )
    return format_time(found.at)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("* * * * * *", "2026-03-10T12:00:01Z"),
        ("0 * * * * *", "2026-03-10T12:01:00Z"),
        ("30 */15 * * * *", "2026-03-10T12:00:30Z"),
        ("0 5/20 * * * *", "2026-03-10T12:05:00Z"),
        ("0 0 8,18 * * *", "2026-03-10T18:00:00Z"),
        ("0 0 0 * * mon", "2026-03-16T00:00:00Z"),
        ("0 0 0 13 * FRI", "2026-03-13T00:00:00Z"),
        ("0 0 0 12 * fri", "2026-03-12T00:00:00Z"),  # both days restricted: either will do
        ("0 0 0 */1 * fri", "2026-03-13T00:00:00Z"),
        ("0 0 0 */2 * wed", "2026-03-11T00:00:00Z"),  # a star with a step restricts
        ("0 0 0 29 feb *", "2028-02-29T00:00:00Z"),
        ("0 0 0 1 1 ?", "2027-01-01T00:00:00Z"),
        ("@hourly", "2026-03-10T13:00:00Z"),
        ("@daily", "2026-03-11T00:00:00Z"),
        ("@midnight", "2026-03-11T00:00:00Z"),
        ("@weekly", "2026-03-15T00:00:00Z"),
        ("@monthly", "2026-04-01T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("@annually", "2027-01-01T00:00:00Z"),
        ("@every 90s", "2026-03-10T12:01:30Z"),
        ("@at 2020-01-01T00:00:00.5Z", "2020-01-01T00:00:00.5Z"),
    ],
)
def test_what_comes_next(pattern: str, expected: str) -> None:
    """schedules"""
    assert following(pattern) == expected


def test_intervals_are_counted_from_the_nearest_second() -> None:
    """schedules"""
    assert following("@every 2s", "2026-03-10T12:00:00.499Z") == "2026-03-10T12:00:02Z"
    assert following("@every 2s", "2026-03-10T12:00:00.5Z") == "2026-03-10T12:00:03Z"


def test_times_that_passed_meanwhile_are_not_made_up_for() -> None:
    """schedules"""
    later = "2026-03-10T15:30:00.2Z"
    assert following("@every 1m", now=later) == "2026-03-10T15:31:00Z"
    assert following("@hourly", now=later) == "2026-03-10T16:00:00Z"
    assert following("@at 2026-03-10T13:00:00Z", now=later) == "2026-03-10T13:00:00Z"


@pytest.mark.parametrize(
    ("pattern", "after", "expected"),
    [
        # Berlin skips 02:00-03:00 on 2026-03-29 and repeats it on 2026-10-25.
        ("0 30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
        ("0 30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
        ("0 30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
        ("0 30 2 * * *", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"),
        ("@daily", "2026-03-28T12:00:00Z", "2026-03-28T23:00:00Z"),
        ("@daily", "2026-03-29T12:00:00Z", "2026-03-29T22:00:00Z"),
    ],
)
def test_clocks_that_change(pattern: str, after: str, expected: str) -> None:
    """schedules"""
    assert following(pattern, after, "Europe/Berlin") == expected


def test_midnights_that_do_not_exist_are_passed() -> None:
    """schedules: Beirut went from 23:59:59 to 01:00 on 2024-03-31."""
    assert following("0 0 12 * * *", "2024-03-30T21:00:00Z", "Asia/Beirut") == "2024-03-31T09:00:00Z"
    assert following("@daily", "2024-03-30T12:00:00Z", "Asia/Beirut") == "2024-03-31T21:00:00Z"


def test_the_next_time_is_in_the_zone_of_the_schedule() -> None:
    """schedules"""
    at = parse_time("2026-07-01T10:00:00Z")
    assert format_occurrence(at, None) == "2026-07-01T10:00:00Z"
    assert format_occurrence(at, load_zone("UTC")) == "2026-07-01T10:00:00Z"
    assert format_occurrence(at, load_zone("Europe/Berlin")) == "2026-07-01T12:00:00+02:00"
    assert parse_time(format_occurrence(at, load_zone("Asia/Kolkata"))) == at
    assert format_occurrence(at + 5, None).endswith("00.000000005Z")


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "x", "@at", "@at noon", "@every", "@every 999ms", "@every -5s", "@every 5", "@dailyy"),
        *("* * * * *", "* * * * * * *", "60 * * * * *", "* * 24 * * *", "* * * 0 * *", "* * * * 13 *"),
        *("* * * * * 7", "5-1 * * * * *", "1-2-3 * * * * *", "1/2/3 * * * * *", "*/0 * * * * *"),
        *("- * * * * *", "1/ * * * * *", "/ * * * * *", ", * * * * *", "0 0 0 31 2 *", "* * mon * * *"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """schedules"""
    with pytest.raises(MisuseError):
        next_occurrence(pattern, None, 0, 0)


@pytest.mark.parametrize("pattern", ["@at 2030-01-01T00:00:00Z", "@every 1s"])
def test_only_cron_patterns_have_zones(pattern: str) -> None:
    """schedules"""
    with pytest.raises(MisuseError, match="time zone"):
        next_occurrence(pattern, UTC, 0, 0)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../etc/passwd", "/etc/passwd", "Europe", "a\0b"])
def test_zones_that_are_not_known_are_refused(name: str) -> None:
    """schedules"""
    with pytest.raises(MisuseError):
        load_zone(name)


minutes = st.sampled_from(["*", "0", "30", "*/7", "1-5", "10,50"])
hours = st.sampled_from(["*", "0", "23", "2", "*/5", "1-3"])
days = st.sampled_from(["*", "1", "31", "*/10", "5-7"])
weekdays = st.sampled_from(["*", "mon", "0,6", "1-5"])
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Beirut"])
MINUTE = timedelta(minutes=1)


def matches(field: str, value: int, low: int, names: dict[str, int]) -> bool:
    for part in field.split(","):
        bounds, _, step = part.partition("/")
        first, _, last = bounds.partition("-")
        if first == "*":
            start, end = low, 99
        else:
            start = names.get(first, -1) if first in names else int(first)
            end = int(last) if last else start
        if start <= value <= end and (value - start) % int(step or 1) == 0:
            return True
    return False


@given(minutes, hours, days, weekdays, zones, st.integers(1_700_000_000, 1_760_000_000))
def test_nothing_that_matches_is_passed_over(
    minute: str, hour: str, day: str, weekday: str, zone: str, after: int
) -> None:
    """schedules: a dumb search, minute by minute, over five days."""
    found = Cron(f"0 {minute} {hour} {day} * {weekday}", load_zone(zone)).next_after(after * NS_PER_S)
    here = load_zone(zone)
    moment = datetime.fromtimestamp(after // 60 * 60, UTC) + MINUTE
    for _ in range(5 * 24 * 60):
        local = moment.astimezone(here)
        by_month = matches(day, local.day, 1, {})
        by_week = matches(weekday, local.isoweekday() % 7, 0, {"mon": 1})
        is_day = by_month and by_week if "*" in (day, weekday) else by_month or by_week
        if is_day and matches(minute, local.minute, 0, {}) and matches(hour, local.hour, 0, {}):
            assert found == int(moment.timestamp()) * NS_PER_S
            return
        moment += MINUTE
    assert found >= int(moment.timestamp()) * NS_PER_S
