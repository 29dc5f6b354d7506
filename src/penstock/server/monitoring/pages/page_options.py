"""Shared parts of the pages: query options, incremental work, text formats."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.durations import format_duration, format_time

if TYPE_CHECKING:
    from penstock.server.monitoring.monitored_server import MonitoredServer

Query = Mapping[str, str]
Page = dict[str, Any]
Steps = Generator[None, None, Page]
"""A page in progress: each step is a short piece of work; the return value is the page."""
T = TypeVar("T")

LIMIT_DEFAULT = 1024
PIECE = 128
"""Entries built between two yields to the loop: about a millisecond."""
_NS = 1_000_000_000
_TRUE = frozenset(("1", "t", "true"))
_FALSE = frozenset(("", "0", "f", "false"))


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Base of page options; field names are those of system requests."""

    @classmethod
    def from_query(cls, query: Query) -> PageOptions:
        """Parses a URL query. Raises MisuseError for an invalid value."""
        return cls()


class RefusedQuery(MisuseError):
    """The page cannot be built with these options.

    status: HTTP status; page: response body, None for plain text.
    """

    def __init__(self, text: str, status: int = 400, page: Page | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.page = page


class SkippedQuery(RefusedQuery):
    """Another server answers: a system request gets no reply of this one."""


async def in_pieces(steps: Page | Generator[None, None, T] | Coroutine[Any, Any, T]) -> Page | T:
    """Runs a page to its end, and lets the loop run between its pieces."""
    if isinstance(steps, dict):
        return steps
    if isinstance(steps, Coroutine):
        return await steps
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


def pieces(items: Iterable[T], size: int = PIECE) -> Iterator[list[T]]:
    """Splits into lists of at most `size`. Copies the items first, so their source may change."""
    everything = list(items)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


def header(server: MonitoredServer) -> Page:
    """Common first fields of most pages."""
    return {"server_id": server.context.server_id, "now": format_time(server.context.clock())}


# -- queries


def flag(query: Query, name: str) -> bool:
    """Parses a boolean. Raises MisuseError."""
    word = query.get(name, "").lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise MisuseError(
        f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{query[name]}\": invalid syntax"
    )


def number(query: Query, name: str) -> int:
    """Parses an integer; 0 when absent. Raises MisuseError."""
    word = query.get(name, "")
    if not word:
        return 0
    digits = word[1:] if word[0] in "+-" else word
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise MisuseError(
            f"Error decoding int for '{name}': strconv.Atoi: parsing \"{word}\": invalid syntax"
        )
    return int(word)


def natural(query: Query, name: str) -> int:
    """Parses a non-negative integer; 0 when absent. Raises MisuseError."""
    word = query.get(name, "")
    if word and not (word.isascii() and word.isdigit() and len(word) <= 20 and int(word) < 2**64):
        raise MisuseError(
            f"Error decoding uint64 for '{name}': strconv.ParseUint: parsing \"{word}\": invalid syntax"
        )
    return int(word or 0)


def paging(offset: int, limit: int) -> tuple[int, int]:
    """Normalises offset and limit: no negative values; 0 becomes the default limit."""
    return max(0, offset), limit if limit > 0 else LIMIT_DEFAULT


# -- texts


def uptime(ns: int) -> str:
    """A duration in the official server's uptime format: `1d2h3m4s`, without leading zero parts."""
    seconds = max(0, ns) // _NS
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return "".join(f"{amount}{unit}" for amount, unit in parts)


def duration(ns: int) -> str:
    """A duration such as `1.5ms`; "" for 0."""
    return format_duration(ns) if ns else ""


def text(data: bytes) -> str:
    """Decodes a subject for JSON."""
    return data.decode("utf-8", "replace")
