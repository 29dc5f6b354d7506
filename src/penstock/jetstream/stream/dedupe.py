"""Recovery of a stream's dedupe window: the kernel's table of message ids.

Recovery from the log yields the table of a run without the restart, except for messages that were removed
since.
"""

from __future__ import annotations

from penstock.kernels.ingest import ingest
from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.stream_log import StreamLog
from penstock.protocol import headers


def recover_ids(ids: MessageIds, log: StreamLog, now: int) -> None:
    """Fills an empty table with the ids in the log from the window before `now` (ns)."""
    last = log.load(log.last_seq) if log.messages else None
    ids.last_id = headers.value_of(last.header, headers.MSG_ID) or b"" if last is not None else b""
    if ids.window_ns <= 0 or not log.messages or log.last_ts <= now - ids.window_ns:
        return
    ingest.recover_ids(log, ids, log.seq_at_time(now - ids.window_ns + 1), now)
