"""A batch of publishes as bytes, spelt out: for each its lengths, then what they count."""

from __future__ import annotations

import struct

Publish = tuple[bytes, bytes, bytes, bytes]  # subject, reply, header, payload

LENGTHS = struct.Struct("<HHII")
BODY_MAX = 0x7FFF0000


def encode_publishes(publishes: list[Publish]) -> bytes:
    return b"".join(
        LENGTHS.pack(len(subject), len(reply), len(header), len(header) + len(payload))
        + subject + reply + header + payload
        for subject, reply, header, payload in publishes
    )  # fmt: skip


def decode_publishes(data: bytes) -> list[Publish] | None:
    """None: the data are malformed."""
    found = []
    while data:
        if len(data) < LENGTHS.size:
            return None
        *lengths, body_len = LENGTHS.unpack_from(data)
        lengths.append(body_len - lengths[2])
        data = data[LENGTHS.size :]
        if min(lengths) < 0 or lengths[0] == 0 or sum(lengths) > len(data) or body_len > BODY_MAX:
            return None
        parts = []
        for length in lengths:
            parts.append(data[:length])
            data = data[length:]
        found.append((parts[0], parts[1], parts[2], parts[3]))
    return found


Copy = tuple[int, int, bytes, bytes, bytes]  # sequence, time, subject, header, payload

COPY_HEAD = struct.Struct("<QqIIIIII")
SPECIAL, HAS_ID, PLACE = 1, 2, 4
SPECIAL_NAMES = (b"Nats-TTL:", b"Nats-Rollup:", b"Nats-Incr:", b"Nats-Schedule-Next:")


def encode_copy(copy: Copy) -> bytes:
    """A copy whose header block has no lines that are dropped, and CRLF after each."""
    seq, ts, subject, header, payload = copy
    flags = id_start = id_len = 0
    at = 0
    for line in header.splitlines(keepends=True):
        if line.startswith(SPECIAL_NAMES):
            flags |= SPECIAL
        if line.startswith(b"Nats-Msg-Id:") and not flags & HAS_ID and (msg_id := line[12:].strip()):
            flags |= HAS_ID
            id_start, id_len = at + line.index(msg_id, 12), len(msg_id)
        at += len(line)
    lengths = len(subject), len(header), len(header) + len(payload)
    return COPY_HEAD.pack(seq, ts, flags, *lengths, id_start, id_len) + subject + header + payload


def encode_place(seq: int) -> bytes:
    return COPY_HEAD.pack(seq, 0, PLACE, 0, 0, 0, 0, 0)


def is_whole(data: bytes) -> bool:
    """Whether the data are copies from end to end."""
    while data:
        if len(data) < COPY_HEAD.size:
            return False
        seq, ts, flags, subject, header, body, id_start, id_len = COPY_HEAD.unpack_from(data)
        data = data[COPY_HEAD.size :]
        if not 0 < seq < 2**48 or ts < 0 or flags > 7 or subject + body > len(data):
            return False
        if flags & PLACE:
            if flags != PLACE or subject or body:
                return False
        elif not 0 < subject <= 0xFFFF or header > body or body > BODY_MAX:
            return False
        elif flags & HAS_ID:
            if not id_len or id_start + id_len > header:
                return False
        elif id_start or id_len:
            return False
        data = data[subject + body :]
    return True
