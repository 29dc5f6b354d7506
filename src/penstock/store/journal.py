"""A consumer on disk: meta, a snapshot of its state, and a journal of the changes since.

`state` is the snapshot with its generation; `journal.<generation>` contains the entries since that snapshot,
each with length and hash. A new snapshot gets the next generation, so that a crash between replacing the
snapshot and removing the old journal cannot apply old entries to a new state.

start_snapshot() does not wait for the disk: it starts the journal of the next generation at once and writes
the state in the background. Until the state is on disk, recovery reads the old state with both journals. A
journal that continues another one begins with a link: the number of entries in its predecessor. A power loss
can cut the end off the older journal, and entries after a gap must not be applied.

Invariants: a journal is append-only; load() returns only complete entries; what sync() returned for survives
the death of the machine, names included. Creating, changing and deleting consumers syncs no names (consumers
come and go by the hundred, and a sync takes a millisecond): until the next sync() a consumer may revert to
its state at the last one, but is never half changed.

Rejected: the generation inside the journal (truncating the journal and replacing the snapshot are two steps,
and a crash between them would need the same distinction).
"""

from __future__ import annotations

import contextlib
import logging
import struct
from pathlib import Path

from penstock.errors import StoreCorruptError, StoreError, StoreWriteError
from penstock.kernels.log.records import xxh64_digest
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.executor import drain
from penstock.store.files import (
    META,
    OpenFiles,
    Permit,
    pack_meta,
    remove_directory,
    remove_file,
    replace_meta,
    sync_directory,
    sync_file,
    unpack_meta,
    write_atomically,
)

logger = logging.getLogger("penstock.store")

STATE = "state"
ENTRY_SIZE_MAX = 1 << 30

_ENTRY = struct.Struct("<IQ")  # length, hash; the entry follows
_LINK = struct.Struct("<Q")  # number of entries in the previous journal
_LINK_SEED = 1 << 63  # seed of a link's hash, so that no entry reads as a link
_STATE = struct.Struct("<8sQQ")  # magic, generation, hash; the state follows
_STATE_MAGIC = b"PENSTAT1"


def frame_entry(entry: bytes, generation: int) -> bytes:
    """Encodes an entry for the journal of a generation."""
    return _ENTRY.pack(len(entry), xxh64_digest(entry, generation)) + entry


def frame_link(count: int, generation: int) -> bytes:
    """Encodes the start of a journal that continues one of `count` entries."""
    link = _LINK.pack(count)
    return _ENTRY.pack(len(link), xxh64_digest(link, generation | _LINK_SEED)) + link


def read_link(data: bytes, generation: int) -> tuple[int | None, int]:
    """Returns the number of entries a journal expects in its predecessor (None without a link), and the
    link's size."""
    end = _ENTRY.size + _LINK.size
    if len(data) >= end:
        length, digest = _ENTRY.unpack_from(data)
        link = data[_ENTRY.size : end]
        if length == _LINK.size and digest == xxh64_digest(link, generation | _LINK_SEED):
            return _LINK.unpack(link)[0], end
    return None, 0


def read_entries(data: bytes, generation: int) -> tuple[list[bytes], int]:
    """Returns the complete entries at the start of a journal, and their size in bytes including the link."""
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
    """Returns a snapshot and its generation; (None, 0) when there is none. Raises StoreCorruptError."""
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
        self._count = 0  # entries in the current journal
        self._link: bytes | None = None  # what it must begin with, until written
        self._base = 0  # generation of the snapshot on disk
        self._written = 0
        self._appended: AppendedFile | None = None  # the current journal, when encrypted
        self._unsynced: set[Path] = set()
        self._in_sync: list[tuple[set[Path], set[Path]]] = []  # files and directories of syncs in flight
        self._distrusted: set[Path] = set()  # their sync failed: the system may have dropped their bytes
        self._names_changed = False  # in its directory, since the last sync
        self.is_new = False  # its directory's own name may not be durable; the stream's sync covers it
        self._snapshotting = False
        self._permit = Permit()  # of the snapshot in flight
        self._loaded = False
        self._closed = False
        self.undeleted: set[str] = set()  # contains its name while its files could not be removed

    @classmethod
    def create(cls, directory: Path, name: str, meta: bytes, files: OpenFiles) -> FileConsumerStore:
        """Creates a consumer in an existing, empty directory."""
        files.replace(directory / META, pack_meta(name, meta), sync_name=False)
        store = cls(directory, name, meta, files)
        store._loaded = store._names_changed = store.is_new = True
        return store

    @classmethod
    def open(cls, directory: Path, files: OpenFiles) -> FileConsumerStore:
        """Opens the consumer in a directory. Raises StoreCorruptError when its meta is damaged."""
        files.encrypt(directory / META)
        files.encrypt(directory / STATE)
        name, meta = unpack_meta(files, directory / META)
        store = cls(directory, name, meta, files)
        # The process that wrote it may have died before its sync.
        store._names_changed = store.is_new = True
        return store

    @property
    def closed(self) -> bool:
        """Whether close(), abandon() or delete() was called."""
        return self._closed

    def _go_to(self, generation: int) -> None:
        """Selects the journal to write. Caches its path: building one takes longer than framing an entry, and
        each batch of acks and each pull is a write."""
        self._generation = generation
        self._journal = self._journal_of(generation)

    def _journal_of(self, generation: int) -> Path:
        return self._directory / f"journal.{generation}"

    def save_meta(self, meta: bytes) -> None:
        # Durable before any entry that follows: the meaning of a position depends on the filters.
        try:
            replace_meta(self._files, self._directory / META, self.name, self.meta, meta)
        except StoreWriteError:
            self._names_changed = True
            raise
        self.meta = meta

    def load(self) -> tuple[bytes | None, list[bytes]]:
        drain(self._files.executor, self)
        self.write()
        self._state, self._base = read_state(self._files, self._directory / STATE)
        self._go_to(self._base)
        self._link = None
        entries, whole = self._read_journal()
        self._count = len(entries)
        # A journal without its snapshot: the snapshot was not on disk when the process ended. Its entries
        # continue the previous journal's.
        while whole and self._follows(self._generation + 1):
            self._go_to(self._generation + 1)
            more, whole = self._read_journal()
            is_empty = not self._written and self._appended is None
            self._link = frame_link(self._count, self._generation) if is_empty else None
            self._count = len(more)
            entries += more
        self._sweep()
        self.journal_bytes = sum(_ENTRY.size + len(entry) for entry in entries)
        # The process that wrote them may have died before its sync.
        present = (self._directory / name for name in self._journal_names())
        self._unsynced = {path for path in present if self._disk.exists(path)}
        self._loaded = True
        return self._state, entries

    def _follows(self, generation: int) -> bool:
        """Whether a journal of that generation exists and continues exactly where the current one ends."""
        path = self._journal_of(generation)
        try:
            file = self._disk.read(path)
        except FileNotFoundError:
            return False
        if is_enveloped(file):
            decoded = self._files.file_cipher.decode(memoryview(file), path)
            file = bytes(decoded.data[: decoded.good])
        expected, _ = read_link(file, generation)
        if expected is None or expected == self._count:
            return True
        logger.warning(
            "%s: ignored: it continues a journal of %d entries, of which %d exist",
            path,
            expected,
            self._count,
        )
        return False

    def _read_journal(self) -> tuple[list[bytes], bool]:
        """Reads the entries of the current generation, and cuts a torn end. Returns the entries, and whether
        the end was intact."""
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
            decoded = self._files.file_cipher.decode(memoryview(file), path)
            entries, size = read_entries(bytes(decoded.data[: decoded.good]), self._generation)
            end = self._written = decoded.file_end
            if end:  # otherwise its head is torn, and the next write starts the file over
                self._appended = AppendedFile(
                    self._files, path, size=end, length=decoded.good, head=file[: HEAD.size]
                )
        whole = end == len(file)
        if not whole:
            logger.warning("%s: cut at byte %d of %d: the entry there is damaged", path, end, len(file))
            self._files.forget(path)
            # Replaced rather than truncated: a power loss could undo a truncation but keep what is written
            # after it, and the remains of the torn entry would precede it.
            write_atomically(self._disk, path, file[:end], sync_name=False)
            self._names_changed = True
        if self._appended is None and file[:end] and self._files.file_cipher.encrypts:
            head, size = self._files.encrypt(path)
            self._appended = AppendedFile(self._files, path, size=size, length=end, head=head)
        return entries, whole

    def _sweep(self) -> None:
        """Removes journals of other generations and temporary files of interrupted replacements."""
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
        assert self._base <= self._generation, (self._base, self._generation)
        framed = frame_entry(entry, self._generation)
        self._pending += framed
        self._count += 1
        self.journal_bytes += len(framed)

    def write(self) -> None:
        if not self._pending:
            return
        encrypted = self._appended is not None or (self._files.file_cipher.encrypts and not self._written)
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

    def _write_again(self) -> None:
        """Writes files whose sync failed again, in place: the system marks the bytes as changed, and the next
        sync writes them. Raises StoreWriteError."""
        for path in sorted(self._distrusted):
            # Before the write: a sync in another thread that fails during it distrusts the file again.
            self._distrusted.discard(path)
            try:
                self._write_file_again(path)
            except StoreWriteError:
                self._distrusted.add(path)
                raise

    def _write_file_again(self, path: Path) -> None:
        if not self._disk.exists(path):
            return
        try:
            data, at = self._disk.read(path), 0
        except OSError as error:
            raise StoreWriteError(f"cannot read the file: {error.strerror}", path=str(path)) from error
        while at < len(data):
            at += self._files.write(path, data[at:], at)
        self._unsynced.add(path)

    def sync(self) -> None:
        self._write_again()
        # Files that a background sync covers are not durable before it ends, so sync them here too.
        in_sync = {path for files, _ in self._in_sync for path in files if self._disk.exists(path)}
        for path in sorted(self._unsynced | in_sync):
            try:
                self._files.sync(path)
            except StoreWriteError:
                self._distrusted.add(path)
                raise
            self._unsynced.discard(path)
        self._require_trusted()
        in_sync_names = {path for _, names in self._in_sync for path in names}
        if self._names_changed or self._directory in in_sync_names:
            sync_directory(self._disk, self._directory)
            self._names_changed = False
        if self.is_new or self._directory.parent in in_sync_names:
            sync_directory(self._disk, self._directory.parent)
            self.is_new = False

    def _require_trusted(self) -> None:
        """Raises StoreWriteError while a failed sync may have dropped bytes that were not written again. The
        system reports its error once, perhaps to a sync in another thread."""
        if self._distrusted:
            raise StoreWriteError(
                "cannot sync: an earlier sync failed, the file is written again first",
                path=str(min(self._distrusted, default="")),
            )

    def take_unsynced(self) -> tuple[set[Path], set[Path]]:
        """Returns the files and directories to sync, and transfers the duty to the caller, which must report
        with sync_succeeded() or sync_failed()."""
        with contextlib.suppress(StoreWriteError):  # sync_file() then raises
            self._write_again()
        files, self._unsynced = self._unsynced, set()
        names = {self._directory} if self._names_changed else set()
        if self.is_new:
            names.add(self._directory.parent)
        self._names_changed = self.is_new = False
        self._in_sync.append((files, names))
        return files, names

    def sync_file(self, path: Path) -> None:
        """Syncs a file that take_unsynced() returned, in any thread. Raises StoreWriteError."""
        try:
            self._require_trusted()
            sync_file(self._disk, path)
        except StoreWriteError:
            self._distrusted.add(path)
            raise

    def sync_succeeded(self, files: set[Path], names: set[Path]) -> None:
        """The caller synced what take_unsynced() returned."""
        self._in_sync.remove((files, names))

    def sync_failed(self, files: set[Path], names: set[Path]) -> None:
        """The caller failed to sync what take_unsynced() returned: it counts as unsynced again, and is
        written again before anything says that it is on disk."""
        self._in_sync.remove((files, names))
        self._distrusted |= files
        self._unsynced |= files
        self._names_changed |= self._directory in names
        self.is_new |= self._directory.parent in names

    def snapshot(self, state: bytes) -> None:
        if not self._loaded:
            self.load()
        self._cancel_snapshot()
        before = self._journals_before(self._generation + 1)
        self._write_state(state, self._generation + 1, self._permit)
        # The state is on disk before any older journal goes: a crash between the two leaves both readable.
        self._next_generation()
        self._base, self._state = self._generation, state
        self._names_changed = True
        self._pending.clear()
        self._link = None  # the new snapshot covers everything before: the journal continues no other
        self._unlink(before)

    def start_snapshot(self, state: bytes) -> None:
        if not self._loaded:
            self.load()
        self.write()
        if self._snapshotting:
            return  # the disk is slow: the journal grows until the snapshot in flight is on disk
        self._next_generation()
        generation = self._generation
        before = self._journals_before(generation)
        permit = self._permit

        def work() -> None:
            self._write_state(state, generation, permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if permit is not self._permit or self._closed:
                return  # a newer snapshot took its place, or the consumer is gone
            self._snapshotting = False
            if error is not None:
                logger.warning("consumer %s: snapshot failed, keeping the journal: %s", self.name, error)
                return
            self._base, self._state = generation, state
            self._names_changed = True
            self._unlink(before)

        self._snapshotting = True
        self._files.executor.run(work, done, self)

    def _cancel_snapshot(self) -> None:
        """Keeps the snapshot in flight from replacing a newer one. It may have replaced the old one already;
        the journals since that are still there."""
        if self._snapshotting:
            self._permit.revoke()
            self._permit = Permit()
            self._snapshotting = False
            # The work may still write to its temporary file: the next snapshot must not open the same one.
            remove_file(self._disk, self._directory / f"{STATE}.new")

    def _write_state(self, state: bytes, generation: int, permit: Permit) -> None:
        head = _STATE.pack(_STATE_MAGIC, generation, xxh64_digest(state, generation))
        self._files.replace(self._directory / STATE, head + state, sync_name=False, permit=permit)

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
            with contextlib.suppress(OSError):  # the next load() removes journals of other generations
                self._disk.unlink(path)

    def close(self) -> None:
        if self._closed:
            return
        try:
            drain(self._files.executor, self)
            self.write()
            self.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._closed = True
        self._permit.revoke()
        self._files.forget(self._journal)

    def delete(self, *, sync: bool = False) -> None:
        self._pending.clear()
        self._unsynced.clear()
        self.abandon()
        self.undeleted.add(self.name)
        remove_directory(self._disk, self._directory, META, sync_name=sync)
        self.undeleted.discard(self.name)
