"""What all pages share: options out of queries, work in pieces, texts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.errors import MisuseError
from penstock.protocol.durations import format_duration, format_time

if TYPE_CHECKING:
    from penstock.server.server import Server

Query = Mapping[str, str]
Page = dict[str, Any]
Steps = Generator[None, None, Page]
"""A page under way: each step is a short piece of work, the page is what it returns."""
T = TypeVar("T")

LIMIT_DEFAULT = 1024
PIECE = 128
"""Entries a page makes before it lets the loop do other work: about a millisecond."""
_NS = 1_000_000_000
_TRUE = frozenset(("1", "t", "true"))
_FALSE = frozenset(("", "0", "f", "false"))


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a page may be asked for; fields are named as in system requests."""

    @classmethod
    def from_query(cls, query: Query) -> PageOptions:
        """Reads a URL's query. Raises MisuseError for a value of the wrong kind."""
        return cls()


class RefusedQuery(MisuseError):
    """The page can't be made of these options.

    status -- HTTP status; page -- the body that says so, None for plain text.
    """

    def __init__(self, text: str, status: int = 400, page: Page | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.page = page


async def in_pieces(steps: Page | Generator[None, None, T] | Coroutine[Any, Any, T]) -> Page | T:
    """Runs a page to its end; other work of the loop comes between its pieces."""
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
    """Cuts into lists of at most `size`; the items are taken at once, so what they come from may change."""
    everything = list(items)
    for start in range(0, len(everything), size):
        yield everything[start : start + size]


def header(server: Server) -> Page:
    """What nearly every page begins with."""
    return {"server_id": server.server_id, "now": format_time(server.clock())}


# -- queries


def flag(query: Query, name: str) -> bool:
    """Raises MisuseError for what is no boolean."""
    word = query.get(name, "").lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise MisuseError(
        f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{query[name]}\": invalid syntax"
    )


def number(query: Query, name: str) -> int:
    """0 when it is not given. Raises MisuseError for what is no whole number."""
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
    """0 when it is not given. Raises MisuseError for what is no whole number from 0 up."""
    word = query.get(name, "")
    if word and not (word.isascii() and word.isdigit() and len(word) <= 20 and int(word) < 2**64):
        raise MisuseError(
            f"Error decoding uint64 for '{name}': strconv.ParseUint: parsing \"{word}\": invalid syntax"
        )
    return int(word or 0)


def paging(offset: int, limit: int) -> tuple[int, int]:
    """Offset and limit as they count: none below zero, no limit is the default limit."""
    return max(0, offset), limit if limit > 0 else LIMIT_DEFAULT


# -- texts


def uptime(ns: int) -> str:
    """As the official server writes spans: `1d2h3m4s`, without leading zero parts."""
    seconds = max(0, ns) // _NS
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return "".join(f"{amount}{unit}" for amount, unit in parts)


def duration(ns: int) -> str:
    """`1.5ms`; "" when there is none."""
    return format_duration(ns) if ns else ""


def text(data: bytes) -> str:
    """A subject for people and JSON."""
    return data.decode("utf-8", "replace")
