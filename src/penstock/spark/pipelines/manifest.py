"""Manifest of an archive: one JSON file per range of sequences, written after its data is verified.

    <archive>/data/range=00000000000000000001-00000000000001000000/day=2026-01-31/part-….parquet
    <archive>/manifest/00000000000000000001.json

Invariants: entries are contiguous, do not overlap, and belong to one stream (by its creation time). Data
without an entry is left over from a failed run and is not part of the archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.spark.offsets import StreamBounds
from penstock.spark.pipelines.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = 1


class RangeTotals(msgspec.Struct, frozen=True):
    """rows: messages. bytes: payload bytes. hash: XOR of a 64-bit hash of each message (sequence, subject,
    time, payload)."""

    rows: int
    bytes: int
    hash: int


class ManifestEntry(msgspec.Struct, frozen=True):
    """An archived range: the sequences [start, end) of a stream and the totals of its messages."""

    stream: str
    created: str
    start: int
    end: int
    totals: RangeTotals
    version: int = VERSION

    def is_of(self, bounds: StreamBounds) -> bool:
        """Whether the entry belongs to this stream, not to an earlier one of the same name."""
        return (self.stream, self.created) == (bounds.name, bounds.created)

    def is_cut_off(self, bounds: StreamBounds) -> bool:
        """Whether the stream lost messages that follow this entry."""
        return bounds.first_seq > self.end and bounds.last_seq >= self.end

    @property
    def folder(self) -> str:
        """Name of the range's data directory."""
        return f"range={self.start:020d}-{self.end - 1:020d}"


class Manifest:
    """Reads and writes the manifest of the archive at `path`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self.data = f"{self.path}/data"
        self._files = Folder(spark, f"{self.path}/manifest")
        self._data_folder = Folder(spark, self.data)

    def entries(self) -> list[ManifestEntry]:
        """Entries in order. Raises ConfigError if malformed, not contiguous, or of another version."""
        found = []
        for name in self._files.names():
            if not name.endswith(".json") or name.startswith("."):
                continue
            try:
                entry = msgspec.json.decode(self._files.read(name), type=ManifestEntry)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self.path}/manifest/{name} is no entry of an archive: {error}") from None
            if entry.version != VERSION:
                raise ConfigError(
                    f"{self.path}/manifest/{name} is of version {entry.version}, this release reads {VERSION}"
                )
            found.append(entry)
        check_chain(found, self.path)
        return found

    def add(self, entry: ManifestEntry) -> None:
        """Append an entry; its data must be verified."""
        self._files.write(f"{entry.start:020d}.json", msgspec.json.encode(entry))

    def remove_strays(self, entries: Sequence[ManifestEntry]) -> int:
        """Remove ranges without an entry, left over from failed runs. Returns how many."""
        known = {entry.folder for entry in entries}
        strays = [
            name for name in self._data_folder.names() if name.startswith("range=") and name not in known
        ]
        for name in strays:
            self._data_folder.remove(name)
        return len(strays)


def check_chain(entries: Sequence[ManifestEntry], path: str) -> None:
    """Raises ConfigError if entries have gaps, overlap, or belong to several streams."""
    for before, after in pairwise(entries):
        if after.start != before.end or (after.stream, after.created) != (before.stream, before.created):
            raise ConfigError(
                f"the archive {path} is not whole: behind {before.stream} {before.start}..{before.end - 1} "
                f"comes {after.stream} {after.start}..{after.end - 1}; restore its folder `manifest`"
            )
