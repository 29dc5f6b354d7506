"""Patterns of message schedules (ADR-51): computes the next occurrence.

    @at 2030-01-02T03:04:05Z        once
    @every 90s                      repeatedly, at least one second apart
    @hourly  @daily  @midnight  @weekly  @monthly  @yearly  @annually
    0 30 8 * * mon-fri              cron: second, minute, hour, day of month, month, day of week

Only cron patterns may have a time zone. A field is a comma-separated list of `*` or `?`, numbers and ranges
`a-b`, each optionally with `/step`; months and weekdays have three-letter English names. If both day fields
are restricted, either may match. As in the official server, times that daylight saving skips do not occur,
and times that it repeats occur twice.

Invariant: equal pattern, zone and times give equal results. Rejected: a cron library. Those with seconds
    differ in weekday numbers, in combined day fields and in daylight saving.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timedelta, timezone, tzinfo

from msgspec import Struct

from penstock.errors import MisuseError
from penstock.protocol.durations import NS_PER_S, format_time, parse_duration, parse_time

_AT = "@at "
_EVERY = "@every "
_PREDEFINED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS = dict(zip("jan feb mar apr may jun jul aug sep oct nov dec".split(), range(1, 13), strict=True))
_WEEKDAYS = dict(zip("sun mon tue wed thu fri sat".split(), range(7), strict=True))
_FIELDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _WEEKDAYS),
)
_NUMBER = re.compile(r"\+?[0-9]{1,9}", re.ASCII)
PATTERN_MAX = 1000  # characters; longer than six fields with every value listed
_LOCALTIME = "/etc/localtime"
_YEARS_AHEAD = 5
_YEAR_MAX = 9990
_DAY = timedelta(days=1)


class Occurrence(Struct, frozen=True):
    """The next time of a schedule, ns since 1970, and whether it repeats."""

    at: int
    repeats: bool


def load_zone(name: str) -> tzinfo:
    """The time zone of that name in the system's database; `Local` is the system's zone, as in Go. Raises
    MisuseError when there is none."""
    if name == "UTC":
        return timezone.utc
    from zoneinfo import ZoneInfo

    try:
        return _local_zone() if name == "Local" else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise MisuseError(f"{name!r} is no time zone of this machine's database") from None


def _local_zone() -> tzinfo:
    """The zone named by TZ, else that of /etc/localtime, else UTC. Raises as ZoneInfo does."""
    from zoneinfo import ZoneInfo

    named = os.environ.get("TZ")
    if named is not None:
        return ZoneInfo(named.removeprefix(":")) if named else timezone.utc
    try:
        with open(_LOCALTIME, "rb") as file:
            return ZoneInfo.from_file(file, key="Local")
    except OSError:
        return timezone.utc


def next_occurrence(pattern: str, zone: tzinfo | None, after: int, now: int) -> Occurrence:
    """The next occurrence of a schedule.

    Missed occurrences are not made up: a repeating schedule continues from `now`, and a schedule for one time
    keeps that time.

    Args:
        pattern: pattern as in the module docstring.
        zone: zone of a cron pattern; None = UTC.
        after: time of the last evaluation, ns since 1970.
        now: current time, ns since 1970.

    Raises:
        MisuseError: invalid pattern, a zone with another pattern than cron, or no occurrence within five
            years.
    """
    if len(pattern) > PATTERN_MAX:
        raise MisuseError(f"a pattern of {len(pattern)} characters; the most is {PATTERN_MAX}")
    if pattern.startswith((_AT, _EVERY)) and zone is not None:
        raise MisuseError(f"{pattern!r} can't have a time zone")
    if pattern.startswith(_AT):
        return Occurrence(parse_time(pattern[len(_AT) :]), repeats=False)
    if pattern.startswith(_EVERY):
        interval = parse_duration(pattern[len(_EVERY) :])
        if interval < NS_PER_S:
            raise MisuseError(f"{pattern!r} is too often: once a second is the most")
        at = _rounded(after) + interval
        return Occurrence(at if at >= now else _rounded(now) + interval, repeats=True)
    cron = Cron(_PREDEFINED.get(pattern, pattern), zone or timezone.utc)
    at = cron.next_after(after)
    return Occurrence(at if at >= now else cron.next_after(_rounded(now)), repeats=True)


def format_occurrence(at: int, zone: tzinfo | None) -> str:
    """The time as written into the produced message: RFC 3339, in the schedule's zone."""
    text = format_time(at)
    if zone is None or zone is timezone.utc:
        return text
    # Cron times are whole seconds.
    local = datetime.fromtimestamp(at // NS_PER_S, zone).isoformat()
    return local.replace("+00:00", "Z")


def _rounded(ns: int) -> int:
    return (ns + NS_PER_S // 2) // NS_PER_S * NS_PER_S


class Cron:
    """A six-field cron pattern in a time zone. Raises MisuseError when it is invalid."""

    def __init__(self, pattern: str, zone: tzinfo) -> None:
        fields = pattern.split()
        if len(fields) != len(_FIELDS):
            raise MisuseError(f"a cron pattern has six fields, {pattern!r} has {len(fields)}")
        self._zone = zone
        self._pattern = pattern
        parsed = [_field(text, *bounds) for text, bounds in zip(fields, _FIELDS, strict=True)]
        self._seconds, self._minutes, self._hours, self._days, self._months, self._weekdays = (
            values for values, _ in parsed
        )
        self._both_days = parsed[3][1] or parsed[5][1]  # one is unrestricted: the other decides

    def next_after(self, ns: int) -> int:
        """The first matching second after a time (ns). Raises MisuseError when none follows within five
        years."""
        t = ns // NS_PER_S + 1
        local = self._local(t)
        year_max = min(local.year + _YEARS_AHEAD, _YEAR_MAX)
        while local.year <= year_max:
            if local.month not in self._months:
                t = self._midnight((local.replace(day=1) + timedelta(days=31)).replace(day=1), t)
            elif not self._is_day(local):
                t = self._midnight(local + _DAY, t)
            elif local.hour not in self._hours:
                t += 3600 - local.minute * 60 - local.second
            elif local.minute not in self._minutes:
                t += 60 - local.second
            elif local.second not in self._seconds:
                t += 1
            else:
                return t * NS_PER_S
            local = self._local(t)
        raise MisuseError(f"{self._pattern!r} never comes")

    def _local(self, t: int) -> datetime:
        return datetime.fromtimestamp(t, self._zone)

    def _midnight(self, day: datetime, after: int) -> int:
        """Start of the day in seconds, later than `after` even if clocks change at midnight."""
        begin = day.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return max(int(begin.timestamp()), after + 1)

    def _is_day(self, local: datetime) -> bool:
        by_month = local.day in self._days
        by_week = local.isoweekday() % 7 in self._weekdays
        return by_month and by_week if self._both_days else by_month or by_week


def _field(text: str, low: int, high: int, names: dict[str, int]) -> tuple[frozenset[int], bool]:
    """(values, whether unrestricted) of one field."""
    values: set[int] = set()
    is_open = False
    for part in filter(None, text.split(",")):
        bounds, *steps = part.split("/")
        first, *rest = bounds.split("-")
        step = _number(steps[0], {}) if steps else 1
        if len(steps) > 1 or step == 0:
            raise MisuseError(f"{part!r}: a step is one number from 1 on")
        if first in ("*", "?"):
            start, end = low, high
            is_open |= step == 1
        else:
            if len(rest) > 1:
                raise MisuseError(f"{part!r}: a range has two ends")
            start = _number(first, names)
            end = _number(rest[0], names) if rest else (high if steps else start)
        if not low <= start <= end <= high:
            raise MisuseError(f"{part!r} is not within {low}-{high}")
        values.update(range(start, end + 1, step))
    if not values:
        raise MisuseError(f"{text!r} names no value")
    return frozenset(values), is_open


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    if _NUMBER.fullmatch(text) is None:
        raise MisuseError(f"{text!r} is no number")
    return int(text)
