"""Sets of filters, compared pair by pair."""

from __future__ import annotations

from itertools import combinations, permutations

from penstock.protocol.subjects import is_subset, overlaps


class FilterSetModel:
    """(filter, owner) pairs."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], None] = {}

    def add(self, f: str, owner: str) -> None:
        self.pairs[f, owner] = None

    def discard(self, f: str, owner: str) -> None:
        self.pairs.pop((f, owner), None)

    def overlaps(self, filters: list[str], besides: str) -> bool:
        return any(
            overlaps(f, one) for f, owner in self.pairs for one in filters if not besides or owner != besides
        )

    def covers(self, f: str) -> bool:
        return any(is_subset(f, other) for other, _ in self.pairs)

    def owners_overlapping(self, f: str) -> set[str]:
        return {owner for other, owner in self.pairs if overlaps(f, other)}

    def owners_matching(self, subject: str) -> list[str]:
        return sorted(owner for other, owner in self.pairs if is_subset(subject, other))


def overlapping_pair(filters: list[str]) -> tuple[int, int] | None:
    pairs = combinations(range(len(filters)), 2)
    return next((pair for pair in pairs if overlaps(filters[pair[0]], filters[pair[1]])), None)


def uncovered(filters: list[str]) -> list[str]:
    different = list(dict.fromkeys(filters))
    return [one for one in different if not any(is_subset(one, o) for o in different if o != one)]


def any_covered(filters: list[str]) -> bool:
    return any(is_subset(one, other) for one, other in permutations(filters, 2))
