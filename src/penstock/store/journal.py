"""A consumer on disk: meta, a snapshot of its state, and a journal of what changed since.

`state` is the snapshot with its generation; `journal.<generation>` holds the entries since that snapshot,
each with length and hash. A new snapshot gets the next generation, so that a crash between replacing the
snapshot and removing the old journal can never put old entries onto a new state.

A snapshot may take its time: start_snapshot() begins the journal of the next generation at once and leaves
the state to the background. Until it is there, recovery reads the state before it with both journals. A
journal that goes on where another ends says how many entries that one has: power loss can take the end of the
older one, and what follows on a gap means nothing.

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

from penstock.errors import StoreCorruptError, StoreError, StoreWriteError
from penstock.kernels.log.records import xxh64_digest
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.files import (
    META,
    OpenFiles,
    pack_meta,
    remove_directory,
    replace_meta,
    sync_directory,
    unpack_meta,
    write_atomically,
)

logger = logging.getLogger("penstock.store")

STATE = "state"
ENTRY_SIZE_MAX = 1 << 30

_ENTRY = struct.Struct("<IQ")  # length, hash; the entry follows
_LINK = struct.Struct("<Q")  # how many entries the journal before has
_LINK_SEED = 1 << 63  # its hash tells it from an entry
_STATE = struct.Struct("<8sQQ")  # magic, generation, hash; the state follows
_STATE_MAGIC = b"PENSTAT1"


def frame_entry(entry: bytes, generation: int) -> bytes:
    """An entry as it stands in the journal of a generation."""
    return _ENTRY.pack(len(entry), xxh64_digest(entry, generation)) + entry


def frame_link(count: int, generation: int) -> bytes:
    """What the journal of a generation begins with when it goes on where one of `count` entries ends."""
    link = _LINK.pack(count)
    return _ENTRY.pack(len(link), xxh64_digest(link, generation | _LINK_SEED)) + link


def read_link(data: bytes, generation: int) -> tuple[int | None, int]:
    """How many entries a journal expects before it, if it says so, and how many bytes that takes."""
    end = _ENTRY.size + _LINK.size
    if len(data) >= end:
        length, digest = _ENTRY.unpack_from(data)
        link = data[_ENTRY.size : end]
        if length == _LINK.size and digest == xxh64_digest(link, generation | _LINK_SEED):
            return _LINK.unpack(link)[0], end
    return None, 0


def read_entries(data: bytes, generation: int) -> tuple[list[bytes], int]:
    """The whole entries at the head of a journal, and how many bytes they take."""
    entries: list[bytes] = []
    _, at = read_link(data, generation)
    while at + _ENTRY.size <= len(data):
        length, digest = _ENTRY.unpack_from(data, at)
        entry = data[at + _ENTRY.size : at + _ENTRY.size + length]
        if len(entry) != length or xxh64_digest(entry, generation) != digest:
            break
        entries.append(entry)
        at += _ENTRY.size + length
    return entries, at


def read_state(files: OpenFiles, path: Path) -> tuple[bytes | None, int]:
    """A snapshot and its generation; (None, 0) where there is none. Raises StoreCorruptError."""
    try:
        data = files.read(path)
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
        self._go_to(0)
        self._count = 0  # of its entries
        self._link: bytes | None = None  # what it has to begin with
        self._base = 0  # of the snapshot that is on disk
        self._written = 0
        self._appended: AppendedFile | None = None  # the journal, when it is encrypted
        self._unsynced: set[Path] = set()
        self._lent: list[tuple[set[Path], set[Path]]] = []  # files and directories that a sync is about
        self._names_changed = False  # in its directory, since the last sync
        self.is_new = False  # the name of its directory may not be on the disk yet; its owner may see to it
        self._snapshotting = False
        self._loaded = False
        self._closed = False
        self.undeleted: set[str] = set()  # its name while its files should have gone and have not

    @classmethod
    def create(cls, directory: Path, name: str, meta: bytes, files: OpenFiles) -> FileConsumerStore:
        """A new consumer in a directory that exists and is empty."""
        files.replace(directory / META, pack_meta(name, meta), sync_name=False)
        store = cls(directory, name, meta, files)
        store._loaded = store._names_changed = store.is_new = True
        return store

    @classmethod
    def open(cls, directory: Path, files: OpenFiles) -> FileConsumerStore:
        """The consumer kept in a directory. Raises StoreCorruptError when its meta is damaged."""
        files.encrypt(directory / META)
        files.encrypt(directory / STATE)
        name, meta = unpack_meta(files, directory / META)
        store = cls(directory, name, meta, files)
        # Who wrote it may have been killed before a sync.
        store._names_changed = store.is_new = True
        return store

    @property
    def closed(self) -> bool:
        """Was close() or delete() called?"""
        return self._closed

    def _go_to(self, generation: int) -> None:
        """Sets which journal is written. Its path is kept, because to build one takes longer than to frame an
        entry, and each batch of acks and each pull is a write."""
        self._generation = generation
        self._journal = self._journal_of(generation)

    def _journal_of(self, generation: int) -> Path:
        return self._directory / f"journal.{generation}"

    def save_meta(self, meta: bytes) -> None:
        # On the disk before any entry that follows: what a position says depends on the filters it is of.
        try:
            replace_meta(self._files, self._directory / META, self.name, self.meta, meta)
        except StoreWriteError:
            self._names_changed = True
            raise
        self.meta = meta

    def load(self) -> tuple[bytes | None, list[bytes]]:
        self._files.background.drain()
        self.write()
        self._state, self._base = read_state(self._files, self._directory / STATE)
        self._go_to(self._base)
        self._link = None
        entries, whole = self._read_journal()
        self._count = len(entries)
        # Of a snapshot that didn't come to disk: its journal goes on where the one before it ends.
        while whole and self._follows(self._generation + 1):
            self._go_to(self._generation + 1)
            more, whole = self._read_journal()
            is_empty = not self._written and self._appended is None
            self._link = frame_link(self._count, self._generation) if is_empty else None
            self._count = len(more)
            entries += more
        self._sweep()
        self.journal_bytes = sum(_ENTRY.size + len(entry) for entry in entries)
        # Who wrote them may have been killed before a sync.
        present = (self._directory / name for name in self._journal_names())
        self._unsynced = {path for path in present if self._disk.exists(path)}
        self._loaded = True
        return self._state, entries

    def _follows(self, generation: int) -> bool:
        """Is there a journal of that generation, and does it go on where the present one ends?"""
        path = self._journal_of(generation)
        try:
            file = self._disk.read(path)
        except FileNotFoundError:
            return False
        if is_enveloped(file):
            decoded = self._files.vault.decode(memoryview(file), path)
            file = bytes(decoded.data[: decoded.good])
        expected, _ = read_link(file, generation)
        if expected is None or expected == self._count:
            return True
        logger.warning(
            "%s: left out: it follows on %d entries, of which %d are there", path, expected, self._count
        )
        return False

    def _read_journal(self) -> tuple[list[bytes], bool]:
        """The entries of the present generation; False when a torn end was cut."""
        path = self._journal
        try:
            file = self._disk.read(path)
        except FileNotFoundError:
            file = b""
        self._appended = None
        if not is_enveloped(file):
            entries, size = read_entries(file, self._generation)
            end = self._written = size
        else:
            decoded = self._files.vault.decode(memoryview(file), path)
            entries, size = read_entries(bytes(decoded.data[: decoded.good]), self._generation)
            end = self._written = decoded.file_end
            if end:  # else its head is torn, and the next write begins the file anew
                self._appended = AppendedFile(
                    self._files, path, size=end, length=decoded.good, head=file[: HEAD.size]
                )
        whole = end == len(file)
        if not whole:
            logger.warning("%s: cut at byte %d of %d: the entry there is not whole", path, end, len(file))
            self._files.forget(path)
            # Replaced, not truncated: power loss could take that back and keep what is written next.
            write_atomically(self._disk, path, file[:end], sync_name=False)
            self._names_changed = True
        if self._appended is None and file[:end] and self._files.vault.encrypts:
            head, size = self._files.encrypt(path)
            self._appended = AppendedFile(self._files, path, size=size, length=end, head=head)
        return entries, whole

    def _sweep(self) -> None:
        """Removes journals of other generations and what a crash left of a replacement."""
        for name in self._disk.names(self._directory):
            is_journal = name.startswith("journal.")
            if name.endswith(".new") or (is_journal and name not in self._journal_names()):
                self._disk.unlink(self._directory / name)

    def _journal_names(self) -> set[str]:
        return {self._journal_of(g).name for g in range(self._base, self._generation + 1)}

    def append(self, entry: bytes) -> None:
        assert len(entry) <= ENTRY_SIZE_MAX
        if not self._loaded:
            self.load()
        if self._link is not None:
            self._pending += self._link
            self._link = None
        framed = frame_entry(entry, self._generation)
        self._pending += framed
        self._count += 1
        self.journal_bytes += len(framed)

    def write(self) -> None:
        if not self._pending:
            return
        encrypted = self._appended is not None or (self._files.vault.encrypts and not self._written)
        if encrypted and self._appended is None:
            self._appended = AppendedFile(self._files, self._journal)
        while self._pending:
            if self._appended is not None:
                count = self._appended.append(bytes(self._pending))
            else:
                count = self._files.write(self._journal, bytes(self._pending), self._written)
                self._written += count
            del self._pending[:count]
            if self._journal not in self._unsynced:
                self._names_changed = True
                self._unsynced.add(self._journal)

    def sync(self) -> None:
        # What a sync in the background covers is not on the disk before that ends.
        lent = {path for files, _ in self._lent for path in files if self._disk.exists(path)}
        for path in self._unsynced | lent:
            self._files.sync(path)
            self._unsynced.discard(path)
        lent_names = {path for _, names in self._lent for path in names}
        if self._names_changed or self._directory in lent_names:
            sync_directory(self._disk, self._directory)
            self._names_changed = False
        if self.is_new or self._directory.parent in lent_names:
            sync_directory(self._disk, self._directory.parent)
            self.is_new = False

    def take_unsynced(self) -> tuple[set[Path], set[Path]]:
        """Files and directories that a sync has to cover; they are the caller's business now."""
        files, self._unsynced = self._unsynced, set()
        names = {self._directory} if self._names_changed else set()
        if self.is_new:
            names.add(self._directory.parent)
        self._names_changed = self.is_new = False
        self._lent.append((files, names))
        return files, names

    def came_to_disk(self, files: set[Path], names: set[Path]) -> None:
        """What take_unsynced() returned was synced."""
        self._lent.remove((files, names))

    def give_back(self, files: set[Path], names: set[Path]) -> None:
        """What take_unsynced() returned did not come to disk."""
        self._lent.remove((files, names))
        self._unsynced |= files
        self._names_changed |= self._directory in names
        self.is_new |= self._directory.parent in names

    def snapshot(self, state: bytes) -> None:
        if not self._loaded:
            self.load()
        self._files.background.drain()
        before = self._journals_before(self._generation + 1)
        self._write_state(state, self._generation + 1)
        self._next_generation()
        self._base, self._state = self._generation, state
        self._names_changed = True
        self._pending.clear()
        self._link = None  # it begins anew
        self._unlink(before)

    def start_snapshot(self, state: bytes) -> None:
        if not self._loaded:
            self.load()
        self.write()
        if self._snapshotting:
            return  # the disk is slow: the journal goes on growing until the one under way is there
        self._next_generation()
        generation = self._generation
        before = self._journals_before(generation)

        def work() -> None:
            self._write_state(state, generation)

        def done(_: None, error: StoreError | OSError | None) -> None:
            self._snapshotting = False
            if self._closed:
                return
            if error is not None:
                logger.warning("consumer %s: the next snapshot is put off: %s", self.name, error)
                return
            self._base, self._state = generation, state
            self._names_changed = True
            self._unlink(before)

        self._snapshotting = True
        self._files.background.run(work, done)

    def _write_state(self, state: bytes, generation: int) -> None:
        head = _STATE.pack(_STATE_MAGIC, generation, xxh64_digest(state, generation))
        self._files.replace(self._directory / STATE, head + state, sync_name=False)

    def _next_generation(self) -> None:
        self._files.forget(self._journal)
        self._go_to(self._generation + 1)
        self._link, self._count = frame_link(self._count, self._generation), 0
        self._appended = None
        self._written = self.journal_bytes = 0

    def _journals_before(self, generation: int) -> list[Path]:
        return [self._journal_of(g) for g in range(self._base, generation)]

    def _unlink(self, paths: list[Path]) -> None:
        for path in paths:
            self._files.forget(path)
            self._unsynced.discard(path)
            with contextlib.suppress(OSError):  # of another generation: the next load() removes it
                self._disk.unlink(path)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self._files.background.drain()
            self.write()
            self.sync()
        finally:
            self._closed = True
            self._files.forget(self._journal)

    def abandon(self) -> None:
        self._closed = True
        self._files.forget(self._journal)

    def delete(self, *, sync: bool = False) -> None:
        self._files.background.drain()
        self._pending.clear()
        self._unsynced.clear()
        self._closed = True
        self._files.forget(self._journal)
        self.undeleted.add(self.name)
        remove_directory(self._disk, self._directory, META, sync_name=sync)
        self.undeleted.discard(self.name)
