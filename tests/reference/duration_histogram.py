"""Model of a histogram of durations: the list of all of them."""

from __future__ import annotations

from collections.abc import Sequence


class DurationsModel:
    """Keeps every duration. bounds_ns: as those of the kernel."""

    def __init__(self, bounds_ns: Sequence[int]) -> None:
        self.bounds_ns = tuple(bounds_ns)
        self.seen: list[int] = []

    def observe(self, duration_ns: int, n: int = 1) -> None:
        self.seen += [duration_ns] * n

    def snapshot(self) -> tuple[int, list[tuple[int, int]], int]:
        below = [(bound, sum(one <= bound for one in self.seen)) for bound in self.bounds_ns]
        return sum(self.seen), below, len(self.seen)
