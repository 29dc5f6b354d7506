"""Converters of option values: durations, sizes, counts, files, headers. Each raises ValueError with what
it takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

_UNITS_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "D": 86_400.0,
    "w": 604_800.0,
    "W": 604_800.0,
    "M": 2_592_000.0,
    "y": 31_536_000.0,
    "Y": 31_536_000.0,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|D|w|W|M|y|Y)")
_SIZE = re.compile(r"(-?\d+(?:\.\d+)?)\s*([KMGTP]?)(i?)B?", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


Kind = TypeVar("Kind", bound=Callable[[str], object])


def _named(metavar: str) -> Callable[[Kind], Kind]:
    """Decorator: what help texts call the value."""

    def name(function: Kind) -> Kind:
        function.metavar = metavar  # type: ignore[attr-defined]
        return function

    return name


@_named("DURATION")
def seconds(text: str) -> float:
    """A duration such as `250ms`, `1m30s`, `2h`, `7d`, `1y`, in seconds. `-1` and `0` have no unit.

    Units are Go's, and those the official command line adds: d, w, M (30 days), y (365 days).
    """
    stripped = text.strip()
    if stripped in ("0", "-1"):
        return float(stripped)
    sign = -1.0 if stripped.startswith("-") else 1.0
    rest = stripped.lstrip("+-")
    total, at = 0.0, 0
    while at < len(rest):
        match = _DURATION.match(rest, at)
        if match is None:
            raise ValueError(f"{text!r} is not a duration; write it like 250ms, 30s, 5m, 2h or 7d")
        total += float(match[1]) * _UNITS_S[match[2]]
        at = match.end()
    if not rest:
        raise ValueError("an empty text is not a duration; write it like 250ms, 30s, 5m, 2h or 7d")
    return sign * total


@_named("SECONDS")
def interval(text: str) -> float:
    """An interval in seconds: a number of them such as `5`, or a duration such as `500ms`."""
    try:
        return float(text) if text.strip().isdecimal() else seconds(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an interval; write it like 5 (seconds), 500ms or 1m") from None


@_named("SIZE")
def size(text: str) -> int:
    """A number of bytes such as `1024`, `64K`, `10MB`, `1GiB`. Units are powers of 1024; `-1` means no
    limit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 512, 64KB, 10MB or 1GB")
    return int(float(match[1]) * (1 << _SHIFTS[match[2].upper()]))


@_named("NUMBER")
def whole(text: str) -> int:
    """A whole number; `_` and `,` may separate thousands."""
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


@_named("NUMBER")
def count(text: str) -> int:
    """A whole number above 0."""
    number = whole(text)
    if number < 1:
        raise ValueError(f"{text} is not above 0")
    return number


@_named("NUMBER")
def decimal(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


@_named("FILE")
def existing_file(text: str) -> Path:
    """A file that can be read."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no file {text!r}")
    if not os.access(path, os.R_OK):
        raise ValueError(f"the file {text!r} can not be read by this user")
    return path


@_named("PATH")
def path(text: str) -> Path:
    """A path, with `~` for the home directory."""
    return Path(text).expanduser()


@_named("NAME:VALUE")
def header(text: str) -> tuple[str, str]:
    """A header `NAME:VALUE`."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"a header is NAME:VALUE, not {text!r}")
    return name.strip(), value.strip()


@_named("KEY=VALUE")
def pair(text: str) -> tuple[str, str]:
    """A pair `KEY=VALUE` (or `KEY:VALUE`)."""
    separator = "=" if "=" in text else ":"
    key, found, value = text.partition(separator)
    if not found or not key.strip():
        raise ValueError(f"a pair is KEY=VALUE, not {text!r}")
    return key.strip(), value.strip()


@_named("TIME")
def moment(text: str) -> datetime:
    """A time: `2026-11-23 15:20:34`, RFC 3339, or a duration from now (before now with a minus)."""
    stripped = text.strip()
    try:
        return datetime.now(UTC) + timedelta(seconds=seconds(stripped))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(stripped)
    except ValueError:
        forms = "'2026-11-23 15:20:34', 2026-11-23T15:20:34Z, or 5m from now"
        raise ValueError(f"{text!r} is not a time; write it like {forms}") from None
    return found if found.tzinfo is not None else found.astimezone()
