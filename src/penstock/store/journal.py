"""A consumer on disk: meta, a snapshot of its state, and a journal of what changed since.

`state` is the snapshot with its generation; `journal.<generation>` holds the entries since that snapshot,
each with length and hash. A new snapshot gets the next generation, so that a crash between replacing the
snapshot and removing the old journal can never put old entries onto a new state.

Invariants: a journal is only appended to; what load() returns was written whole; what sync() returned for
is there after the machine died, names included. Creating, changing and deleting syncs no names (consumers
come and go by the hundred, and a sync takes a millisecond): until then a consumer may be as it was at the
last sync(), but never half.
Rejected: the generation inside the journal (truncating it and replacing the snapshot are two steps, and
between them one would have to tell them apart anyway).
"""

from __future__ import annotations

import contextlib
import logging
import struct
from pathlib import Path

from penstock.errors import StoreCorruptError
from penstock.kernels.records import xxh64_digest
from penstock.store.files import (
    OpenFiles,
    cut_file,
    pack_meta,
    remove_directory,
    sync_directory,
    unpack_meta,
    write_atomically,
)

logger = logging.getLogger("penstock.store")

META = "meta"
ENTRY_SIZE_MAX = 1 << 30

_ENTRY = struct.Struct("<IQ")  # length, hash; the entry follows
_STATE = struct.Struct("<8sQQ")  # magic, generation, hash; the state follows
_STATE_MAGIC = b"PENSTAT1"


def frame_entry(entry: bytes, generation: int) -> bytes:
    """An entry as it stands in the journal of a generation."""
    return _ENTRY.pack(len(entry), xxh64_digest(entry, generation)) + entry


def read_entries(data: bytes, generation: int) -> tuple[list[bytes], int]:
    """The whole entries at the head of a journal, and how many bytes they take."""
    entries: list[bytes] = []
    at = 0
    while at + _ENTRY.size <= len(data):
        length, digest = _ENTRY.unpack_from(data, at)
        entry = data[at + _ENTRY.size : at + _ENTRY.size + length]
        if len(entry) != length or xxh64_digest(entry, generation) != digest:
            break
        entries.append(entry)
        at += _ENTRY.size + length
    return entries, at


class FileConsumerStore:
    """One consumer's directory; see interface.ConsumerStore."""

    def __init__(self, directory: Path, name: str, meta: bytes, files: OpenFiles) -> None:
        self.name = name
        self.meta = meta
        self.journal_bytes = 0
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._pending = bytearray()
        self._state: bytes | None = None
        self._generation = 0
        self._written = 0
        self._unsynced = False
        self._names_changed = False  # in its directory, since the last sync
        self.is_new = False  # the name of its directory may not be on the disk yet; its owner may see to it
        self._loaded = False
        self._closed = False

    @classmethod
    def create(cls, directory: Path, name: str, meta: bytes, files: OpenFiles) -> FileConsumerStore:
        """A new consumer in a directory that exists and is empty."""
        write_atomically(files.disk, directory / META, pack_meta(name, meta), sync_name=False)
        store = cls(directory, name, meta, files)
        store._loaded = store._names_changed = store.is_new = True
        return store

    @classmethod
    def open(cls, directory: Path, files: OpenFiles) -> FileConsumerStore:
        """The consumer kept in a directory. Raises StoreCorruptError when its meta is damaged."""
        name, meta = unpack_meta(files.disk, directory / META)
        store = cls(directory, name, meta, files)
        # Who wrote it may have been killed before a sync.
        store._names_changed = store.is_new = True
        return store

    @property
    def closed(self) -> bool:
        """Was close() or delete() called?"""
        return self._closed

    @property
    def _journal(self) -> Path:
        return self._directory / f"journal.{self._generation}"

    def save_meta(self, meta: bytes) -> None:
        write_atomically(self._disk, self._directory / META, pack_meta(self.name, meta), sync_name=False)
        self._names_changed = True
        self.meta = meta

    def load(self) -> tuple[bytes | None, list[bytes]]:
        self.write()
        self._state, self._generation = self._read_state()
        self._sweep()
        try:
            data = self._disk.read(self._journal)
        except FileNotFoundError:
            data = b""
        entries, size = read_entries(data, self._generation)
        if size < len(data):
            logger.warning(
                "%s: cut at byte %d of %d: the entry there is not whole", self._journal, size, len(data)
            )
            self._files.forget(self._journal)
            cut_file(self._disk, self._journal, size)
        self._written = self.journal_bytes = size
        self._unsynced = size > 0
        self._loaded = True
        return self._state, entries

    def _read_state(self) -> tuple[bytes | None, int]:
        path = self._directory / "state"
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return None, 0
        if len(data) >= _STATE.size:
            magic, generation, digest = _STATE.unpack_from(data)
            state = data[_STATE.size :]
            if magic == _STATE_MAGIC and digest == xxh64_digest(state, generation):
                return state, generation
        raise StoreCorruptError(
            "the consumer's state is damaged; remove the file to start from the consumer's beginning",
            path=str(path),
        )

    def _sweep(self) -> None:
        """Removes journals of other generations and what a crash left of a replacement."""
        for name in self._disk.names(self._directory):
            if name.endswith(".new") or (name.startswith("journal.") and name != self._journal.name):
                self._disk.unlink(self._directory / name)

    def append(self, entry: bytes) -> None:
        assert len(entry) <= ENTRY_SIZE_MAX
        if not self._loaded:
            self.load()
        framed = frame_entry(entry, self._generation)
        self._pending += framed
        self.journal_bytes += len(framed)

    def write(self) -> None:
        while self._pending:
            count = self._files.write(self._journal, bytes(self._pending), self._written)
            self._names_changed |= self._written == 0
            self._written += count
            del self._pending[:count]
            self._unsynced = True

    def sync(self) -> None:
        if self._unsynced:
            self._files.sync(self._journal)
            self._unsynced = False
        if self._names_changed:
            sync_directory(self._disk, self._directory)
            self._names_changed = False
        if self.is_new:
            sync_directory(self._disk, self._directory.parent)
            self.is_new = False

    def snapshot(self, state: bytes) -> None:
        if not self._loaded:
            self.load()
        generation = self._generation + 1
        head = _STATE.pack(_STATE_MAGIC, generation, xxh64_digest(state, generation))
        write_atomically(self._disk, self._directory / "state", head + state, sync_name=False)
        old = self._journal
        self._files.forget(old)
        self._names_changed = True
        self._state = state
        self._generation = generation
        self._pending.clear()
        self._written = self.journal_bytes = 0
        self._unsynced = False
        with contextlib.suppress(OSError):  # of another generation: the next load() removes it
            self._disk.unlink(old)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.write()
            self.sync()
        finally:
            self._closed = True
            self._files.forget(self._journal)

    def delete(self) -> None:
        self._pending.clear()
        self._unsynced = False
        self._closed = True
        self._files.forget(self._journal)
        remove_directory(self._disk, self._directory, sync_name=False)
