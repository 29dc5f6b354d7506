"""Conversion between wire texts and integer nanoseconds, for durations and times.

Durations use Go's format (`1h2m3.5s`, `-1.5ms`, `0s`), times RFC3339 with up to nine fractional digits.
Invariant: `parse(format(ns)) == ns`. Rejected: float seconds and datetime, which lose nanoseconds.
"""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from penstock.errors import MisuseError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NS_PER_MINUTE = 60 * NS_PER_S
NS_PER_HOUR = 3600 * NS_PER_S
INT64_MAX = 2**63 - 1
TEXT_MAX = 200  # maximum characters of a duration

ZERO_TIME = "0001-01-01T00:00:00Z"  # "no time", as the official server writes it

_UNITS_NS = {
    "ns": 1,
    "us": NS_PER_US,
    "µs": NS_PER_US,  # U+00B5
    "μs": NS_PER_US,  # U+03BC
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": NS_PER_MINUTE,
    "h": NS_PER_HOUR,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([a-zµμ]+)", re.ASCII)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_ISO8601 = re.compile(
    r"(\d{4}-\d\d-\d\d[^0-9]\d\d(?::\d\d(?::\d\d)?)?)(?:[.,](\d+))?(?:(Z)|([+-]\d\d)(?::?(\d\d))?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def parse_duration(text: str) -> int:
    """`"1m30s"` -> 90_000_000_000. A bare `0` is allowed, any other number needs a unit.

    Raises MisuseError when `text` is not a Go duration or does not fit 64 bits. Texts longer than TEXT_MAX
    are invalid, because parsing takes time that grows with the number of digits.
    """
    if len(text) > TEXT_MAX:
        raise MisuseError(f"{text[:40]!r}... is no duration: {len(text)} characters, the most is {TEXT_MAX}")
    sign, rest = 1, text
    if rest[:1] in ("+", "-"):
        sign, rest = (-1 if rest[0] == "-" else 1), rest[1:]
    if rest == "0":
        return 0
    total = 0
    position = 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or not (part[1] or part[2]) or part[3] not in _UNITS_NS:
            raise MisuseError(f"{text!r} is no duration: write it like 1h30m, 2.5s or 100ms")
        unit_ns = _UNITS_NS[part[3]]
        total += int(part[1] or 0) * unit_ns
        if part[2]:
            total += int(part[2]) * unit_ns // 10 ** len(part[2])
        position = part.end()
    if not rest or total > INT64_MAX:
        raise MisuseError(f"{text!r} is no duration" if not rest else f"{text!r} is more than 292 years")
    return sign * total


def format_duration(ns: int) -> str:
    """90_000_000_000 -> `"1m30s"`, in Go's format: one unit below a second, else hours, minutes and
    seconds."""
    if ns == 0:
        return "0s"
    sign, value = ("-", -ns) if ns < 0 else ("", ns)
    if value < NS_PER_S:
        for unit, unit_ns in (("ms", NS_PER_MS), ("µs", NS_PER_US), ("ns", 1)):
            if value >= unit_ns:
                return f"{sign}{_decimal(value, unit_ns)}{unit}"
    minutes, rest = divmod(value, NS_PER_MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = _decimal(rest, NS_PER_S) + "s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else sign + seconds


def parse_time(text: str) -> int:
    """`"2024-01-02T03:04:05.000000006Z"` -> ns since 1970. Accepts any offset; truncates below 1 ns.

    Raises MisuseError when `text` is not an RFC3339 time.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise MisuseError(f"{text!r} is no time: write it like 2024-01-02T03:04:05.123456789Z")
    try:
        second_ns = _second_ns(text[:19], found[8], found[9], found[10])
    except ValueError as error:
        raise MisuseError(f"{text!r} is no time: {error}") from None
    return second_ns + int((found[7] or "").ljust(9, "0"))


@lru_cache(maxsize=256)
def _second_ns(text: str, sign: str | None, hours: str | None, minutes: str | None) -> int:
    """A time without its fraction as ns since 1970. Cached: messages that are read together are often of the
    same second, and a datetime costs ten times a look-up. Raises ValueError."""
    zone = timezone.utc
    if sign and hours and minutes:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        zone = timezone(-offset if sign == "-" else offset)
    since = datetime.fromisoformat(text).replace(tzinfo=zone) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NS_PER_S


def parse_iso8601(text: str) -> datetime:
    """A date or time as `datetime.fromisoformat` of Python 3.11 reads it. Raises ValueError.

    Python 3.10 does not read the formats without hyphens and colons, and those of weeks.
    """
    return datetime.fromisoformat(text if sys.version_info >= (3, 11) else for_python_3_10(text))


def for_python_3_10(text: str) -> str:
    """An ISO 8601 time as Python 3.10 reads it: with six digits of the fraction, and minutes in the offset.
    Other text comes back as it is."""
    found = _ISO8601.fullmatch(text)
    if found is None:
        return text
    seconds, fraction, utc, hours, minutes = found.groups()
    offset = "+00:00" if utc else f"{hours}:{minutes or '00'}" if hours else ""
    return f"{seconds}.{fraction[:6]:0<6}{offset}" if fraction else seconds + offset


def format_time(ns: int) -> str:
    """Ns since 1970 -> RFC3339Nano in UTC, without trailing zeros in the fraction."""
    seconds, fraction = divmod(ns, NS_PER_S)
    moment = _EPOCH + timedelta(seconds=seconds)
    text = moment.replace(tzinfo=None).isoformat()
    return f"{text}.{fraction:09d}".rstrip("0") + "Z" if fraction else text + "Z"


def format_time_or_zero(ns: int) -> str:
    """Like format_time, but 0 ("no time") becomes ZERO_TIME."""
    return format_time(ns) if ns else ZERO_TIME


def parse_time_or_zero(text: str | None) -> int:
    """Like parse_time, but absent, empty and ZERO_TIME become 0."""
    return parse_time(text) if text and text != ZERO_TIME else 0


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{fraction:0{digits}d}".rstrip("0") if fraction else str(whole)
