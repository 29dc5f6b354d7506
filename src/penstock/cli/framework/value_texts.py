"""Numbers, sizes, durations and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number_text(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def whole_text(number: float) -> str:
    """The same for a number with a fraction: `1,234`."""
    return number_text(round(number))


def rate_text(per_second: float) -> str:
    """`1,234/s`, `0.5/s`."""
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}/s"


def size_text(size: float) -> str:
    """`512 B`, `1.5 KiB`, `2.0 GiB`."""
    if size < 1024:
        return f"{int(size)} B"
    index = 0
    while size >= 1024 and index < len(_SIZES) - 1:
        size /= 1024
        index += 1
    return f"{size:.1f} {_SIZES[index]}"


def limit_text(limit: int, text: str = "unlimited") -> str:
    """A number, or `unlimited` for 0 and below."""
    return number_text(limit) if limit > 0 else text


def size_limit_text(limit: int) -> str:
    """A size, or `unlimited` for 0 and below."""
    return size_text(limit) if limit > 0 else "unlimited"


def duration_text(duration_s: float) -> str:
    """`1y2d3h4m5s`, `12.35s`, `250ms`, `3µs`; `never` below 0."""
    if duration_s < 0:
        return "never"
    if duration_s == 0:
        return "0s"
    if duration_s < 1:
        for unit, scale in (("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
            if duration_s * scale >= 1:
                return f"{duration_s * scale:.4g}{unit}"
        return "0s"
    if duration_s < 60:
        return f"{duration_s:.2f}".rstrip("0").rstrip(".") + "s"
    rest = round(duration_s)
    parts: list[tuple[int, str]] = []
    for unit, length in (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        whole, rest = divmod(rest, length)
        if parts or whole:
            parts.append((whole, unit))
    return "".join(f"{whole}{unit}" for whole, unit in parts if whole)


def parse_api_time(text: str) -> datetime | None:
    """A time of the API (RFC 3339, up to nanoseconds); None if it is empty, zero or unreadable."""
    if not text or text.startswith("0001-"):
        return None
    from penstock.errors import PenstockError
    from penstock.protocol.durations import parse_time

    try:
        return datetime.fromtimestamp(parse_time(text) / 1e9, UTC)
    except (PenstockError, ValueError, OverflowError):
        return None


def time_text(when: datetime | str | None) -> str:
    """`2026-11-23 15:20:34` in the user's time zone; `never` for no time."""
    found = parse_api_time(when) if isinstance(when, str) else when
    return found.astimezone().strftime("%Y-%m-%d %H:%M:%S") if found is not None else "never"


def ago_text(when: datetime | str | None, now: datetime | None = None) -> str:
    """How long ago, as a duration; `never` for no time."""
    found = parse_api_time(when) if isinstance(when, str) else when
    if found is None:
        return "never"
    return duration_text(max(0.0, ((now or datetime.now(UTC)) - found).total_seconds()))
