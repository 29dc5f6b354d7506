"""What copying from one stream into another means, said the slow way."""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocol.subjects import matches


class Message(NamedTuple):
    seq: int
    ts: int
    subject: bytes
    header: bytes
    payload: bytes


def copied_header(
    header: bytes, line: tuple[bytes, bytes, bytes] | None, seq: int, origin_subject: bytes
) -> bytes:
    """The header block of a copy. header: made of whole lines that end in CRLF."""
    dropped = [b"Nats-Expected-", b"Nats-Batch-", *([b"Nats-Stream-Source:"] if line is not None else [])]
    first, *lines = header.split(b"\r\n")[:-2] or [b"NATS/1.0"]
    kept = [first, *(one for one in lines if not any(one.startswith(name) for name in dropped))]
    if line is not None:
        begin, middle, end = line
        kept.append(begin + b"%d" % seq + middle + origin_subject + end)
    elif kept == [b"NATS/1.0"] and len(header) != 12:
        return b""
    return b"\r\n".join(kept) + b"\r\n\r\n"


def gather(origin: list[Message], from_seq: int, filters: list[bytes]) -> list[Message]:
    """The messages that pass."""
    return [
        one
        for one in origin
        if one.seq >= from_seq
        and (not filters or any(matches(f.decode(), one.subject.decode()) for f in filters))
    ]


def mirrored(target: list[Message], batch: list[Message]) -> list[Message]:
    """The target after the batch: sequences and times are the origin's, times never fall."""
    result = list(target)
    for one in batch:
        if not result or one.seq > result[-1].seq:
            result.append(one._replace(ts=max(one.ts, result[-1].ts if result else 0)))
    return result


def sourced(target: list[Message], batch: list[Message], now: int, ids: dict[bytes, int]) -> list[Message]:
    """The target after the batch; ids: message ids it knows, and under which sequence."""
    result = list(target)
    for one in batch:
        seq = len(result) + 1
        msg_id = next(
            (line[12:].strip() for line in one.header.split(b"\r\n") if line.startswith(b"Nats-Msg-Id:")), b""
        )
        if msg_id:
            if msg_id in ids:
                continue
            ids[msg_id] = seq
        result.append(one._replace(seq=seq, ts=now))
    return result
