"""Small tools on files: names, atomic replacement, a bounded set of open files, the directory lock.

Invariants: a file that write_atomically() replaces is at any instant the old one or the new one; names made
by quote_name() hold no separator, no leading dot and nothing a shell or file system would take specially.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from pathlib import Path

from penstock.errors import StoreCorruptError, StoreLockedError, StoreWriteError
from penstock.kernels.records import xxh64_digest

NAME_BYTES_MAX = 200
"""Longer quoted names are cut and get a hash, so that suffixes fit into the 255 bytes of a file name."""

OPEN_FILES_MAX = 256

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_META_MAGIC = b"penstock"


def quote_name(name: str) -> str:
    """The name of the directory for an asset: what is not a letter, digit, `_` or `-` becomes %XX."""
    raw = name.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(quoted) > NAME_BYTES_MAX:
        return f"{quoted[: NAME_BYTES_MAX - 17]}%{xxh64_digest(raw):016x}"
    return quoted


def unquote_name(quoted: str) -> str:
    """The name quote_name() made a directory's name of, when it wasn't too long to keep."""
    parts = quoted.split("%")
    raw = parts[0].encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in parts[1:])
    return raw.decode("utf-8", "surrogateescape")


def sync_directory(directory: Path) -> None:
    """The names in a directory are on the disk. Raises StoreWriteError."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreWriteError(f"cannot sync the directory: {error.strerror}", path=str(directory)) from error


def write_atomically(path: Path, data: bytes, *, sync: bool = True, sync_name: bool = True) -> None:
    """Replaces a file: after a crash it is the old one or the new one. Raises StoreWriteError.

    With `sync` that holds for a crash of the machine too; with `sync_name` it is the new one from now on.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreWriteError(f"cannot replace the file: {error.strerror}", path=str(path)) from error
    if sync and sync_name:
        sync_directory(path.parent)


def pack_meta(name: str, meta: bytes) -> bytes:
    """A meta file: one line with format, hash and name, then the meta as it was given."""
    raw = name.encode("utf-8", "surrogateescape")
    head = _META_MAGIC + b" 1 %d\n" % len(raw) + raw + b"\n"
    return head + b"%016x\n" % xxh64_digest(meta, xxh64_digest(raw)) + meta


def unpack_meta(path: Path) -> tuple[str, bytes]:
    """Name and meta of a meta file. Raises StoreCorruptError when it is damaged, FileNotFoundError."""
    data = path.read_bytes()
    try:
        line, _, rest = data.partition(b"\n")
        magic, version, length = line.split(b" ")
        raw, rest = rest[: int(length)], rest[int(length) :]
        digest, meta = rest[1:17], rest[18:]
        intact = (magic, version, rest[:1], rest[17:18]) == (_META_MAGIC, b"1", b"\n", b"\n")
        intact = intact and int(digest, 16) == xxh64_digest(meta, xxh64_digest(raw))
    except ValueError:
        intact = False
    if not intact:
        raise StoreCorruptError(
            "its hash does not fit its bytes; restore the file, or move its directory away", path=str(path)
        )
    return raw.decode("utf-8", "surrogateescape"), meta


def list_assets(directory: Path, meta_name: str) -> dict[str, Path]:
    """The directories of assets by name. One with a damaged meta goes by its directory's name, so that
    opening it tells what is wrong; one without is what a crash left of a creation, and nothing."""
    found: dict[str, Path] = {}
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return found
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith(".") or not (path / meta_name).exists():
            continue
        try:
            name, _ = unpack_meta(path / meta_name)
        except StoreCorruptError:
            name = entry.name
        found[name] = path
    return found


def make_directory(path: Path, *, sync_name: bool = True) -> None:
    """Makes a directory and its parents, and syncs the names. Raises StoreWriteError."""
    missing = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o750)
    except OSError as error:
        raise StoreWriteError(f"cannot make the directory: {error.strerror}", path=str(path)) from error
    for made in missing if sync_name else ():
        sync_directory(made.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory with what is in it; what resists stays, out of sight, for the next start."""
    import shutil  # half of what a server's start-up would pay for this module, and few starts need it

    shutil.rmtree(path, ignore_errors=True)


def remove_directory(path: Path, *, sync_name: bool = True) -> None:
    """Removes a tree so that a crash leaves it whole or out of sight. Raises StoreWriteError."""
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if hidden.exists():
            remove_tree(hidden)
        os.rename(path, hidden)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreWriteError(f"cannot remove the directory: {error.strerror}", path=str(path)) from error
    if sync_name:
        sync_directory(path.parent)
    remove_tree(hidden)


def sweep_deleted(directory: Path) -> None:
    """Removes what a crash left of remove_directory()."""
    for hidden in directory.glob(".deleted-*"):
        remove_tree(hidden)


class OpenFiles:
    """At most `most` files open for writing, the least used closed first; they are opened when wanted."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        assert most > 0
        self._most = most
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, path: Path) -> int:
        """A descriptor for reading and writing; the file is made when it isn't there. Raises OSError."""
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        while len(self._fds) >= self._most:
            os.close(self._fds.popitem(last=False)[1])
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._fds[path] = fd
        return fd

    def forget(self, path: Path) -> None:
        """Closes a file, when it is open."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Closes all."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def write(self, path: Path, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset and returns how much went. Raises StoreWriteError when nothing did."""
        try:
            count = os.pwrite(self.fd(path), data, offset)
        except OSError as error:
            raise StoreWriteError(
                f"cannot write {len(data)} bytes at {offset}: {error.strerror}", path=str(path)
            ) from error
        if count == 0 and len(data):
            raise StoreWriteError(
                f"cannot write {len(data)} bytes at {offset}: none were taken", path=str(path)
            )
        return count

    def sync(self, path: Path) -> None:
        """The file's bytes are on the disk. Raises StoreWriteError."""
        try:
            os.fdatasync(self.fd(path))
        except OSError as error:
            raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error


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
