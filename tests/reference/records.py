"""Records of message blocks, the plain way: struct, and a hash from the xxhash package."""

from __future__ import annotations

import struct

import xxhash

HAS_HEADER = 0x80000000
SEQ_BITS = 48

Record = tuple[int, int, int, bytes, bytes, bytes]


def encode(seq: int, ts: int, subject: bytes, header: bytes, payload: bytes, kind: int = 0) -> bytes:
    """One record."""
    head = struct.pack("<I", len(header)) + header if header else b""
    size = 4 + 8 + 8 + 2 + len(subject) + len(head) + len(payload) + 8
    length = size | HAS_HEADER if header else size
    out = struct.pack("<IQqH", length, seq | kind << SEQ_BITS, ts, len(subject)) + subject + head + payload
    return out + struct.pack("<Q", xxhash.xxh64_intdigest(out))


def counted(storage: str, subject: bytes, header: bytes, payload: bytes) -> int:
    """What a message counts in the `bytes` of a stream: in a file its record, in memory 16 bytes more than
    itself."""
    if storage == "memory":
        return 16 + len(subject) + len(header) + len(payload)
    return len(encode(0, 0, subject, header, payload))


def decode_all(data: bytes) -> tuple[list[Record], int]:
    """The whole records at the head of data, and where the first that isn't begins."""
    found: list[Record] = []
    at = 0
    while at + 30 <= len(data):
        length, tagged, ts, subject_len = struct.unpack_from("<IQqH", data, at)
        size = length & ~HAS_HEADER
        raw = data[at : at + size]
        if size < 30 or len(raw) != size or tagged >> SEQ_BITS > 4:
            break
        if struct.unpack("<Q", raw[-8:])[0] != xxhash.xxh64_intdigest(raw[:-8]):
            break
        subject, body = raw[22 : 22 + subject_len], raw[22 + subject_len : -8]
        if len(subject) != subject_len or 22 + subject_len > size - 8:
            break
        header = b""
        if length & HAS_HEADER:
            if len(body) < 4 or struct.unpack_from("<I", body)[0] > len(body) - 4:
                break
            cut = 4 + struct.unpack_from("<I", body)[0]
            header, body = body[4:cut], body[cut:]
        found.append((tagged >> SEQ_BITS, tagged & (1 << SEQ_BITS) - 1, ts, subject, header, body))
        at += size
    return found, at
