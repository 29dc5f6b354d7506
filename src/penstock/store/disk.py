"""The interface between the store and the operating system: every file operation goes through a Disk.

LocalDisk is the real one. The simulator has another (testing/sim/sim_disk.py) that tears, loses and reorders
unsynced writes, runs full and fails. No other module of this package may therefore access files directly.

Invariants: methods raise OSError as `os` does, and callers convert it to a StoreError; a Disk does not
interpret file contents. Rejected: patching `os` in tests (a forgotten patch silently modifies the real disk).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.errors import StoreLockedError, StoreWriteError
from penstock.kernels.log.record_reads import Reading

SYNC_THREADS = 8
THREADED_SYNCS = 8
"""Fewer syncs than that run one by one."""
FILE_RANGE = struct.Struct("=2I")
"""Offset and size of a piece that is wanted of a file."""


class RecordReads(Protocol):
    """Ranges requested from some files; the reads may still be in flight."""

    def take(self) -> bytes:
        """Waits for and returns all ranges, concatenated; zeros where a file ends early. Raises OSError."""


class Lock(Protocol):
    """An acquired lock."""

    def release(self) -> None:
        """Releases the lock. Releasing twice is allowed."""


class Disk(Protocol):
    """The file operations of the store. Each method raises OSError."""

    def open(self, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        """Opens a file for reading and writing, and creates it when missing, if `create`. Returns the
        descriptor."""

    def close(self, fd: int) -> None:
        """Closes a descriptor."""

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset. Returns the number of bytes written, which may be less than requested."""

    def sync(self, fd: int) -> None:
        """Makes the file's bytes and size durable."""

    def read(self, path: Path) -> bytes:
        """Reads a whole file."""

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        """Reads up to `count` bytes at an offset; fewer where the file ends."""

    def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        """Reads several ranges (a FILE_RANGE each) of each file, named by os.fsencode(). May return before
        the reads are done."""

    def map(self, path: Path) -> memoryview:
        """Maps a file's bytes. Raises OSError now for unreadable sectors; a later access must not raise
        SIGBUS."""

    def size(self, path: Path) -> int:
        """Size of a file in bytes."""

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of that name exists."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def make_directory(self, path: Path) -> None:
        """Creates a directory in an existing one. No-op when it exists."""

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file or directory atomically; replaces an existing file of that name."""

    def unlink(self, path: Path) -> None:
        """Removes a file. No-op when it does not exist."""

    def remove_tree(self, path: Path) -> None:
        """Removes a directory and its contents. Leaves what cannot be removed, and raises nothing."""

    def sync_directory(self, path: Path) -> None:
        """Makes the names in a directory durable."""

    def for_each(self, work: Callable[[Path], object], paths: Sequence[Path]) -> None:
        """Calls work(path), a sync, for each path; several at once if that is faster. Raises one of the
        errors that they raise, after all have ended. Thread-safe."""

    def lock(self, directory: Path) -> Lock:
        """Locks the directory for this process. Raises StoreLockedError when another process has locked it,
        StoreWriteError when locking fails."""


class SyncReader:
    """Implements Disk.read_ranges() with read_at(), for disks without asynchronous reads."""

    def __init__(self, disk: Disk, files: list[tuple[bytes, bytes]]) -> None:
        self._data = b"".join(
            disk.read_at(Path(os.fsdecode(path)), offset, size).ljust(size, b"\0")
            for path, ranges in files
            for offset, size in FILE_RANGE.iter_unpack(ranges)
        )

    def take(self) -> bytes:
        return self._data


_MADV_POPULATE_READ = 22


def populate(mapped: mmap.mmap) -> None:
    """Reads all of a mapped file into the page cache, so that accessing the mapping raises no SIGBUS: a bad
    sector would otherwise end the process. Raises OSError: EIO for unreadable sectors, EINVAL on kernels
    without the call.

    With the pages in the cache it takes 5 us for 8 MiB that were written at once, and about 300 us for a
    block that grew by small writes, whose pages are small (reading 8 MiB into our own memory: 900 us). One
    risk remains: a sector that was read, left the cache under memory pressure, and cannot be read again.
    """
    try:
        mapped.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from error


class LocalDisk:
    """The file system of this machine; see Disk."""

    def open(self, path: Path, *, truncate: bool = False, create: bool = True) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_TRUNC if truncate else flags, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        with path.open("rb") as file:
            return os.pread(file.fileno(), count, offset)

    def read_ranges(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        return Reading(files)

    def map(self, path: Path) -> memoryview:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            try:
                populate(mapped)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return memoryview(file.read())  # Linux before 5.14
            return memoryview(mapped)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True, mode=0o750)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        import shutil  # half of what a server's start-up would pay for this module, and few starts need it

        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def for_each(self, work: Callable[[Path], object], paths: Sequence[Path]) -> None:
        # A file system commits syncs that come at once together: of a thousand new files and directories it
        # took 3.6 s one by one, and 0.15 s from eight threads.
        if len(paths) < THREADED_SYNCS:
            for path in paths:
                work(path)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync") as threads:
            calls = [threads.submit(work, path) for path in paths]
        for call in calls:
            call.result()

    def lock(self, directory: Path) -> Lock:
        return DirectoryLock(directory)


LOCAL_DISK = LocalDisk()


class DirectoryLock:
    """An exclusive lock on a store directory, until release() or the end of the process."""

    def __init__(self, directory: Path) -> None:
        path = directory / ".lock"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise StoreWriteError(f"cannot open the lock file: {error.strerror}", path=str(path)) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 64, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreWriteError(f"cannot lock: {error.strerror}", path=str(path)) from error
            raise StoreLockedError(
                f"process {holder} uses this store directory; stop it, or give this server another one",
                path=str(directory),
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Releases the lock. Releasing twice is allowed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
