"""Finds the messages of a log that have a header, in slices (slices.py): a million messages with TTLs take a
second."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.kernels.ingest import ingest
from penstock.kernels.log.stream_log import StreamLog

SLICE = 512  # messages read
MESSAGE_WORK = 128  # a message is read, in the units of slices.py
FOUND_WORK = 1024  # one with the header is handled
SLICE_WORK = SLICE * MESSAGE_WORK

HeaderMatch = tuple[int, int, bytes]
"""Sequence, time in ns, and value of the header."""


def scan_headers(log: StreamLog, name: str, from_seq: int = 0) -> Iterator[list[HeaderMatch]]:
    """The messages at or after from_seq whose header block has the name, by slices, some of them empty. Those
    that are stored between two slices come as well."""
    seq, wanted = from_seq, name.encode()
    while True:
        found, seq = ingest.scan_headers(log, wanted, seq, SLICE)
        yield found
        if not seq:
            return


def work_of(found: list[HeaderMatch]) -> int:
    """The work of a slice and of handling what it found."""
    return SLICE_WORK + len(found) * FOUND_WORK
