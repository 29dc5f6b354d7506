"""File utilities: names, atomic replacement, and a bounded set of open files.

Invariants: a file replaced by write_atomically() is at any instant either the old or the new one; names from
quote_name() contain no separator, no leading dot and nothing special to a shell or file system.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock import faults
from penstock.errors import StoreCorruptError, StoreError, StoreFormatError, StoreWriteError
from penstock.kernels.log.records import xxh64_digest
from penstock.store.disk import LOCAL_DISK, Disk
from penstock.store.envelope import HEAD, FileCipher, is_enveloped
from penstock.store.executor import DiskExecutor, InlineExecutor

logger = logging.getLogger("penstock.store")

META = "meta"
"""The file that makes a directory a stream or a consumer."""

MESSAGES, CONSUMERS = "msgs", "consumers"
"""Directories of a stream: the files of its blocks, and its consumers."""

SPILLED = "spilled"
"""Blocks of a replicated stream that memory has no room for (replica_store.py)."""

NAME_BYTES_MAX = 200
"""Longer quoted names are truncated and get a hash, so that suffixes fit into the 255 bytes of a file
name."""

OPEN_FILES_MAX = 256

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_META_MAGIC = b"penstock"
FORMAT = 2
"""Version of the files of a stream and its consumers, in the first line of each meta file. A change to the
format of any file beside a meta raises it, so that an older penstock leaves the stream alone. Since version 2
the hash covers this line too; version 1 (penstock 0.1) is still read."""


def quote_name(name: str) -> str:
    """The directory name of an asset: every byte other than a letter, digit, `_` or `-` becomes %XX."""
    raw = name.encode("utf-8", "surrogateescape")
    quoted = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if len(quoted) > NAME_BYTES_MAX:
        return f"{quoted[: NAME_BYTES_MAX - 17]}%{xxh64_digest(raw):016x}"
    return quoted


def unquote_name(quoted: str) -> str:
    """The inverse of quote_name(), for names that were not truncated."""
    parts = quoted.split("%")
    raw = parts[0].encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in parts[1:])
    return raw.decode("utf-8", "surrogateescape")


def sync_directory(disk: Disk, directory: Path) -> None:
    """Makes the names in a directory durable. Raises StoreWriteError."""
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise StoreWriteError(f"cannot sync the directory: {error.strerror}", path=str(directory)) from error


def sync_file(disk: Disk, path: Path) -> None:
    """Syncs the bytes of a file. Safe in any thread. Raises StoreWriteError."""
    try:
        # Not created: the path may belong to a new stream or consumer by now.
        fd = disk.open(path, create=False)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
    except FileNotFoundError:
        return  # its block or its directory was deleted meanwhile
    except OSError as error:
        raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error


class Permit:
    """Lets background work change names in a directory, until the owner gives the directory up.

    A deleted stream or consumer does not wait for its work in flight, and another one of the same name may
    get a directory of the same path at once: late work would change the files of that one. Such work enters
    the permit for each single change of a name; after revoke() entering raises FileNotFoundError. The lock is
    not held while file contents are written or synced, so revoke() does not wait for these.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_revoked = False

    def revoke(self) -> None:
        """Ends the permit. On return no change of a name is in progress."""
        with self._lock:
            self.is_revoked = True

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Around the change of a name. Whatever raises, the lock is released: revoke() runs in the event
        loop's thread. Raises FileNotFoundError after revoke()."""
        with self._lock:
            if self.is_revoked:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            yield


def write_atomically(
    disk: Disk,
    path: Path,
    data: bytes | bytearray | memoryview,
    *,
    sync: bool = True,
    sync_name: bool = True,
    permit: Permit | None = None,
) -> None:
    """Replaces a file: after a crash it is either the old or the new one. Raises StoreWriteError.

    `sync`: this also holds for a crash of the machine. `sync_name`: the new file is durable on return.
    `permit`: of background work.
    """
    temporary = path.with_name(path.name + ".new")
    permitted = contextlib.nullcontext if permit is None else permit.entered
    try:
        with permitted():
            fd = disk.open(temporary, truncate=True)
        try:
            written = 0
            with memoryview(data) as view:
                while written < len(data):
                    with view[written:] as rest:
                        written += disk.write(fd, rest, written)
            if sync:
                disk.sync(fd)
        finally:
            disk.close(fd)
        with permitted():
            disk.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError), permitted():  # the next start removes it
            disk.unlink(temporary)
        raise StoreWriteError(f"cannot replace the file: {error.strerror}", path=str(path)) from error
    if sync and sync_name:
        sync_directory(disk, path.parent)


def pack_meta(name: str, meta: bytes) -> bytes:
    """Encodes a meta file: a line with format version and name length, the name, a hash of everything, the
    meta."""
    raw = name.encode("utf-8", "surrogateescape")
    line = _META_MAGIC + b" %d %d" % (FORMAT, len(raw))
    return line + b"\n" + raw + b"\n" + b"%016x\n" % _meta_digest(FORMAT, line, raw, meta) + meta


def _meta_digest(version: int, line: bytes, name: bytes, meta: bytes) -> int:
    seed = 0 if version == 1 else xxh64_digest(line)
    return xxh64_digest(meta, xxh64_digest(name, seed))


def unpack_meta(files: OpenFiles, path: Path) -> tuple[str, bytes]:
    """Returns name and meta of a meta file.

    Raises StoreCorruptError when it is damaged, StoreFormatError when it is intact but of a newer format (the
    hash distinguishes a newer version from a damaged digit), FileNotFoundError.
    """
    data = files.read(path)
    version = 0
    try:
        line, _, rest = data.partition(b"\n")
        magic, number, length = line.split(b" ")
        version = int(number)
        raw, rest = rest[: int(length)], rest[int(length) :]
        digest, meta = rest[1:17], rest[18:]
        intact = (magic, rest[:1], rest[17:18]) == (_META_MAGIC, b"\n", b"\n") and version >= 1
        intact = intact and int(digest, 16) == _meta_digest(version, line, raw, meta)
    except ValueError:
        intact = False
    if intact and version > FORMAT:
        raise StoreFormatError(
            f"written by a newer penstock (format {version}, this one reads up to {FORMAT}); start that "
            "version, or restore a backup",
            path=str(path),
        )
    if not intact:
        raise StoreCorruptError("hash mismatch; restore the file, or move its directory away", path=str(path))
    return raw.decode("utf-8", "surrogateescape"), meta


def replace_meta(files: OpenFiles, path: Path, name: str, old: bytes, new: bytes) -> None:
    """Replaces a meta file durably. Raises StoreWriteError; the old meta is then restored, and its name is
    left for a later sync."""
    try:
        files.replace(path, pack_meta(name, new))
    except StoreWriteError:
        # When only the sync of the name failed, the file is the new one already. The caller reports failure,
        # so the next start must not find it.
        try:
            if unpack_meta(files, path)[1] != old:
                files.replace(path, pack_meta(name, old), sync_name=False)
        except (StoreError, OSError) as error:
            logger.error("%s: the next start may find the rejected version: %s", path, error)
        raise


def list_assets(files: OpenFiles, directory: Path, meta_name: str) -> dict[str, Path]:
    """The directories of assets, by name. An asset with a damaged meta is listed under its directory's name,
    so that opening it reports the damage. A directory without meta is an incomplete creation, and ignored."""
    found: dict[str, Path] = {}
    disk = files.disk
    for entry in names_in(disk, directory):
        path = directory / entry
        if entry.startswith(".") or not disk.exists(path / meta_name):
            continue
        found[faults.contain(_name_in, _unreadable, files, path / meta_name) or entry] = path
    return found


def _name_in(files: OpenFiles, meta: Path) -> str:
    name, _ = unpack_meta(files, meta)
    return name


def _unreadable(error: Exception, files: OpenFiles, meta: Path) -> None:
    """Ignores a damaged meta while listing, since opening that asset reports it. Raises a missing key, which
    concerns every asset."""
    if isinstance(error, StoreError) and not isinstance(error, StoreCorruptError | StoreFormatError):
        raise error
    if not isinstance(error, (StoreError, OSError)):
        faults.note(f"name in {meta}", error)


def names_in(disk: Disk, directory: Path) -> list[str]:
    """The names in a directory, sorted; empty when there is no such directory."""
    try:
        return disk.names(directory)
    except FileNotFoundError:
        return []


def remove_file(disk: Disk, path: Path) -> None:
    """Removes a file, if it exists. Raises StoreWriteError."""
    try:
        disk.unlink(path)
    except OSError as error:
        raise StoreWriteError(f"cannot remove the file: {error.strerror}", path=str(path)) from error


def make_directory(disk: Disk, path: Path, *, sync_name: bool = True) -> None:
    """Creates a directory and its parents, and syncs the names. Raises StoreWriteError."""
    missing = []
    at = path
    while not disk.exists(at):
        missing.append(at)
        at = at.parent
    try:
        for wanted in reversed(missing):
            disk.make_directory(wanted)
    except NotADirectoryError as error:
        raise StoreWriteError("storage directory is not a directory", path=str(path)) from error
    except OSError as error:
        raise StoreWriteError(f"cannot make the directory: {error.strerror}", path=str(path)) from error
    for made in missing if sync_name else ():
        sync_directory(disk, made.parent)


def remove_directory(disk: Disk, path: Path, meta: str, *, sync_name: bool = True) -> None:
    """Removes an asset's tree; after a crash it is either complete or invisible. Raises StoreWriteError.

    `meta`: name of the file without which a directory is no asset. `sync_name`: the removal survives power
    loss.
    """
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if disk.exists(hidden):
            sync_directory(disk, path.parent)  # an earlier attempt may have failed to
            _remove_hidden(disk, hidden, meta)
        disk.rename(path, hidden)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreWriteError(f"cannot remove the directory: {error.strerror}", path=str(path)) from error
    if sync_name:
        sync_directory(disk, path.parent)
    with contextlib.suppress(OSError):  # the next start removes it
        _remove_hidden(disk, hidden, meta)


def _remove_hidden(disk: Disk, hidden: Path, meta: str) -> None:
    """Removes a hidden tree, its meta first.

    A power loss may undo the rename that hides the tree but keep removals inside it. A directory without meta
    is no asset; a meta without the files would be an asset that lost its state.
    """
    disk.unlink(hidden / meta)
    disk.remove_tree(hidden)


def hide_directory(disk: Disk, path: Path, meta: str) -> Path | None:
    """The fast part of remove_directory(): makes the asset invisible, durably, and returns the directory with
    the files left to remove, or None when there was none. Raises StoreWriteError.

    The parent is synced here and not in the background: the answer of STREAM.DELETE depends on it. It says
    that the stream stays deleted, or error 10050 when a restart could bring it back, and a create that
    follows it finds the name free. The meta may go only after the sync, too (see _remove_hidden).
    """
    hidden, apart = path.with_name(f".deleted-{path.name}"), None
    try:
        if disk.exists(hidden):  # an earlier attempt failed to sync
            sync_directory(disk, path.parent)
            apart = _set_apart(disk, hidden, meta)
        disk.rename(path, hidden)
    except FileNotFoundError:
        return apart
    except OSError as error:
        raise StoreWriteError(f"cannot remove the directory: {error.strerror}", path=str(path)) from error
    sync_directory(disk, path.parent)
    with contextlib.suppress(OSError):
        return _set_apart(disk, hidden, meta)
    return None  # the next start or the next removal removes it


def _set_apart(disk: Disk, hidden: Path, meta: str) -> Path:
    """Removes the meta of a hidden tree and gives it a unique name, so that an asset of the same name can be
    created and deleted while these files are removed. Names of assets contain no dot (quote_name)."""
    disk.unlink(hidden / meta)
    count = 0
    while disk.exists(apart := hidden.with_name(f"{hidden.name}.{count}")):
        count += 1
    disk.rename(hidden, apart)
    return apart


def _removal_steps(disk: Disk, hidden: Path) -> Iterator[None]:
    for files in (MESSAGES, SPILLED):
        with contextlib.suppress(OSError):
            for name in names_in(disk, hidden / files):
                disk.unlink(hidden / files / name)
                yield
    with contextlib.suppress(OSError):
        for name in names_in(disk, hidden / CONSUMERS):
            disk.remove_tree(hidden / CONSUMERS / name)
            yield
    disk.remove_tree(hidden)


def sweep_deleted(disk: Disk, directory: Path) -> None:
    """Removes the trees that an interrupted remove_directory() left. Raises StoreWriteError."""
    hidden = [directory / name for name in names_in(disk, directory) if name.startswith(".deleted-")]
    if hidden:
        sync_directory(disk, directory)  # the process may have died before it synced the hidden names
    for path in hidden:
        disk.remove_tree(path)


class _Removal:
    """Runs the steps of a removal in an executor, one after the other, so that syncs come in between.

    `steps`: each removes a file. `is_closed`: no further step begins then.
    """

    def __init__(self, executor: DiskExecutor, steps: Iterator[None], is_closed: Callable[[], bool]) -> None:
        self._executor = executor
        self._steps = steps
        self._is_closed = is_closed
        self._is_done = self._is_busy = self._is_starting = False

    def advance(self) -> None:
        """Begins the next step, unless one is in progress. An executor may run it within this call."""
        if self._is_starting:
            return
        self._is_starting = True
        while not (self._is_busy or self._is_done or self._is_closed()):
            self._is_busy = True
            self._executor.run(self._step, self._stepped, self)
        self._is_starting = False

    def _step(self) -> bool:
        return next(self._steps, self) is self

    def _stepped(self, is_last: bool | None, error: Exception | None) -> None:
        self._is_busy = False
        self._is_done = error is not None or is_last is True
        self.advance()


class OpenFiles:
    """Up to `most` files open for writing; opens on demand and closes the least recently used.

    `disk`: where they are. `file_cipher`: how they are encrypted. `executor`: runs slow disk work.
    """

    def __init__(
        self,
        most: int = OPEN_FILES_MAX,
        disk: Disk = LOCAL_DISK,
        file_cipher: FileCipher | None = None,
        executor: DiskExecutor | None = None,
    ) -> None:
        assert most > 0
        self.disk = disk
        self.file_cipher = FileCipher() if file_cipher is None else file_cipher
        self.executor = InlineExecutor() if executor is None else executor
        self._most = most
        self._fds: OrderedDict[Path, int] = OrderedDict()
        # The last entry, for writes to the same file again: hashing a Path is a tenth of a small write.
        self._last_path: Path | None = None
        self._last_fd = -1
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, path: Path) -> int:
        """A descriptor for reading and writing; creates the file when missing. Raises OSError."""
        if path is self._last_path:
            return self._last_fd
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
        else:
            while len(self._fds) >= self._most:
                self.forget(next(iter(self._fds)))
            fd = self.disk.open(path)
            self._fds[path] = fd
        self._last_path, self._last_fd = path, fd
        return fd

    def forget(self, path: Path) -> None:
        """Closes a file, if it is open."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            self._last_path = None
            self.disk.close(fd)

    def forget_below(self, directory: Path) -> None:
        """Closes the open files of a directory: when it is removed, another asset may get its name, and must
        not write into files that are gone."""
        for path in [path for path in self._fds if path.parent == directory]:
            self.forget(path)

    def remove_hidden(self, hidden: Path | None) -> None:
        """Removes the hidden tree of a stream in the executor, one block file or consumer at a time. While
        pages of a file are being written, its removal takes 0.1 s. The next start removes what is left when
        the store is closed."""
        if hidden is not None:
            steps = _removal_steps(self.disk, hidden)
            _Removal(self.executor, steps, lambda: self._is_closed).advance()

    def close(self) -> None:
        """Closes all files."""
        self._is_closed = True
        while self._fds:
            self.forget(next(iter(self._fds)))

    def read(self, path: Path) -> bytes:
        """Reads and decrypts a small file. Raises StoreCorruptError, StoreError without the key, OSError."""
        return self.file_cipher.unseal(self.disk.read(path), path)

    def replace(
        self,
        path: Path,
        data: bytes | bytearray,
        *,
        sync: bool = True,
        sync_name: bool = True,
        permit: Permit | None = None,
    ) -> None:
        """write_atomically() with encryption."""
        sealed = self.file_cipher.seal(data, path)
        write_atomically(self.disk, path, sealed, sync=sync, sync_name=sync_name, permit=permit)

    def is_to_encrypt(self, path: Path) -> bool:
        """Whether a file is plain although the store has a key, which was configured after it was written."""
        if not self.file_cipher.encrypts or not self.disk.exists(path):
            return False
        head = self.disk.read_at(path, 0, HEAD.size)
        return len(head) > 0 and not is_enveloped(head)

    def encrypt(self, path: Path) -> tuple[bytes, int]:
        """Encrypts a plain file of a store that got its key later. Returns head and size of the new file;
        (b"", 0) when nothing was to do. Raises StoreWriteError."""
        if not self.is_to_encrypt(path):
            return b"", 0
        data = self.disk.read(path)
        stored = self.file_cipher.encode(data, path)
        self.forget(path)
        write_atomically(self.disk, path, stored)
        logger.warning("%s: encrypted; it was plain before", path)
        return stored[: HEAD.size], len(stored)

    def write(self, path: Path, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset and returns the number of bytes written, at least 1. Raises StoreWriteError
        when none were."""
        try:
            count = self.disk.write(self.fd(path), data, offset)
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
        """Syncs the file's bytes. Raises StoreWriteError."""
        try:
            self.disk.sync(self.fd(path))
        except OSError as error:
            raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error


def make_empty(disk: Disk, directory: Path, *, sync_name: bool = True) -> None:
    """Creates an empty directory for a new asset, and removes what an interrupted creation left."""
    if disk.exists(directory):
        disk.remove_tree(directory)
    make_directory(disk, directory, sync_name=sync_name)
