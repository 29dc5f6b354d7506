"""What the sink's kernels do, row by row and ack by ack."""

from __future__ import annotations

from typing import NamedTuple

import xxhash


class Row(NamedTuple):
    subject: bytes
    payload: bytes
    lines: bytes  # header lines, each with its line end
    id: bytes


def made_id(prefix: bytes, number: int, row: Row, *, with_headers: bool) -> bytes:
    """`<prefix><number>:<hash>`: each part's xxh64 seeds the next one's."""
    digest = 0
    for part in [*([row.lines] if with_headers else []), row.subject, row.payload]:
        digest = xxhash.xxh64_intdigest(part, seed=digest)
    return b"%s%d:%016x" % (prefix, number, digest)


class AckModel:
    """Which of the numbers [0, count) are acked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.acked: set[int] = set()

    def acknowledge(self, number: int) -> None:
        if number < self.count:
            self.acked.add(number)

    @property
    def base(self) -> int:
        return next(n for n in range(self.count + 1) if n not in self.acked)
