"""Python interface of histograms of durations."""

from collections.abc import Sequence

BOUNDS_NS: tuple[int, ...]
"""The default: 0.1 ms to 10 s."""

class DurationHistogram:
    """A histogram of durations.

    bounds_ns -- upper bounds of its buckets, ascending, at most 32; a last bucket has what is longer.

    Raises ValueError for other bounds.
    """

    def __init__(self, bounds_ns: Sequence[int] = ...) -> None: ...
    def observe(self, duration_ns: int, n: int = 1) -> None:
        """Counts `n` events that each took this time. Thread-safe."""

    def snapshot(self) -> tuple[int, list[tuple[int, int]], int]:
        """(sum of all durations in ns, [(bound in ns, events up to it)], number of all events)."""
