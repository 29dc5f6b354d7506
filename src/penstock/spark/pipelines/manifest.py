"""What an archive holds: one small JSON file for each range of sequences, written when its data is verified.

    <archive>/data/range=00000000000000000001-00000000000001000000/day=2026-01-31/part-….parquet
    <archive>/manifest/00000000000000000001.json

Invariants: entries follow each other without gap or overlap, and are of one stream (by its creation time);
data without an entry is what a failed run left, and is not part of the archive.
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
    """hash: exclusive or of a 64-bit hash of each message (sequence, subject, time, payload). bytes: of
    payloads."""

    rows: int
    bytes: int
    hash: int


class ManifestEntry(msgspec.Struct, frozen=True):
    """The sequences [start, end) of a stream, of which `totals.rows` held a message when they were read."""

    stream: str
    created: str
    start: int
    end: int
    totals: RangeTotals
    version: int = VERSION

    def is_of(self, bounds: StreamBounds) -> bool:
        """Is it of the stream that is there now?"""
        return (self.stream, self.created) == (bounds.name, bounds.created)

    def is_cut_off(self, bounds: StreamBounds) -> bool:
        """Did the stream lose messages that came behind this entry?"""
        return bounds.first_seq > self.end and bounds.last_seq >= self.end

    @property
    def folder(self) -> str:
        return f"range={self.start:020d}-{self.end - 1:020d}"


class Manifest:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self.data = f"{self.path}/data"
        self._files = Folder(spark, f"{self.path}/manifest")
        self._data_folder = Folder(spark, self.data)

    def entries(self) -> list[ManifestEntry]:
        """In order. Raises ConfigError when they are no archive's, or of a later version."""
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
        self._files.write(f"{entry.start:020d}.json", msgspec.json.encode(entry))

    def remove_strays(self, entries: Sequence[ManifestEntry]) -> int:
        """Data no entry speaks of, left by a run that failed. Returns how many ranges were removed."""
        known = {entry.folder for entry in entries}
        strays = [
            name for name in self._data_folder.names() if name.startswith("range=") and name not in known
        ]
        for name in strays:
            self._data_folder.remove(name)
        return len(strays)


def check_chain(entries: Sequence[ManifestEntry], path: str) -> None:
    """Raises ConfigError when entries leave something out, overlap, or are of several streams."""
    for before, after in pairwise(entries):
        if after.start != before.end or (after.stream, after.created) != (before.stream, before.created):
            raise ConfigError(
                f"the archive {path} is not whole: behind {before.stream} {before.start}..{before.end - 1} "
                f"comes {after.stream} {after.start}..{after.end - 1}; restore its folder `manifest`"
            )
