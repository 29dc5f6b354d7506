"""Entries of a stream archive, said plainly."""

from __future__ import annotations

from collections.abc import Iterable

Message = tuple[int, int, bytes, bytes, bytes]  # sequence, ts, subject, header, payload


def varint(value: int) -> bytes:
    out = []
    while value >= 0x80:
        out.append(value % 0x80 + 0x80)
        value //= 0x80
    return bytes([*out, value])


def pack(messages: Iterable[Message]) -> bytes:
    """The entries of messages."""
    packed = b""
    for seq, ts, subject, header, payload in messages:
        zigzag = ts * 2 if ts >= 0 else -ts * 2 - 1
        for number in (len(subject), zigzag, seq, len(header), len(payload)):
            packed += varint(number)
        packed += subject + header + payload
    return packed
