"""The trie of wildcard filters, and sets of filters that are compared with its help."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

WORK_MAX: int
"""Nodes that a question may pass: about 20 ms."""

class WorkLimitError(ValueError):
    """The filters are too many, with too many wildcards, to be compared at once."""

class FilterSet(Generic[Owner]):
    """Filters, each with its owners. Whatever is no filter raises ValueError.

    work_max -- how many nodes of the trie a call may pass; beyond that it raises WorkLimitError.
    """

    def __len__(self) -> int:
        """Different filters."""

    def add(self, f: bytes, owner: Owner) -> None:
        """Adds a filter; the same owner of the same filter counts once."""

    def discard(self, f: bytes, owner: Owner) -> None:
        """Takes the filter of an owner out, if it is there."""

    def overlaps(self, filters: list[bytes], *, besides: Owner | None = None, work_max: int = ...) -> bool:
        """Has one of `filters` a subject in common with a filter that has another owner than `besides`?"""

    def covers(self, f: bytes, *, work_max: int = ...) -> bool:
        """Does one filter of the set match everything that `f` matches?"""

    def owners_overlapping(self, f: bytes, *, work_max: int = ...) -> set[Owner]:
        """The owners of the filters that have a subject in common with `f`."""

    def owners_matching(self, subject: bytes) -> list[Owner]:
        """The owners of the filters that match a subject; to `*` and `>`, an empty token is one as well."""

def overlapping_pair(filters: list[bytes], *, work_max: int = ...) -> tuple[int, int] | None:
    """The places of the first filter that has a subject in common with a later one, and of the first such."""

def any_covered(filters: list[bytes], *, work_max: int = ...) -> bool:
    """Is there a filter all of whose subjects another one matches? (Both, where one comes twice.)"""

def uncovered(filters: list[bytes], *, work_max: int = ...) -> list[bytes]:
    """The filters, each once, without those all of whose subjects another one matches."""
