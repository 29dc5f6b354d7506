"""The dedupe window of a stream: the kernel's table of message ids, and how it is recovered.

What is recovered from the log is what a run without the restart would hold, but for messages which were
removed meanwhile.
"""

from __future__ import annotations

from penstock.kernels.ingest import MessageIds, scan_headers
from penstock.kernels.streamlog import StreamLog
from penstock.protocol import headers


def recover_ids(ids: MessageIds, log: StreamLog, now: int) -> None:
    """Fills an empty table with the ids of the window before `now` (ns) which the log still has."""
    last = log.load(log.last_seq) if log.messages else None
    ids.last_id = headers.value_of(last.header, headers.MSG_ID) or b"" if last is not None else b""
    if ids.window_ns <= 0 or not log.messages or log.last_ts <= now - ids.window_ns:
        return
    first = log.seq_at_time(now - ids.window_ns + 1)
    for seq, ts, msg_id in scan_headers(log, headers.MSG_ID.encode(), first):
        if msg_id and not ids.find(msg_id, now):
            ids.add(msg_id, seq, ts)
