"""Recovery of a stream's dedupe window: the kernel's table of message ids.

Recovery from the log yields the table of a run without the restart, except for messages that were removed
since. It reads the log in slices (slices.py): a window may hold a million messages.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from penstock.jetstream.commands import RecoverIds
from penstock.jetstream.stream import header_scan
from penstock.kernels.ingest import ingest
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers
from penstock.protocol.api import ApiStreamConfig

if TYPE_CHECKING:
    from penstock.jetstream.stream.stream_replica import StreamReplica


def recover_ids(ids: MessageIds, log: StreamLog, now: int) -> Generator[int, None, None]:
    """Fills an empty table with the ids in the log from the window before `now` (ns). Yields work; covers
    what is stored until it ends."""
    seq = first_in_window(ids, log, now)
    while seq and (seq := ingest.recover_ids(log, ids, seq, header_scan.SLICE)):
        yield header_scan.SLICE_WORK
    note_last(ids, log)


def first_in_window(ids: MessageIds, log: StreamLog, now: int) -> int:
    """The first sequence from the window before `now` (ns); 0: there is none."""
    since = now - ids.window_ns
    return log.seq_at_time(since + 1) if ids.window_ns > 0 and log.messages and log.last_ts > since else 0


def note_last(ids: MessageIds, log: StreamLog) -> None:
    """Sets the id of the last message."""
    last = log.load(log.last_seq) if log.messages else None
    ids.note_last(headers.value_of(last.header, headers.MSG_ID) or b"" if last is not None else b"")


def prepare_ids(stream: StreamReplica, config: ApiStreamConfig, now: int) -> Generator[int, None, int]:
    """Prepares the ids for an update when a mirror without ids becomes a stream that detects duplicates
    itself; returns their number, or 0. Yields work. The stream remains a mirror meanwhile, and the ids of
    what it copies are included; the caller updates as soon as this ends, so that none is missing. A crash
    leaves either the mirror or a stream that finds its ids at the start."""
    if stream.config.mirror is None or config.mirror is not None or len(stream.ids):
        return 0
    window = config.duplicate_window
    number, seq = stream.apply(RecoverIds(0, 0, window, 0), now)
    while seq:
        _, seq = stream.apply(RecoverIds(number, seq, window, header_scan.SLICE), now)
        if seq:
            yield header_scan.SLICE_WORK
    return int(number)


def drop_ids(stream: StreamReplica, number: int) -> None:
    """Drops prepared ids: the update was refused at the end."""
    stream.apply(RecoverIds(number, 0, 0, 0), stream.now)
