"""The trie of wildcard filters, and sets of filters that are compared with its help."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

WORK_MAX: int
"""Nodes that a query may visit: about 20 ms."""

class WorkLimitError(ValueError):
    """A query would visit more nodes than allowed: too many filters with wildcards."""

class FilterSet(Generic[Owner]):
    """Filters, each with its owners. Raises ValueError for an invalid filter.

    work_max -- how many nodes of the trie a call may visit; beyond that it raises WorkLimitError.
    """

    def __len__(self) -> int:
        """Number of distinct filters."""

    def add(self, f: bytes, owner: Owner) -> None:
        """Adds a filter; the same owner of the same filter counts once."""

    def discard(self, f: bytes, owner: Owner) -> None:
        """Removes the filter of an owner, if present."""

    def overlaps(self, filters: list[bytes], *, besides: Owner | None = None, work_max: int = ...) -> bool:
        """Does one of `filters` overlap a filter of an owner other than `besides`?"""

    def covers(self, f: bytes, *, work_max: int = ...) -> bool:
        """Does one filter of the set match everything that `f` matches?"""

    def owners_overlapping(self, f: bytes, *, work_max: int = ...) -> set[Owner]:
        """The owners of the filters that overlap `f`."""

    def owners_matching(self, subject: bytes) -> list[Owner]:
        """The owners of the filters that match a subject; `*` and `>` match empty tokens too."""

def overlapping_pair(filters: list[bytes], *, work_max: int = ...) -> tuple[int, int] | None:
    """The indexes of the first filter that overlaps a later one, and of the first such later one; else
    None."""

def any_covered(filters: list[bytes], *, work_max: int = ...) -> bool:
    """Is one of the filters a subset of another one? (A filter that occurs twice is.)"""

def uncovered(filters: list[bytes], *, work_max: int = ...) -> list[bytes]:
    """The distinct filters that are no subset of another one."""
