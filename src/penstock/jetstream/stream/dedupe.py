"""Recovery of a stream's dedupe window: the kernel's table of message ids.

Recovery from the log yields the table of a run without the restart, except for messages that were removed
since. It reads the log in slices (slices.py): a window may hold a million messages.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.jetstream.stream import header_scan
from penstock.kernels.ingest import ingest
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers


def recover_ids(ids: MessageIds, log: StreamLog, now: int) -> Generator[int, None, None]:
    """Fills an empty table with the ids in the log from the window before `now` (ns). Yields work; covers
    what is stored until it ends."""
    since = now - ids.window_ns
    if ids.window_ns > 0 and log.messages and log.last_ts > since:
        seq = log.seq_at_time(since + 1)
        while seq := ingest.recover_ids(log, ids, seq, header_scan.SLICE):
            yield header_scan.SLICE_WORK
    last = log.load(log.last_seq) if log.messages else None
    ids.note_last(headers.value_of(last.header, headers.MSG_ID) or b"" if last is not None else b"")
