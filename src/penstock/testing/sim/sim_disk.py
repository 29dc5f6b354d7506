"""A disk in memory with the failure modes of real ones: see store/disk.py for the interface.

Written data is in the page cache: a killed process loses nothing. A power failure keeps what was synced, and
of the rest: of each file any subset of its writes, the last one torn at any byte (gaps are zeros); of each
directory a prefix of its name changes. A rename is atomic. sync() covers the bytes of one file, not its name;
sync_directory() covers names, not bytes. A sync that fails drops the bytes that it covers, as on Linux: they
are read from the cache, and no later sync writes them. Only what is written again is on disk then.

Invariants: everything depends on the calls and on the Random passed in; after `Killed` every operation but
close() raises it again, until restart() or lose_power().

Not simulated: bytes that were dropped and that the process did not write again before it was killed. The next
process cannot know of them, so they count as written but not synced again.

Rejected: a directory of the real disk with a record of what is unsynced (slower, and it hides which
operations reach the disk).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from penstock.errors import StoreLockedError
from penstock.store.disk import RecordReads, SyncReader

REORDER_RATE = 0.2


class Killed(BaseException):
    """The simulated process dies here. Not an Exception: nothing may handle it."""


class File:
    """Bytes, and the writes since the last sync: (offset, data), or (size, None) for a truncation.

    has_dropped: `data` has bytes that are neither durable nor pending.
    """

    __slots__ = ("data", "durable", "has_dropped", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, bytes | None]] = []
        self.has_dropped = False

    def apply(self, offset: int, data: bytes | None) -> None:
        _apply_write(self.data, offset, data)

    def sync(self) -> None:
        if self.has_dropped:
            durable = bytearray(self.durable)
            for offset, data in self.pending:
                _apply_write(durable, offset, data)
            self.durable = bytes(durable)
            self.has_dropped = durable != self.data
        else:
            self.durable = bytes(self.data)
        self.pending.clear()

    def sync_all(self) -> None:
        """Makes the bytes durable that are read now, dropped ones too."""
        self.has_dropped = False
        self.sync()

    def drop(self) -> None:
        """A sync failed: what it covers counts as written from now on."""
        self.has_dropped = self.has_dropped or bool(self.pending)
        self.pending.clear()

    def take_back(self) -> None:
        """Dropped bytes count as not synced again."""
        if self.has_dropped:
            self.pending = [(0, bytes(self.data)), (len(self.data), None)]
            self.has_dropped = False

    def lose_power(self, random: Random | None, reorder_rate: float) -> None:
        if not self.pending and not self.has_dropped:
            return
        pending = self.pending
        self.data = bytearray(self.durable)
        self.pending = []
        self.has_dropped = False
        if random is None:
            return
        fate = random.random()
        if fate < 0.25:
            kept = []
        elif fate < 0.4:
            kept = pending
        elif fate < 1 - reorder_rate:
            kept = pending[: random.randrange(len(pending) + 1)]
        else:
            kept = [one for one in pending if random.random() < 0.6]
        for i, (offset, data) in enumerate(kept):
            torn = data is not None and i == len(kept) - 1 and random.random() < 0.5
            self.apply(offset, data[: random.randrange(len(data) + 1)] if torn and data else data)
        self.sync()


class Directory:
    """Names, and their changes since the last sync: (name, its new target)."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, File | Directory] = {}
        self.durable: dict[str, File | Directory] = {}
        self.pending: list[dict[str, File | Directory | None]] = []

    def change(self, names: dict[str, File | Directory | None]) -> None:
        """Applies one atomic change: all of it survives or nothing."""
        self.pending.append(names)
        _apply_names(self.entries, names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def sync_all(self) -> None:
        """Syncs everything below."""
        self.sync()
        for entry in self.entries.values():
            entry.sync_all()

    def lose_power(self, random: Random | None, reorder_rate: float) -> None:
        if self.pending:
            self.entries = dict(self.durable)
            kept = random.randrange(len(self.pending) + 1) if random is not None else 0
            for names in self.pending[:kept]:
                _apply_names(self.entries, names)
            self.sync()
        for entry in self.entries.values():
            entry.lose_power(random, reorder_rate)


class SimLock:
    """The lock of a store directory; released when the process dies."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.locked = False


class SimDisk:
    """See penstock.store.disk.Disk.

    ops: modifying operations, including failed ones. kill_at: the number of the operation that kills the
    process. syncs_left: the process is killed at the last of so many syncs of files; None: at none. room:
    free bytes, None for no bound. fail_rate: the probability of EIO per operation. reorder_rate: the
    probability that a power failure keeps any subset of a file's unsynced writes, instead of the first ones.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.root = Directory()
        self.ops = 0
        self.kill_at: int | None = None
        self.syncs_left: int | None = None
        self.reorder_rate = REORDER_RATE
        self.dead = False
        self.room: int | None = None
        self.fail_rate = 0.0
        self.faults = 0  # failed operations
        self.flips = 0  # flipped bits
        self.locked = False
        self._fds: dict[int, File] = {}
        self._next_fd = 3

    # --- what happens to it

    def restart(self) -> None:
        """Ends the process with its descriptors and lock. What it wrote stays."""
        self._end_process()
        for _, file in self.files():
            file.take_back()

    def _end_process(self) -> None:
        self._fds.clear()
        self.dead = self.locked = False
        self.kill_at = self.syncs_left = None
        self.room = None
        self.fail_rate = 0.0

    def lose_power(self, *, all_of_it: bool = False) -> None:
        """A power failure: loses some of what was not synced, or all of it."""
        self._end_process()
        self.root.lose_power(None if all_of_it else self.random, self.reorder_rate)

    def flip_bit(self) -> str:
        """Changes one bit of some file, durably; returns where. Spares the key: without it nothing opens."""
        files = [(path, file) for path, file in self.files() if file.data and not path.endswith("/key")]
        if not files:
            return "nowhere"
        path, file = self.random.choice(files)
        at = self.random.randrange(len(file.data))
        self.flips += 1
        file.data[at] ^= 1 << self.random.randrange(8)
        file.sync_all()
        return f"{path}:{at}"

    def files(self) -> list[tuple[str, File]]:
        """All files with their paths, sorted."""
        found: list[tuple[str, File]] = []

        def walk(directory: Directory, prefix: str) -> None:
            for name in sorted(directory.entries):
                entry = directory.entries[name]
                if isinstance(entry, File):
                    found.append((f"{prefix}/{name}", entry))
                else:
                    walk(entry, f"{prefix}/{name}")

        walk(self.root, "")
        return found

    def _step(self, what: str, path: Path | None = None) -> None:
        """One modifying operation: injects failures."""
        if self.dead:
            raise Killed
        self.ops += 1
        if what == "sync" and path is None and self.syncs_left is not None:
            self.syncs_left -= 1
        if self.ops == self.kill_at or self.syncs_left == 0:
            self.dead = True
            raise Killed
        if self.fail_rate and self.random.random() < self.fail_rate:
            self.faults += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path or what))

    def _need(self, count: int) -> None:
        if self.room is not None and self.room < count:
            self.faults += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # --- finding

    def _directory(self, path: Path) -> Directory:
        at = self._find(path)
        if not isinstance(at, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return at

    def _find(self, path: Path) -> File | Directory:
        at = self._look_up(path)
        if at is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return at

    def _look_up(self, path: Path) -> File | Directory | None:
        at: File | Directory | None = self.root
        for part in path.parts[1:]:
            if not isinstance(at, Directory):
                return None
            at = at.entries.get(part)
        return at

    def _file(self, path: Path) -> File:
        at = self._find(path)
        if not isinstance(at, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return at

    # --- the Disk

    def open(self, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        directory = self._directory(path.parent)
        file = directory.entries.get(path.name)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._step("open", path)
            self._need(1)
            file = File()
            directory.change({path.name: file})
        elif truncate:
            self._step("open", path)
        if not isinstance(file, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if truncate and file.data:
            file.pending.append((0, None))
            file.apply(0, None)
        self._next_fd += 1
        self._fds[self._next_fd] = file
        return self._next_fd

    def close(self, fd: int) -> None:
        self._fds.pop(fd, None)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file = self._fds[fd]
        taken = bytes(data)
        try:
            self._step("write")
        except Killed:
            if self.ops == self.kill_at:
                self._put(file, offset, taken[: self.random.randrange(len(taken) + 1)])
                self.kill_at = None
            raise
        if self.room is not None:
            self._need(1)
            taken = taken[: self.room]
            self.room -= len(taken)
        elif self.random.random() < 0.02 and len(taken) > 1:
            taken = taken[: self.random.randrange(1, len(taken))]  # a short write
        self._put(file, offset, taken)
        return len(taken)

    def _put(self, file: File, offset: int, data: bytes) -> None:
        file.pending.append((offset, data))
        file.apply(offset, data)

    def sync(self, fd: int) -> None:
        try:
            self._step("sync")
        except OSError:
            self._fds[fd].drop()
            raise
        self._fds[fd].sync()

    def read(self, path: Path) -> bytes:
        return bytes(self._file(path).data)

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        return bytes(self._file(path).data[offset : offset + count])

    def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        return SyncReader(self, files)

    def map(self, path: Path) -> memoryview:
        return memoryview(bytes(self._file(path).data))

    def size(self, path: Path) -> int:
        return len(self._file(path).data)

    def exists(self, path: Path) -> bool:
        return self._look_up(path) is not None

    def names(self, directory: Path) -> list[str]:
        return sorted(self._directory(directory).entries)

    def make_directory(self, path: Path) -> None:
        parent = self._directory(path.parent)
        if path.name not in parent.entries:
            self._step("mkdir", path)
            self._need(1)
            parent.change({path.name: Directory()})

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent, "the store renames within a directory"
        directory = self._directory(old.parent)
        if old.name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        self._step("rename", old)
        directory.change({old.name: None, new.name: directory.entries[old.name]})

    def unlink(self, path: Path) -> None:
        try:
            directory = self._directory(path.parent)
        except FileNotFoundError:
            return
        if path.name in directory.entries:
            self._step("unlink", path)
            directory.change({path.name: None})

    def remove_tree(self, path: Path) -> None:
        try:
            directory = self._directory(path)
        except FileNotFoundError:
            return
        for name in sorted(directory.entries):
            if isinstance(directory.entries[name], Directory):
                self.remove_tree(path / name)
            else:
                self._try_remove(directory, name)
        if not directory.entries:
            self._try_remove(self._directory(path.parent), path.name)

    def _try_remove(self, directory: Directory, name: str) -> None:
        try:
            self._step("remove")
        except OSError:
            return
        directory.change({name: None})

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._step("sync", path)
        directory.sync()

    def for_each(self, work: Callable[[Path], object], paths: Sequence[Path]) -> None:
        for path in paths:
            work(path)

    def lock(self, directory: Path) -> SimLock:
        if self.locked:
            raise StoreLockedError("another simulated process has it", path=str(directory))
        self.locked = True
        return SimLock(self)


def _apply_write(to: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del to[offset:]
        to.extend(bytes(max(0, offset - len(to))))
        return
    if len(to) < offset:
        to.extend(bytes(offset - len(to)))
    to[offset : offset + len(data)] = data


def _apply_names(entries: dict[str, File | Directory], names: dict[str, File | Directory | None]) -> None:
    for name, entry in names.items():
        if entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
