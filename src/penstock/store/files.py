"""Small tools on files: names, atomic replacement, a bounded set of open files.

Invariants: a file that write_atomically() replaces is at any instant the old one or the new one; names made
by quote_name() hold no separator, no leading dot and nothing a shell or file system would take specially.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
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

NAME_BYTES_MAX = 200
"""Longer quoted names are cut and get a hash, so that suffixes fit into the 255 bytes of a file name."""

OPEN_FILES_MAX = 256

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_META_MAGIC = b"penstock"
FORMAT = 2
"""Version of the files of a stream and its consumers, in the first line of each meta file. A change to the
format of any file beside a meta raises it, so that an older penstock leaves the stream alone. Since version 2
the hash covers this line too; version 1 (penstock 0.1) is still read."""


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


def sync_directory(disk: Disk, directory: Path) -> None:
    """The names in a directory are on the disk. Raises StoreWriteError."""
    try:
        disk.sync_directory(directory)
    except OSError as error:
        raise StoreWriteError(f"cannot sync the directory: {error.strerror}", path=str(directory)) from error


def write_atomically(
    disk: Disk, path: Path, data: bytes, *, sync: bool = True, sync_name: bool = True
) -> None:
    """Replaces a file: after a crash it is the old one or the new one. Raises StoreWriteError.

    With `sync` that holds for a crash of the machine too; with `sync_name` it is the new one from now on.
    """
    temporary = path.with_name(path.name + ".new")
    try:
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
        disk.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # swept at the next start
            disk.unlink(temporary)
        raise StoreWriteError(f"cannot replace the file: {error.strerror}", path=str(path)) from error
    if sync and sync_name:
        sync_directory(disk, path.parent)


def pack_meta(name: str, meta: bytes) -> bytes:
    """A meta file: a line with format version and length of the name, the name, a hash of all, the meta."""
    raw = name.encode("utf-8", "surrogateescape")
    line = _META_MAGIC + b" %d %d" % (FORMAT, len(raw))
    return line + b"\n" + raw + b"\n" + b"%016x\n" % _meta_digest(FORMAT, line, raw, meta) + meta


def _meta_digest(version: int, line: bytes, name: bytes, meta: bytes) -> int:
    seed = 0 if version == 1 else xxh64_digest(line)
    return xxh64_digest(meta, xxh64_digest(name, seed))


def unpack_meta(files: OpenFiles, path: Path) -> tuple[str, bytes]:
    """Name and meta of a meta file.

    Raises StoreCorruptError when it is damaged, StoreFormatError when it is whole and of a newer format (the
    hash tells a newer version from a damaged digit), FileNotFoundError.
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
        raise StoreCorruptError(
            "its hash does not fit its bytes; restore the file, or move its directory away", path=str(path)
        )
    return raw.decode("utf-8", "surrogateescape"), meta


def replace_meta(files: OpenFiles, path: Path, name: str, old: bytes, new: bytes) -> None:
    """A meta file holds `new`, and that is on the disk. Raises StoreWriteError; it is the old one then,
    whose name a later sync has to cover."""
    try:
        files.replace(path, pack_meta(name, new))
    except StoreWriteError:
        try:  # what could not be replaced is the new one all the same when only the sync of its name failed
            if unpack_meta(files, path)[1] != old:
                files.replace(path, pack_meta(name, old), sync_name=False)
        except (StoreError, OSError) as error:
            logger.error("%s: the next start may find what was refused there: %s", path, error)
        raise


def list_assets(files: OpenFiles, directory: Path, meta_name: str) -> dict[str, Path]:
    """The directories of assets by name. One with a damaged meta goes by its directory's name, so that
    opening it tells what is wrong; one without is what a crash left of a creation, and nothing."""
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
    """Opening it will say the same: here it must not hide the others. (That there is no key concerns all.)"""
    if isinstance(error, StoreError) and not isinstance(error, StoreCorruptError | StoreFormatError):
        raise error
    if not isinstance(error, (StoreError, OSError)):
        faults.note(f"name in {meta}", error)


def names_in(disk: Disk, directory: Path) -> list[str]:
    """The names in a directory, sorted; none where there is no directory."""
    try:
        return disk.names(directory)
    except FileNotFoundError:
        return []


def remove_file(disk: Disk, path: Path) -> None:
    """Removes a file, when it is there. Raises StoreWriteError."""
    try:
        disk.unlink(path)
    except OSError as error:
        raise StoreWriteError(f"cannot remove the file: {error.strerror}", path=str(path)) from error


def make_directory(disk: Disk, path: Path, *, sync_name: bool = True) -> None:
    """Makes a directory and its parents, and syncs the names. Raises StoreWriteError."""
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
    """Removes an asset's tree so that a crash leaves it whole or out of sight. Raises StoreWriteError.

    meta: the name of the file without which a directory is no asset. With `sync_name`, power loss does not
    bring the asset back.
    """
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if disk.exists(hidden):
            sync_directory(disk, path.parent)  # it may have failed when the name was hidden
            _remove_hidden(disk, hidden, meta)
        disk.rename(path, hidden)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreWriteError(f"cannot remove the directory: {error.strerror}", path=str(path)) from error
    if sync_name:
        sync_directory(disk, path.parent)
    with contextlib.suppress(OSError):  # swept at the next start
        _remove_hidden(disk, hidden, meta)


def _remove_hidden(disk: Disk, hidden: Path, meta: str) -> None:
    """Its meta goes first. Power loss may take back the name that hides the tree and not the removals in it:
    without meta the rest is no asset, while a meta without the rest is one that lost its state."""
    disk.unlink(hidden / meta)
    disk.remove_tree(hidden)


def hide_directory(disk: Disk, path: Path, meta: str) -> Path | None:
    """The part of remove_directory() that does not take long: the asset is gone, also for a power loss, and
    its files wait in the directory that is returned. None: there was none. Raises StoreWriteError."""
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if disk.exists(hidden):
            sync_directory(disk, path.parent)
            _set_apart(disk, hidden, meta)
        disk.rename(path, hidden)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreWriteError(f"cannot remove the directory: {error.strerror}", path=str(path)) from error
    sync_directory(disk, path.parent)
    with contextlib.suppress(OSError):
        return _set_apart(disk, hidden, meta)
    return None  # swept at the next start, or before the next removal


def _set_apart(disk: Disk, hidden: Path, meta: str) -> Path:
    """What is hidden has no meta any more, and a name that nothing else gets: another asset may be made and
    hidden while this one's files are removed. No name of an asset has a dot in it (quote_name)."""
    disk.unlink(hidden / meta)
    count = 0
    while disk.exists(apart := hidden.with_name(f"{hidden.name}.{count}")):
        count += 1
    disk.rename(hidden, apart)
    return apart


def remove_hidden(disk: Disk, hidden: Path | None, *, files: str, directories: str) -> Iterator[None]:
    """Removes a hidden tree in steps: a file of one of its directories, a directory of another. What resists
    is swept at the next start."""
    if hidden is None:
        return
    with contextlib.suppress(OSError):
        for name in names_in(disk, hidden / files):
            disk.unlink(hidden / files / name)
            yield
        for name in names_in(disk, hidden / directories):
            disk.remove_tree(hidden / directories / name)
            yield
    disk.remove_tree(hidden)


def sweep_deleted(disk: Disk, directory: Path) -> None:
    """Removes what a crash left of remove_directory(). Raises StoreWriteError."""
    hidden = [directory / name for name in names_in(disk, directory) if name.startswith(".deleted-")]
    if hidden:
        sync_directory(disk, directory)  # the process may have been killed before it did
    for path in hidden:
        disk.remove_tree(path)


class OpenFiles:
    """At most `most` files open for writing, the least used closed first; they are opened when wanted.

    disk: where they are. vault: how what is in them is encrypted. background: who does what takes long.
    """

    def __init__(
        self,
        most: int = OPEN_FILES_MAX,
        disk: Disk = LOCAL_DISK,
        vault: FileCipher | None = None,
        background: DiskExecutor | None = None,
    ) -> None:
        assert most > 0
        self.disk = disk
        self.vault = FileCipher() if vault is None else vault
        self.background = InlineExecutor() if background is None else background
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
            self.disk.close(self._fds.popitem(last=False)[1])
        fd = self.disk.open(path)
        self._fds[path] = fd
        return fd

    def forget(self, path: Path) -> None:
        """Closes a file, when it is open."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            self.disk.close(fd)

    def close(self) -> None:
        """Closes all."""
        while self._fds:
            self.disk.close(self._fds.popitem()[1])

    def read(self, path: Path) -> bytes:
        """A small file, decrypted. Raises StoreCorruptError, StoreError without its key, OSError."""
        return self.vault.unseal(self.disk.read(path), path)

    def replace(self, path: Path, data: bytes, *, sync: bool = True, sync_name: bool = True) -> None:
        """write_atomically(), encrypted."""
        write_atomically(self.disk, path, self.vault.seal(data, path), sync=sync, sync_name=sync_name)

    def is_to_encrypt(self, path: Path) -> bool:
        """Is it a file of a store that got its key later?"""
        if not self.vault.encrypts or not self.disk.exists(path):
            return False
        head = self.disk.read_at(path, 0, HEAD.size)
        return len(head) > 0 and not is_enveloped(head)

    def encrypt(self, path: Path) -> tuple[bytes, int]:
        """A file of a store that got its key later is encrypted from now on. Head and size; empty when it
        needn't be. Raises StoreWriteError."""
        if not self.is_to_encrypt(path):
            return b"", 0
        data = self.disk.read(path)
        stored = self.vault.encode(data, path)
        self.forget(path)
        write_atomically(self.disk, path, stored)
        logger.warning("%s: encrypted, it was not before", path)
        return stored[: HEAD.size], len(stored)

    def write(self, path: Path, data: bytes | memoryview, offset: int) -> int:
        """Writes at an offset and returns how much went. Raises StoreWriteError when nothing did."""
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
        """The file's bytes are on the disk. Raises StoreWriteError."""
        try:
            self.disk.sync(self.fd(path))
        except OSError as error:
            raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error


def make_empty(disk: Disk, directory: Path, *, sync_name: bool = True) -> None:
    """A directory for a new asset; what a crash left of an earlier try goes."""
    if disk.exists(directory):
        disk.remove_tree(directory)
    make_directory(disk, directory, sync_name=sync_name)
