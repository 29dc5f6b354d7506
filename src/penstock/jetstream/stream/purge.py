"""Selects and removes the messages of a purge, in slices.

Messages may come and go between slices. Messages that were added after the first slice stay, whatever the
filter; and where others are removed meanwhile (limits, acks), `keep` counts those that are left.

A wildcard that matches few messages is purged subject by subject, along the subject chains. One that matches
many, or keeps the newest, scans the messages in order: removals are then contiguous and recorded as ranges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.jetstream.commands import Purge, PurgeSlice
from penstock.jetstream.limits import SEQ_MAX
from penstock.kernels.log.queries import SubjectCounts
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import error_codes as codes
from penstock.protocol.subjects import has_wildcard

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica

SLICE = 128  # messages scanned
SLICE_WORK = SLICE * 128  # in the units of slices.py: 0.03 ms
CONSUMER_WORK = 4096  # cost of updating one consumer
PENDING_WORK = 32  # for each message that awaits an ack
MESSAGES_PER_MATCH_MIN = 8  # a wildcard that matches fewer of the messages is purged subject by subject
SUBJECTS = 64  # subjects listed at once

RemovePart = Callable[[bytes, int, int, int, int], tuple[int, int]]
"""StreamLog.purge_part, or what applies it as a command."""


def purge_messages(
    stream: StreamReplica, filter_subject: bytes, upto_seq: int, keep: int
) -> Generator[int, None, int]:
    """Removes messages (of a filter, below a sequence, except the newest `keep`), in slices (slices.py);
    returns how many. Messages stored after the first slice stay.

    Raises JetStreamApiError: 10109 when sealed, 10110 when purging is denied.
    """
    log = stream.log
    if upto_seq > max(SEQ_MAX, log.last_seq + 1):
        stream.check_purge()
        raise codes.STREAM_PURGE_FAILED.exception(err=f"sequences cannot continue after {upto_seq}")
    if filter_subject in (b"", b">") and not keep and not 0 < upto_seq <= log.last_seq:
        purged = yield from stream.change(Purge(upto_seq), stream.now)
    elif stream.group is not None:
        stream.check_purge()
        purged = yield from _purge_in_group(stream, filter_subject, upto_seq or log.last_seq + 1, keep)
    else:
        stream.check_purge()
        purged = 0
        end_seq = upto_seq or log.last_seq + 1
        for gone in slices(log, partial(_remove_part, stream), filter_subject, end_seq, keep):
            purged += gone
            yield SLICE_WORK
            stream.check_purge()
    for consumer in list(stream.consumers.values()):
        if not consumer.closed:
            consumer.purged()
            yield CONSUMER_WORK + PENDING_WORK * consumer.state.num_pending
    return int(purged)


def _purge_in_group(
    stream: StreamReplica, filter_subject: bytes, end_seq: int, keep: int
) -> Generator[int, None, int]:
    """The slices of a purge, each of which the group commits before the next one."""
    log = stream.log
    seq, purged = log.first_seq, 0
    while seq:
        left = log.count_matching(filter_subject) - keep
        if left <= 0:
            break
        command = PurgeSlice(filter_subject, seq, end_seq, SLICE, left)
        gone, seq = yield from stream.change(command, stream.now)
        purged += gone
    return purged


def _remove_part(
    stream: StreamReplica, filter_subject: bytes, seq: int, end_seq: int, looks: int, most: int
) -> Any:
    return stream.apply(PurgeSlice(filter_subject, seq, end_seq, looks, most), stream.now)


def slices(
    log: StreamLog, remove: RemovePart, filter_subject: bytes, end_seq: int, keep: int
) -> Iterator[int]:
    """Removes the matching messages below end_seq except the newest `keep`. Yields after each slice the
    number of messages it removed. remove: removes a part of them."""
    is_wild = has_wildcard(filter_subject.decode("utf-8", "surrogateescape"))
    if is_wild and not keep and log.count_matching(filter_subject) * MESSAGES_PER_MATCH_MIN < log.messages:
        yield from _by_subject(log, remove, SubjectCounts(log, filter_subject), end_seq)
    else:
        yield from _in_order(log, remove, filter_subject, end_seq, keep)


def _in_order(
    log: StreamLog, remove: RemovePart, filter_subject: bytes, end_seq: int, keep: int
) -> Iterator[int]:
    seq, left = log.first_seq, log.count_matching(filter_subject) - keep
    while seq and left > 0:
        gone, seq = remove(filter_subject, seq, end_seq, SLICE, left)
        left -= gone
        removals = log.removals
        yield gone
        if log.removals != removals:  # others were removed meanwhile
            left = min(left, log.count_matching(filter_subject) - keep)


def _by_subject(log: StreamLog, remove: RemovePart, found: SubjectCounts, end_seq: int) -> Iterator[int]:
    at, looks, purged = 0, 0, 0
    while at < len(found):
        for subject, _ in found.rows(at, at + SUBJECTS):
            seq = log.first_seq
            while seq:
                gone, seq = remove(subject, seq, end_seq, SLICE, sys.maxsize)
                purged += gone
                looks += gone + 1
                if looks >= SLICE:
                    yield purged
                    looks = purged = 0
        at += SUBJECTS
    yield purged
