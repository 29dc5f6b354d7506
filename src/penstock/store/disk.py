"""The seam between the store and the operating system: every operation on a file goes through a Disk.

LocalDisk is the real one. The simulator has another (testing/sim/sim_disk.py) that tears, loses and reorders
what was not synced, runs full and fails. So nothing else in this package may touch a file by other means.

Invariants: methods raise OSError as `os` does, callers make StoreErrors of it; a Disk knows nothing of what
is in the files. Rejected: patching `os` in tests (what is forgotten there silently touches the real disk).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Protocol

from penstock.errors import StoreLockedError, StoreWriteError
from penstock.kernels.log.read_ahead import Reading

PIECE = struct.Struct("=2I")
"""Offset and size of a piece that is wanted of a file."""


class RecordReads(Protocol):
    """What was asked of some files, perhaps still on its way."""

    def take(self) -> bytes:
        """All of it, one piece behind the other; zeros where a file ends too early. Raises OSError."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Gives it back. Twice is fine."""


class Disk(Protocol):
    """What the store asks of an operating system. Each method raises OSError."""

    def open(self, path: Path, *, truncate: bool = False) -> int:
        """A descriptor for reading and writing; the file is made when it isn't there."""

    def close(self, fd: int) -> None:
        """Lets a descriptor go."""

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset; returns how much went."""

    def sync(self, fd: int) -> None:
        """The file's bytes (and its size) are on the disk."""

    def read(self, path: Path) -> bytes:
        """All of a file."""

    def read_at(self, path: Path, offset: int, count: int) -> bytes:
        """A piece of a file, shorter where it ends."""

    def read_pieces(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
        """Several pieces (a PIECE each) of each file; os.fsencode() makes the names. Returns before they are
        read, as far as that is faster."""

    def map(self, path: Path) -> memoryview:
        """A file's bytes. What the disk can't read is told now, not by a signal when it is touched."""

    def size(self, path: Path) -> int:
        """Bytes of a file."""

    def exists(self, path: Path) -> bool:
        """Is there a file or directory of that name?"""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted."""

    def make_directory(self, path: Path) -> None:
        """A new directory in a present one; fine when it is there already."""

    def rename(self, old: Path, new: Path) -> None:
        """Gives a file or directory another name, at once; a file of that name is replaced."""

    def unlink(self, path: Path) -> None:
        """Removes a file; fine when there is none."""

    def remove_tree(self, path: Path) -> None:
        """Removes a directory with what is in it; what resists stays, and nothing is raised."""

    def sync_directory(self, path: Path) -> None:
        """The names in a directory are on the disk."""

    def lock(self, directory: Path) -> Lock:
        """The directory for this process alone. Raises StoreLockedError when another one has it,
        StoreWriteError when it can't be locked."""


class SyncReader:
    """Disk.read_pieces() by read_at(), for disks that nobody is in a hurry with."""

    def __init__(self, disk: Disk, files: list[tuple[bytes, bytes]]) -> None:
        self._data = b"".join(
            disk.read_at(Path(os.fsdecode(path)), offset, size).ljust(size, b"\0")
            for path, pieces in files
            for offset, size in PIECE.iter_unpack(pieces)
        )

    def take(self) -> bytes:
        return self._data


_MADV_POPULATE_READ = 22


def populate(mapped: mmap.mmap) -> None:
    """Reads all of a mapped file into the page cache, so that touching it raises no SIGBUS: a bad sector
    would else end the process. Raises OSError: EIO for what can't be read, EINVAL where the kernel can't.

    With the pages in the cache it takes 5 us for 8 MiB that were written at once, and some 300 us for a block
    that grew by small writes, whose pages are small (reading 8 MiB into memory of our own: 900 us). What is
    left is a sector that was read, left the cache under pressure, and can't be read again.
    """
    try:
        mapped.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise
        raise OSError(errno.EIO, os.strerror(errno.EIO)) from error


class LocalDisk:
    """The machine's files; see Disk."""

    def open(self, path: Path, *, truncate: bool = False) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
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

    def read_pieces(self, files: list[tuple[bytes, bytes]]) -> RecordReads:
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

    def lock(self, directory: Path) -> Lock:
        return DirectoryLock(directory)


LOCAL_DISK = LocalDisk()


class DirectoryLock:
    """An exclusive lock on a store directory, held until release() or the end of the process."""

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
        """Gives the lock back. Twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
