"""Selects and removes the messages of a purge, in slices.

Messages may come and go between slices. Messages that were added after the first slice stay, whatever the
filter; and where others are removed meanwhile (limits, acks), `keep` counts those that are left.

A wildcard that matches few messages is purged subject by subject, along the subject chains. One that matches
many, or keeps the newest, scans the messages in order: removals are then contiguous and recorded as ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from penstock.kernels.log.queries import SubjectCounts
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol.subjects import has_wildcard

SLICE = 128  # messages scanned
SLICE_WORK = SLICE * 128  # in the units of slices.py: 0.03 ms
CONSUMER_WORK = 4096  # cost of updating one consumer
PENDING_WORK = 32  # for each message that awaits an ack
FEW = 8  # selective: a wildcard that matches fewer than one in this many messages
SUBJECTS = 64  # subjects listed at once


def slices(log: StreamLog, filter_subject: bytes, end_seq: int, keep: int) -> Iterator[int]:
    """Removes the matching messages below end_seq except the newest `keep`. Yields after each slice the
    number of messages it removed."""
    is_wild = has_wildcard(filter_subject.decode("utf-8", "surrogateescape"))
    if is_wild and not keep and log.count_matching(filter_subject) * FEW < log.messages:
        yield from _by_subject(log, SubjectCounts(log, filter_subject), end_seq)
    else:
        yield from _in_order(log, filter_subject, end_seq, keep)


def _in_order(log: StreamLog, filter_subject: bytes, end_seq: int, keep: int) -> Iterator[int]:
    seq, left = log.first_seq, log.count_matching(filter_subject) - keep
    while seq and left > 0:
        gone, seq = log.purge_part(filter_subject, seq, end_seq, SLICE, left)
        left -= gone
        removals = log.removals
        yield gone
        if log.removals != removals:  # others were removed meanwhile
            left = min(left, log.count_matching(filter_subject) - keep)


def _by_subject(log: StreamLog, found: SubjectCounts, end_seq: int) -> Iterator[int]:
    at, looks, purged = 0, 0, 0
    while at < len(found):
        for subject, _ in found.rows(at, at + SUBJECTS):
            seq = log.first_seq
            while seq:
                gone, seq = log.purge_part(subject, seq, end_seq, SLICE, sys.maxsize)
                purged += gone
                looks += gone + 1
                if looks >= SLICE:
                    yield purged
                    looks = purged = 0
        at += SUBJECTS
    yield purged
