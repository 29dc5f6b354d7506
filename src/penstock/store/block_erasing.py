"""Overwrites the records of securely removed messages in one block's file; erasures.py says when.

A plain file gets tombstones of the same size in place. An encrypted or compressed file is replaced by one
without the records, and the old one, which no name refers to any more, is zeroed.

Ordering: the index of the block still counts the removed messages, so its removal is durable before a record
changes. Were it to reappear after a power loss, a subject would count the message as long as the block
exists. Without an index, recovery scans the block and finds the tombstone.

overwrite() and zero() are safe in any thread. They are separate because a reader in another thread may have
opened the old file: it is zeroed once that thread knows of the new one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from penstock.errors import StoreError
from penstock.store.block_reading import (
    FILE_HEAD_BYTES,
    BlockReader,
    block_path,
    index_path,
    is_self_contained,
    map_file,
)
from penstock.store.disk import Disk
from penstock.store.envelope import is_enveloped
from penstock.store.erasures import Patch
from penstock.store.files import OpenFiles, Permit, sync_directory, write_atomically

logger = logging.getLogger("penstock.store")

ZEROS_BYTES = 1 << 20  # written at once


class OldFile(NamedTuple):
    """A replaced file that is still open."""

    path: Path
    fd: int
    size: int


class Overwritten(NamedTuple):
    """What became of the records of a block. needs_rewrite: nothing, only a rewrite of the block removes
    them. old: the file to zero(), if any."""

    needs_rewrite: bool = False
    old: OldFile | None = None


def plain_of_envelope(files: OpenFiles, path: Path) -> bytearray | None:
    """The plain bytes of an encrypted or compressed file, None for a plain file. Raises OSError,
    StoreError."""
    if not is_enveloped(files.disk.read_at(path, 0, FILE_HEAD_BYTES)):
        return None
    return files.file_cipher.decode(map_file(files.disk, path), path).data


def log_unreadable(path: Path, error: Exception) -> None:
    """An unreadable file stays as it is: the tombstones exist elsewhere too, and reading the block reports
    what is lost."""
    logger.error("%s: cannot be read; securely removed records may still be in it: %s", path, error)


def overwrite(
    files: OpenFiles,
    directory: Path,
    reader: BlockReader,
    number: int,
    patches: list[Patch],
    *,
    compress: bool,
    permit: Permit,
    indexed: int | None = None,
) -> Overwritten:
    """Overwrites records of a closed block; on return they are overwritten on disk. indexed: see
    is_self_contained(). Raises StoreError, OSError: it can be repeated."""
    disk, path, index = files.disk, block_path(directory, number), index_path(directory, number)
    has_index = disk.exists(index)
    try:
        if has_index and not is_self_contained(number, reader.read(number), indexed):
            return Overwritten(needs_rewrite=True)
        plain = plain_of_envelope(files, path)
    except (OSError, StoreError) as error:
        if not permit.is_revoked:
            log_unreadable(path, error)
        return Overwritten()
    if has_index:
        with permit.entered():
            disk.unlink(index)
        sync_directory(disk, directory)
    # Within the permit, so that it is a file of this stream. Its descriptor stays that even when another
    # stream gets the name.
    with permit.entered():
        fd = disk.open(path, create=False)
    if plain is None:
        try:
            for patch in patches:
                _write_all(disk, fd, patch.data, patch.offset)
            # With the descriptor that wrote: a failed sync of another one would report the lost bytes there.
            disk.sync(fd)
        finally:
            disk.close(fd)
        return Overwritten()
    try:
        apply_patches(plain, patches)
        old = OldFile(path, fd, disk.size(path))
        stored = files.file_cipher.encode(plain, path, compress=compress)
        write_atomically(disk, path, stored, permit=permit)
    except BaseException:
        disk.close(fd)
        raise
    return Overwritten(old=old)


def apply_patches(plain: bytearray, patches: list[Patch]) -> None:
    """Overwrites records in the bytes of a block."""
    for patch in patches:
        plain[patch.offset : patch.offset + len(patch.data)] = patch.data


def zero(disk: Disk, old: OldFile) -> None:
    """Zeroes a replaced file and closes it. A failure is only logged: no name refers to the file."""
    try:
        for at in range(0, old.size, ZEROS_BYTES):
            _write_all(disk, old.fd, bytes(min(old.size - at, ZEROS_BYTES)), at)
        disk.sync(old.fd)
    except OSError as error:
        logger.warning("%s: securely removed records may still be on the disk: %s", old.path, error.strerror)
    finally:
        disk.close(old.fd)


def _write_all(disk: Disk, fd: int, data: bytes, offset: int) -> None:
    with memoryview(data) as view:
        written = 0
        while written < len(data):
            with view[written:] as rest:
                written += disk.write(fd, rest, offset + written)
