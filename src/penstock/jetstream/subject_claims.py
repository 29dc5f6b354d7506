"""Ownership of subjects: by the streams of an account, and by the consumers of a work queue.

No subject may have two owners. A claim is compared with all others at once (kernels/routing/filter_trie.pyx),
so the cost of a request depends on the subjects it names and not on the number of other owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from penstock.errors import JetStreamApiError
from penstock.kernels.routing.filter_trie import FilterSet, WorkLimitError

ALL = ">"


class SubjectClaims:
    """Owner names, each with its claimed filters."""

    def __init__(self) -> None:
        self._set: FilterSet[str] = FilterSet()
        self._filters: dict[str, list[bytes]] = {}

    def claim(self, name: str, filters: Iterable[str]) -> None:
        """Replaces the claims of `name` by these filters."""
        self.release(name)
        wanted = self._filters[name] = [one.encode() for one in filters]
        for one in wanted:
            self._set.add(one, name)

    def release(self, name: str) -> None:
        """Removes the claims of a name."""
        for one in self._filters.pop(name, ()):
            self._set.discard(one, name)

    def collide(self, name: str, filters: Iterable[str]) -> bool:
        """Whether a name other than `name` claims a subject that one of the filters matches. Raises
        WorkLimitError."""
        return self._set.overlaps([one.encode() for one in filters], besides=name)

    def has_others(self, name: str) -> bool:
        """Whether a name other than `name` has any claim."""
        return self._set.overlaps([ALL.encode()], besides=name)

    def names_overlapping(self, subject: str) -> set[str]:
        """The names that claim a subject matched by this filter; empty for an invalid filter."""
        try:
            return self._set.owners_overlapping(subject.encode(), work_max=2**63)
        except ValueError:
            return set()


@contextmanager
def bounded(refuse: Callable[[str], JetStreamApiError]) -> Iterator[None]:
    """Rejects filters whose comparison would be too much work."""
    try:
        yield
    except WorkLimitError as error:
        raise refuse(str(error)) from None
