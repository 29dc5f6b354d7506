"""Brings a stream's log back from its block files.

A closed block with a valid index isn't read. Every other block is scanned, each record checked against its
hash. A bad record between good ones is passed over. At the first one with nothing good behind it the last
block's file is cut, and what was cut is kept beside it: that is what a process killed in the middle of a
write leaves, and nothing acked is in it. In an earlier block it ends that block; the sequences up to the next
block are lost and said to be.

Invariants: nothing before the first bad record of a block is lost; recovering twice gives the same.
Rejected: searching for the next good record (a payload may hold the bytes of one); only lengths are followed.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable
from pathlib import Path

from penstock.errors import StoreWriteError
from penstock.kernels.msgblock import MessageBlock
from penstock.kernels.streamlog import StreamLog
from penstock.store.blocks import BlockFiles, block_path, index_path, map_file, write_index
from penstock.store.disk import Disk
from penstock.store.files import OpenFiles, cut_file, write_atomically

logger = logging.getLogger("penstock.store")

_BLOCK_NAME = re.compile(r"([1-9][0-9]*)\.blk")
_SIDE_NAME = re.compile(r"([1-9][0-9]*)\.(?:idx|blk\.cut-[0-9]+)")
_DIGEST = struct.Struct("<Q")


def block_numbers(disk: Disk, directory: Path) -> list[int]:
    """Numbers of the blocks in a directory, ascending; indexes and cut tails without block are removed."""
    names = disk.names(directory)
    numbers = sorted(int(match[1]) for name in names if (match := _BLOCK_NAME.fullmatch(name)))
    present = set(numbers)
    for name in names:
        match = _SIDE_NAME.fullmatch(name)
        if name.endswith(".new") or (match and int(match[1]) not in present):
            disk.unlink(directory / name)
    return numbers


def recover_log(
    directory: Path, files: OpenFiles, *, block_size: int, on_lost: Callable[[int, int, int, str], None]
) -> tuple[StreamLog, BlockFiles]:
    """The log kept in a directory of blocks, and its files. An empty directory gives an empty log.

    Raises StoreCorruptError when a file can't be read, StoreWriteError when a bad tail can't be cut.
    """
    disk = files.disk
    block_files = BlockFiles(directory, files)
    log = StreamLog(block_size, True, block_files.load, on_lost)
    blocks: list[MessageBlock] = []
    numbers = block_numbers(disk, directory)
    for number in numbers:
        block = _indexed(disk, directory, number) or _scanned(
            disk, directory, number, last=number == numbers[-1]
        )
        block_files.adopt(number)
        blocks.append(block)
    for number, why in log.restore(blocks):
        logger.error("%s: left out: %s", block_path(directory, number), why)
    for block in blocks:
        if block.closed and block.resident and block.size == disk.size(block_path(directory, block.number)):
            write_index(disk, directory, block)
            log.settle(block)
    return log, block_files


def _indexed(disk: Disk, directory: Path, number: int) -> MessageBlock | None:
    """The block as its index tells it; None when there is none, or none to trust."""
    path = index_path(directory, number)
    try:
        index = disk.read(path)
    except FileNotFoundError:
        return None
    size = disk.size(block_path(directory, number))
    tail = disk.read_at(block_path(directory, number), max(size - 8, 0), 8)
    try:
        return MessageBlock.from_index(index, number, size, _DIGEST.unpack(tail.ljust(8, b"\0"))[0])
    except ValueError as error:
        logger.warning("%s: not used, the block is read instead: %s", path, error)
        disk.unlink(path)
        return None


def _scanned(disk: Disk, directory: Path, number: int, *, last: bool) -> MessageBlock:
    """The block as its bytes tell it. The last one is copied and stays open for more."""
    path = block_path(directory, number)
    data = map_file(disk, path)
    block = MessageBlock(number, 1)
    bad = block.scan(data, copy=last)
    for offset in block.passed_over:
        logger.error("%s: bad record at byte %d passed over: the message there is lost", path, offset)
    if not last:
        block.closed = True
        block.written = block.size
        if bad is not None:
            logger.error(
                "%s: bad record at byte %d of %d (%s): the messages from there to the next block are lost",
                path, bad[0], len(data), bad[1],
            )  # fmt: skip
        return block
    if bad is not None:
        offset, why = bad
        logger.warning(
            "%s: cut at byte %d of %d: bad record (%s); its %d messages before are kept, the last is %d",
            path, offset, len(data), why, len(block), block.last_seq,
        )  # fmt: skip
        _cut(disk, path, offset, data)
    block.written = block.size
    return block


def _cut(disk: Disk, path: Path, offset: int, data: memoryview) -> None:
    """Keeps what is behind offset in a file of its own, then ends the block's file there."""
    try:
        kept = path.with_name(f"{path.name}.cut-{offset}")
        write_atomically(disk, kept, bytes(data[offset:]), sync_name=False)
        cut_file(disk, path, offset)
    except OSError as error:
        raise StoreWriteError(
            f"cannot cut the bad tail at {offset}: {error.strerror}", path=str(path)
        ) from error
