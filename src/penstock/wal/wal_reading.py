"""Reads the bytes of a segment: its records, the damaged places between them, and the torn tail.

A fault is a torn write if the bytes were never synced: nothing of them was acknowledged, and they are cut
off. It is damage if they were: then something acknowledged is lost, and a cut would hide that. Two things
prove a sync: a later record that says so of everything before it (`follows_sync`), and the mark, a small file
beside the log. Only in the last write before a power failure the two faults look the same, if the mark did
not reach it; it is taken for a torn write, because otherwise a power failure of all servers could leave none
that trusts its log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from penstock.kernels.log.records import xxh64_digest
from penstock.wal.wal_records import (
    HEAD_MAGIC,
    TAIL_MAGIC,
    WAL_FRAME_BYTES,
    WalFrame,
    WalRecord,
    read_head,
    read_tail,
)

_MAGICS = re.compile(re.escape(HEAD_MAGIC) + b"|" + re.escape(TAIL_MAGIC), re.DOTALL)


class WalPiece(NamedTuple):
    """A record, or a damaged place, of a segment. record: None for bytes of which nothing is known;
    is_whole: the payload is there and intact. A record that is not whole has an empty payload."""

    offset: int
    end: int
    record: WalRecord | None
    is_whole: bool


def read_pieces(data: bytes, segment: int) -> list[WalPiece]:
    """Divides all of a segment's bytes into records and damaged places, in order. Raises StoreFormatError."""
    pieces: list[WalPiece] = []
    at = 0
    while at < len(data):
        frame = read_head(data, at, segment)
        start = at
        if frame is None:
            start, frame = _next_record(data, at, segment)
            if start > at:
                pieces.append(WalPiece(at, start, None, False))
        if frame is not None:
            pieces.append(_piece(data, start, frame))
        at = pieces[-1].end
    return pieces


def _piece(data: bytes, start: int, frame: WalFrame) -> WalPiece:
    payload_at = start + WAL_FRAME_BYTES
    end = payload_at + frame.length + WAL_FRAME_BYTES
    payload = data[payload_at : payload_at + frame.length]
    if end > len(data) or xxh64_digest(payload) != frame.payload_hash:
        return WalPiece(start, min(end, len(data)), frame.record, False)
    return WalPiece(start, end, structs.replace(frame.record, payload=payload), True)


def _next_record(data: bytes, at: int, segment: int) -> tuple[int, WalFrame | None]:
    """Returns the offset of the first record from `at` on with an intact head or tail, and that head or tail;
    or the end of the bytes and None."""
    for match in _MAGICS.finditer(data, at):
        found = match.start()
        frame = read_head(data, found, segment)
        if frame is not None:
            return found, frame
        frame = read_tail(data, found, segment)
        if frame is not None and (start := found - frame.length - WAL_FRAME_BYTES) >= at:
            return start, frame
    return len(data), None


def proven_end(pieces: Sequence[WalPiece], marked: int) -> int:
    """Returns the offset up to which a segment was certainly synced. marked: the offset in the mark, 0 for
    none."""
    proofs = (one.offset for one in pieces if one.record is not None and one.record.follows_sync)
    return max(marked, *proofs, 0)


def cut_tail(pieces: Sequence[WalPiece], proven: int) -> tuple[list[WalPiece], int]:
    """Returns the pieces without the torn tail, and their end. proven: see proven_end()."""
    for i, piece in enumerate(pieces):
        if piece.offset >= proven and not piece.is_whole:
            return list(pieces[:i]), piece.offset
    return list(pieces), pieces[-1].end if pieces else 0
