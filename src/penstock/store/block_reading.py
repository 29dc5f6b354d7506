"""Reads the block files of one stream: closed blocks whose bytes the log needs again, and single records.

What cannot be read is zeros: the log then reports which messages are lost, and the others stay readable.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from pathlib import Path

from penstock.errors import StoreCorruptError, StoreError
from penstock.kernels.log.message_block import MessageBlock
from penstock.store.disk import Disk, RecordReads
from penstock.store.envelope import is_enveloped
from penstock.store.files import OpenFiles

logger = logging.getLogger("penstock.store")

SECTOR = 4096
"""Bytes read at once from a file that cannot be read as a whole."""

REFUSED_MAX = 64
"""Unreadable sectors before the whole file counts as unreadable: each may cost the disk seconds."""

_TAIL = struct.Struct("<Q")

FILE_HEAD_BYTES = 8  # enough to see whether a file is an envelope


def block_path(directory: Path, number: int) -> Path:
    """The file of a block's records."""
    return directory / f"{number}.blk"


def index_path(directory: Path, number: int) -> Path:
    """The file of a block's index."""
    return directory / f"{number}.idx"


def map_file(disk: Disk, path: Path) -> memoryview:
    """Maps a file's bytes. Raises StoreCorruptError when it cannot be read."""
    try:
        return disk.map(path)
    except OSError as error:
        raise StoreCorruptError(f"cannot read it: {error.strerror}", path=str(path)) from error


def read_readable_sectors(disk: Disk, path: Path) -> memoryview:
    """Reads a file sector by sector, with zeros for unreadable sectors. Raises StoreCorruptError when there
    is no such file or more than REFUSED_MAX sectors are unreadable."""
    try:
        size = disk.size(path)
    except OSError as error:
        raise StoreCorruptError(f"cannot read it: {error.strerror}", path=str(path)) from error
    data = bytearray(size)
    refused = 0
    for at in range(0, size, SECTOR):
        try:
            piece = disk.read_at(path, at, SECTOR)
        except OSError as error:
            refused += 1
            logger.error("%s: cannot read bytes %d to %d: %s", path, at, at + SECTOR, error.strerror)
            if refused > REFUSED_MAX:
                raise StoreCorruptError(f"cannot read it: {error.strerror}", path=str(path)) from error
        else:
            data[at : at + len(piece)] = piece
    return memoryview(data)


def fingerprint(disk: Disk, path: Path) -> tuple[int, int]:
    """Size and last 8 bytes of a block file, which tie an index to it. Raises OSError."""
    size = disk.size(path)
    tail = disk.read_at(path, max(size - 8, 0), 8)
    return size, _TAIL.unpack(tail.ljust(8, b"\0"))[0]


def is_self_contained(number: int, data: memoryview, indexed: int | None = None) -> bool:
    """Whether a closed block's bytes alone, without its index, describe everything the block contains.

    indexed: how many live messages the index had when recovery read it; None: the log wrote the index since
    then. A power loss may leave an index and take the tombstones of messages that it omits.
    """
    block = MessageBlock(number, 1)
    block.closed = True
    bad = block.scan(data, copy=False)
    block.release_borrowed()
    return bad is None and not block.skipped_offsets and indexed in (None, len(block))


class BlockReader:
    """Reads one stream's block files."""

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self._directory = directory
        self._disk = files.disk
        self._file_cipher = files.file_cipher
        # Paths (os.fsencode()) of closed block files found neither encrypted nor compressed. A stale entry is
        # harmless: the bytes read are then no valid record, and the whole block is loaded instead.
        self._plain: dict[int, bytes] = {}

    def load(self, number: int, size: int) -> memoryview:
        """Returns the plain bytes of a closed block for the log, at least `size` bytes. Unreadable,
        undecryptable and missing bytes are zeros: the log then reports which messages are lost. Raises
        StoreCorruptError when there is no such file."""
        path = block_path(self._directory, number)
        file = self._stored(path)
        try:
            data = self._decoded(file, path)
        except StoreError as error:
            # Recovery accepted the block's index, so the format was known: a bit of the head has changed
            # since. Raising here would stop the readers of the whole stream for the messages of one block.
            logger.error("%s", error)
            data = memoryview(b"")
        if len(data) < size:
            logger.error("%s: %d bytes are missing at its end", path, size - len(data))
            data = memoryview(bytes(data) + bytes(size - len(data)))
        return data

    def read(self, number: int) -> memoryview:
        """Returns the plain bytes of a block file, with zeros for unreadable and undecryptable bytes. Raises
        StoreCorruptError when there is no such file or its format is unknown, StoreError when it is encrypted
        and no key is configured."""
        path = block_path(self._directory, number)
        return self._decoded(self._stored(path), path)

    def _stored(self, path: Path) -> memoryview:
        try:
            return map_file(self._disk, path)
        except StoreCorruptError:
            return read_readable_sectors(self._disk, path)

    def _decoded(self, file: memoryview, path: Path) -> memoryview:
        if not is_enveloped(file):
            return file
        decoded = self._file_cipher.decode(file, path)
        if decoded.why is not None:
            logger.error("%s: bad frame at byte %d (%s)", path, decoded.file_end, decoded.why)
        return memoryview(decoded.data)

    def read_ranges(self, wanted: list[tuple[int, bytes]]) -> RecordReads | None:
        """Starts reads of single records from closed blocks, given by block number; see disk.FILE_RANGE.
        Returns None when the blocks must be loaded instead: a file is encrypted or compressed, or the disk
        fails, and load() reports why."""
        plain = self._plain
        try:
            files = [(plain.get(number) or self._plain_path(number), ranges) for number, ranges in wanted]
            return self._disk.read_ranges(files)
        except OSError:
            return None

    def _plain_path(self, number: int) -> bytes:
        """The encoded path of a block file. Raises OSError when its bytes are not the plain records."""
        path = block_path(self._directory, number)
        if is_enveloped(self._disk.read_at(path, 0, FILE_HEAD_BYTES)):
            raise OSError(errno.EINVAL, "encrypted or compressed", str(path))
        name = self._plain[number] = os.fsencode(path)
        return name

    def forget(self, number: int) -> None:
        """Forgets what is known of a file that is replaced or removed."""
        self._plain.pop(number, None)
