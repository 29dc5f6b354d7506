"""The message ids in the state of a replicated stream (replica_state.py), in chunks.

A dedupe window may hold millions of ids. A chunk has those of ID_RANGE times as many sequences as a chunk of
messages. Ids are added with new sequences only, and leave the window oldest first: a chunk whose sequences
are all used never changes but that ids expire, and expired ones in it do no harm, because the manifest says
with which sequence the window began. So a checkpoint reads and writes only what came since the last one.

Ids expire while they are read. The reader begins at the oldest one, and is much faster than publishers; if it
is overtaken all the same, the state is begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct as Layout
from typing import NamedTuple

from penstock.kernels.ingest.publish_headers import MessageIds
from penstock.kernels.log.records import StreamedHash

ID_RANGE = 16
KIND = 1 << 63
"""Tells the name of a chunk of ids from that of a chunk of messages with the same sequences."""
PART_BYTES = 128 * 1024
PASS_WORK = 512  # a chunk that is passed by, in the units of slices.py
READ_WORK = 512


class _Known(NamedTuple):
    name: bytes
    place: int
    end: int


class IdChunkNames:
    """Names of chunks of ids that were read before, by their first sequence, with the places of their ids."""

    def __init__(self) -> None:
        self._ids: MessageIds | None = None
        self._known: dict[int, _Known] = {}

    def begin(self, ids: MessageIds) -> None:
        """Forgets what was noted of another window, and chunks of which every id has expired."""
        if ids is not self._ids:
            self._ids = ids
            self._known.clear()
        oldest = ids.ends[0]
        for start in [start for start, one in self._known.items() if one.end <= oldest]:
            del self._known[start]

    def find(self, start: int, place: int) -> _Known | None:
        """The chunk from sequence `start` on, if the id at `place` is in it."""
        known = self._known.get(start)
        return known if known is not None and known.place <= place < known.end else None

    def note(self, start: int, known: _Known) -> None:
        """A chunk whose sequences are all used has been read."""
        self._known[start] = known


def take_ids(
    ids: MessageIds,
    last_seq: int,
    chunk_seqs: int,
    layout: Layout,
    names: IdChunkNames,
    has: Callable[[bytes], bool],
    keep: Callable[[bytes, list[bytes]], object],
) -> Generator[int, None, list[bytes] | None]:
    """Reads the ids that there are at the first step; yields work (of slices.py). Returns the names of their
    chunks, or None when ids were dropped before they were read.

    last_seq: of the stream. chunk_seqs: of its chunks of messages. layout: of names. has, keep: as
    take_slices() has them.
    """
    span = ID_RANGE * chunk_seqs
    place, end = ids.ends
    names.begin(ids)
    found: list[bytes] = []
    while place < end:
        seq = ids.seq_at(place)
        if seq is None:
            return None
        start = seq - seq % span
        known = names.find(start, place)
        if known is not None and has(known.name):
            place = known.end
            found.append(known.name)
            yield PASS_WORK
            continue
        first, count, parts, checksum = place, 0, list[bytes](), StreamedHash()
        while True:
            read = ids.read(place, end, start + span, PART_BYTES)
            if read is None:
                return None
            part, place, taken = read
            if not taken:
                break
            count += taken
            parts.append(part)
            checksum.update(part)
            yield READ_WORK + len(part) // 6
        name = layout.pack(start | KIND, min(span, last_seq - start + 1), count, checksum.digest())
        if not has(name):
            keep(name, parts)
        if start + span - 1 <= last_seq:
            names.note(start, _Known(name, first, place))
        found.append(name)
    return found


def restore_ids(ids: MessageIds, chunk: bytes, from_seq: int) -> Generator[int, None, None]:
    """Adds the ids of a chunk from a sequence on; yields work. Raises ValueError when it is none."""
    offset = 0
    while offset < len(chunk):
        offset = ids.add_packed(chunk, offset, from_seq, PART_BYTES)
        yield READ_WORK + 2 * PART_BYTES
