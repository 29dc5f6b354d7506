"""Fuzzes the reader of the write-ahead log: python fuzz/fuzz_wal.py [libFuzzer options].

Whatever the bytes, its pieces cover them without gaps, whole records are those that encode to the same bytes,
and the groups that are recovered have entries without gaps. The input is read as a segment, as the fields of
records whose checksums fit, and as damage to such a log.
"""

from __future__ import annotations

import struct

import instrumented  # noqa: F401  # before everything of penstock
from seeded import fuzz

from penstock.errors import StoreFormatError
from penstock.wal.wal_reading import read_pieces
from penstock.wal.wal_records import WAL_FORMAT, GroupImage, WalKind, WalRecord, encode_record
from penstock.wal.wal_recovery import WalPosition, recover_log

FIELDS = struct.Struct("<9B")
IMAGE = GroupImage("g", "a", 2, 1, 1, b"state").encode()


def check(segments: dict[int, bytes], mark: WalPosition) -> None:
    """Reads a log."""
    try:
        for number, data in segments.items():
            at = 0
            for piece in read_pieces(data, number):
                assert piece.offset == at < piece.end <= len(data)
                if piece.is_whole and piece.record is not None:
                    encoded = encode_record(piece.record, number, at)
                    assert len(encoded) == piece.end - at
                at = piece.end
            assert at == len(data)
        found = recover_log(segments, mark, 1000)
    except StoreFormatError:
        return
    for group in found.groups.values():
        indexes = [one.index for one in group.entries]
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
        group.image()


def built(data: bytes) -> dict[int, bytes]:
    """A log whose records have the input's fields."""
    segments = {1: bytearray()}
    for at in range(0, len(data) - FIELDS.size + 1, FIELDS.size):
        kind, group, term, index, previous, detail, length, follows, roll = FIELDS.unpack_from(data, at)
        number = max(segments)
        if roll > 240:
            number += 1
            segments[number] = bytearray(
                encode_record(
                    WalRecord(WalKind.SEGMENT, 0, 0, len(segments[number - 1]), number - 1, WAL_FORMAT),
                    number,
                    0,
                )
            )
        wanted = WalKind(kind % len(WalKind) + 1)
        payload = IMAGE if wanted is WalKind.GROUP and length % 8 else bytes(length)
        record = WalRecord(
            wanted, group % 4, term % 8, index % 16, previous % 8, detail % 2, payload, bool(follows % 2)
        )
        segments[number] += encode_record(record, number, len(segments[number]))
    return {number: bytes(one) for number, one in segments.items()}


def test_one_input(data: bytes) -> None:
    check({1: data}, WalPosition(1, len(data) // 2))
    log = built(data)
    check(log, WalPosition())
    if data:
        number = data[0] % len(log) + 1
        damaged = bytearray(log[number])
        for at in range(1, min(len(data), 12) - 2, 3):
            if damaged:
                damaged[(data[at] << 8 | data[at + 1]) % len(damaged)] ^= data[at + 2]
        check({**log, number: bytes(damaged)}, WalPosition(max(log), len(log[max(log)])))


SEEDS = [
    encode_record(WalRecord(WalKind.SEGMENT, detail=WAL_FORMAT), 1, 0),
    b"".join(FIELDS.pack(kind, 1, 1, kind, 1, 0, 9, kind, 0) for kind in range(8)) * 2,
    b"".join(
        FIELDS.pack(2, group, 1, index, 1, 0, 3, 0, 255 * (index == 3))
        for index in range(6)
        for group in (1, 2)
    ),
]


if __name__ == "__main__":
    fuzz(SEEDS, test_one_input)
