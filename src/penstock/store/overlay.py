"""A copy-on-write disk: changes stay in memory, above the files of another disk that is only read.

It lets the store check run the store's own recovery on a directory without modifying the directory.

Invariant: the disk below is only read. Rejected: a read-only switch through all of recovery (one place that
forgets to test it modifies the store) and a copy of the directory (stores are larger than the free space).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.store.disk import LOCAL_DISK, Disk, RecordReads, SyncReader


class NoLock:
    """A lock that does nothing: the creator of the overlay locks the directory below."""

    def release(self) -> None:
        """No-op."""


class OverlayDisk:
    """See disk.Disk. `below`: the disk that unchanged files are read from."""

    def __init__(self, below: Disk = LOCAL_DISK) -> None:
        self._below = below
        self._files: dict[Path, bytearray] = {}
        self._directories: set[Path] = set()
        self._gone: set[Path] = set()
        self._open: dict[int, Path] = {}
        self._next_fd = 1

    def put(self, path: Path, data: bytes) -> None:
        """Replaces the contents of a file in the overlay."""
        self._files[path] = bytearray(data)
        self._gone.discard(path)

    def reset(self) -> None:
        """Drops all changes."""
        self._files.clear()
        self._directories.clear()
        self._gone.clear()

    def _is_gone(self, path: Path) -> bool:
        return bool(self._gone) and (path in self._gone or any(up in self._gone for up in path.parents))

    def _missing(self, path: Path) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _changed(self, path: Path) -> bytearray:
        """Returns the writable copy of a file, created from the disk below on first use."""
        if path not in self._files:
            self._files[path] = bytearray(self.read(path) if self.exists(path) else b"")
            self._gone.discard(path)
        return self._files[path]

    def open(self, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        if not create and not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if truncate or not self.exists(path):
            self.put(path, b"")
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self._open[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file = self._changed(self._open[fd])
        if offset > len(file):
            file += bytes(offset - len(file))
        file[offset : offset + len(data)] = data
        return len(data)

    def sync(self, fd: int) -> None:
        """No-op: the overlay is never durable."""

    def read(self, path: Path) -> bytes:
        if path in self._files:
            return bytes(self._files[path])
        if self._is_gone(path):
            raise self._missing(path)
        return self._below.read(path)

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        if path in self._files or self._is_gone(path):
            return self.read(path)[offset : offset + count]
        return self._below.read_at(path, offset, count)

    def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        return SyncReader(self, files)

    def map(self, path: Path) -> memoryview:
        if path in self._files or self._is_gone(path):
            return memoryview(self.read(path))
        return self._below.map(path)

    def size(self, path: Path) -> int:
        if path in self._files or self._is_gone(path):
            return len(self.read(path))
        return self._below.size(path)

    def exists(self, path: Path) -> bool:
        if path in self._files or path in self._directories:
            return True
        return not self._is_gone(path) and self._below.exists(path)

    def names(self, directory: Path) -> list[str]:
        found: set[str] = set()
        if not self._is_gone(directory) and self._below.exists(directory):
            found.update(self._below.names(directory))
        elif directory not in self._directories:
            raise self._missing(directory)
        found = {name for name in found if directory / name not in self._gone}
        made = {path.name for path in (*self._files, *self._directories) if path.parent == directory}
        return sorted(found | made)

    def make_directory(self, path: Path) -> None:
        if not self.exists(path):
            self._directories.add(path)

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file. Directories are not supported; recovery never renames one."""
        data = self.read(old)
        self.unlink(old)
        self.put(new, data)

    def unlink(self, path: Path) -> None:
        self._files.pop(path, None)
        self._gone.add(path)

    def remove_tree(self, path: Path) -> None:
        for changed in [one for one in self._files if path in one.parents]:
            del self._files[changed]
        self._directories = {one for one in self._directories if one != path and path not in one.parents}
        self._gone.add(path)

    def sync_directory(self, path: Path) -> None:
        """No-op: the overlay is never durable."""

    def for_each(self, work: Callable[[Path], object], paths: Sequence[Path]) -> None:
        for path in paths:
            work(path)

    def lock(self, directory: Path) -> NoLock:
        return NoLock()
