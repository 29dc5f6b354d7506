"""Model of kernels/log/state_chunks: messages as the bytes of chunks."""

from __future__ import annotations

import struct

Message = tuple[int, int, bytes, bytes, bytes]  # sequence, time (ns), subject, header block, payload

HEAD = struct.Struct("<QqHII")


def chunks(messages: list[Message], first_seq: int, last_seq: int, chunk_seqs: int) -> list[bytes]:
    """The chunks of a log whose first message is at first_seq."""
    start = max(first_seq - 1, 0) // chunk_seqs * chunk_seqs + 1
    found = []
    for at in range(start, last_seq + 1, chunk_seqs):
        packed = b""
        for seq, ts, subject, header, payload in messages:
            if at <= seq < at + chunk_seqs:
                packed += HEAD.pack(seq, ts, len(subject), len(header), len(payload))
                packed += subject + header + payload
        found.append(packed)
    return found
