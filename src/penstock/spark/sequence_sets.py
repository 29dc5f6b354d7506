"""A set of stream sequences as sorted ranges, and its text in a checkpoint: `1-99,105,110-120`.

Invariant: the ranges are half open, not empty, in order, and do not touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True)
class SequenceSet:
    """ranges: [start, end) pairs. Make sets with `of`, `between` and `parse`."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, sequences: Iterable[int]) -> SequenceSet:
        """The set of single sequences, in any order and with duplicates."""
        return cls(_merged((seq, seq + 1) for seq in sorted(sequences)))

    @classmethod
    def between(cls, start: int, end: int) -> SequenceSet:
        """The sequences [start, end)."""
        return cls(((start, end),) if end > start else ())

    @classmethod
    def parse(cls, text: str) -> SequenceSet:
        """The set of a text made by `str`. Raises ConfigError for any other text."""
        found = []
        try:
            for part in filter(None, text.split(",")):
                first, _, last = part.partition("-")
                found.append((int(first), int(last or first) + 1))
        except ValueError:
            raise ConfigError(f"the checkpoint's sequences can't be read: {text[:80]!r}") from None
        if any(start >= end for start, end in found):
            raise ConfigError(f"the checkpoint's sequences can't be read: {text[:80]!r}")
        return cls(_merged(sorted(found)))

    def __str__(self) -> str:
        return ",".join(
            str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in self.ranges
        )

    def __len__(self) -> int:
        return sum(end - start for start, end in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for start, end in self.ranges:
            yield from range(start, end)

    def __or__(self, other: SequenceSet) -> SequenceSet:
        return SequenceSet(_merged(sorted((*self.ranges, *other.ranges))))

    def __sub__(self, other: SequenceSet) -> SequenceSet:
        left: list[tuple[int, int]] = []
        holes = iter((*other.ranges, (1 << 64, 1 << 64)))
        hole = next(holes)
        for start, end in self.ranges:
            at = start
            while hole[1] <= at:
                hole = next(holes)
            while hole[0] < end:
                if hole[0] > at:
                    left.append((at, hole[0]))
                at = hole[1]
                if at >= end:
                    break
                hole = next(holes)
            if at < end:
                left.append((at, end))
        return SequenceSet(tuple(left))

    def above(self, floor: int) -> SequenceSet:
        """The sequences greater than `floor`."""
        return SequenceSet(
            tuple((max(start, floor + 1), end) for start, end in self.ranges if end > floor + 1)
        )

    @property
    def end(self) -> int:
        """The sequence after the last one; 0 if the set is empty."""
        return self.ranges[-1][1] if self.ranges else 0

    def chunks(self, length_max: int) -> Iterator[SequenceSet]:
        """Parts of at most `length_max` sequences, in order."""
        part: list[tuple[int, int]] = []
        room = length_max
        for start, end in self.ranges:
            at = start
            while at < end:
                until = min(end, at + room)
                part.append((at, until))
                room -= until - at
                at = until
                if room == 0:
                    yield SequenceSet(tuple(part))
                    part, room = [], length_max
        if part:
            yield SequenceSet(tuple(part))


def _merged(ordered: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for start, end in ordered:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


EMPTY = SequenceSet()
