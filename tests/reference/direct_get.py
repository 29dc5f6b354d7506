"""What a direct get is answered with, said plainly."""

from __future__ import annotations

from penstock.kernels.log.stream_log import StoredRecord
from penstock.protocol.durations import format_time


def answer(stream: bytes, message: StoredRecord, *extra: bytes) -> tuple[bytes, bytes]:
    """Header block and payload."""
    is_block = message.header.endswith(b"\r\n\r\n")
    lines = message.header.split(b"\r\n")[:-2] if is_block else [b"NATS/1.0"]
    lines += [
        b"Nats-Stream: " + stream,
        b"Nats-Subject: " + message.subject,
        b"Nats-Sequence: %d" % message.seq,
        b"Nats-Time-Stamp: " + format_time(message.ts).encode(),
        *extra,
    ]
    return b"\r\n".join([*lines, b"", b""]), message.payload


def batch(
    stream: bytes, chosen: list[StoredRecord], *, most: int, room: int, bare: bool
) -> tuple[list[tuple[bytes, bytes]], int, int]:
    """Answers, the last one's sequence and how many messages are left."""
    answers: list[tuple[bytes, bytes]] = []
    previous = 0
    pending = len(chosen)
    for message in chosen:
        pending -= 1
        extra = (b"Nats-Num-Pending: %d" % pending, b"Nats-Last-Sequence: %d" % previous)
        header, payload = answer(stream, message, *extra)
        answers.append((b"" if bare else header, payload))
        previous = message.seq
        room -= len(message.subject) + len(message.header) + len(message.payload)
        if room <= 0 or len(answers) == most:
            break
    return answers, previous, pending
