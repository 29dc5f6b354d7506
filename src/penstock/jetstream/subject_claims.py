"""Who takes which subjects: the streams of an account, and the consumers of a work queue.

No subject may belong to two of them. A claim is compared with all others at once
(kernels/log/filter_set.pyx), so that what a request costs depends on the subjects it names and not on how
many others hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from penstock.errors import JetStreamApiError
from penstock.kernels.log.filter_set import FilterSet, WorkLimitError

ALL = ">"


class SubjectClaims:
    """Names, each with the filters it claims."""

    def __init__(self) -> None:
        self._set: FilterSet[str] = FilterSet()
        self._filters: dict[str, list[bytes]] = {}

    def hold(self, name: str, filters: Iterable[str]) -> None:
        """From now on `name` claims these filters, and no others."""
        self.release(name)
        wanted = self._filters[name] = [one.encode() for one in filters]
        for one in wanted:
            self._set.add(one, name)

    def release(self, name: str) -> None:
        """Forgets what a name claims."""
        for one in self._filters.pop(name, ()):
            self._set.discard(one, name)

    def collide(self, name: str, filters: Iterable[str]) -> bool:
        """Does another than `name` claim a subject that one of the filters matches? Raises WorkLimitError."""
        return self._set.overlaps([one.encode() for one in filters], besides=name)

    def has_others(self, name: str) -> bool:
        """Does another than `name` claim any subject?"""
        return self._set.overlaps([ALL.encode()], besides=name)

    def names_overlapping(self, subject: str) -> set[str]:
        """Those that claim a subject which this filter matches; none for what is no filter."""
        try:
            return self._set.owners_overlapping(subject.encode(), work_max=2**63)
        except ValueError:
            return set()


@contextmanager
def bounded(refuse: Callable[[str], JetStreamApiError]) -> Iterator[None]:
    """Refuses filters that are too much work to compare with one another."""
    try:
        yield
    except WorkLimitError as error:
        raise refuse(str(error)) from None
