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
from collections.abc import Callable
from pathlib import Path

from penstock.errors import StoreCorruptError
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.blocks import (
    BlockFiles,
    block_path,
    fingerprint,
    index_path,
    map_file,
    tells_all,
    write_index,
)
from penstock.store.disk import Disk
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.files import OpenFiles, write_atomically

logger = logging.getLogger("penstock.store")

_BLOCK_NAME = re.compile(r"([1-9][0-9]*)\.blk")
_SIDE_NAME = re.compile(r"([1-9][0-9]*)\.(?:idx|blk\.cut-[0-9]+)")


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

    Raises StoreCorruptError when a file can't be read, StoreWriteError when a bad tail can't be cut,
    StoreError when a file is encrypted and there is no key.
    """
    block_files = BlockFiles(directory, files)
    log = StreamLog(block_size, True, block_files.load, on_lost, block_files.read_pieces)
    blocks: list[MessageBlock] = []
    whole: list[MessageBlock] = []
    numbers = block_numbers(files.disk, directory)
    for number in numbers:
        block = _indexed(directory, files, number)
        if files.is_to_encrypt(block_path(directory, number)):
            if block is not None and not tells_all(number, block_files.load(number, 0)):
                block_files.rewrite(number)  # the index, which finds what is behind a hole, fits this file
            else:
                files.encrypt(block_path(directory, number))
                block = None
        if block is None and number == numbers[-1]:
            block = _last_block(directory, files, block_files, number)
        if block is None:
            block, is_whole = _scanned(directory, block_files, number)
            whole += [block] if is_whole else []
        block_files.adopt(number)
        blocks.append(block)
    for number, why in log.restore(blocks):
        logger.error("%s: left out: %s", block_path(directory, number), why)
    present = set(log.block_list())
    for block in whole:
        if block in present:
            log.bring_back(block)
            write_index(files, directory, block.number, block.export_index())
    return log, block_files


def _indexed(directory: Path, files: OpenFiles, number: int) -> MessageBlock | None:
    """The block as its index tells it; None when there is none, or none to trust."""
    path = index_path(directory, number)
    try:
        index = files.read(path)
        size, tail = fingerprint(files.disk, block_path(directory, number))
        return MessageBlock.from_index(index, number, size, tail)
    except FileNotFoundError:
        return None
    except (ValueError, StoreCorruptError) as error:
        logger.warning("%s: not used, the block is read instead: %s", path, error)
        files.disk.unlink(path)
        return None


def _scanned(directory: Path, block_files: BlockFiles, number: int) -> tuple[MessageBlock, bool]:
    """A closed block as its bytes tell it, and whether all of it could be read. Its bytes are let go."""
    path = block_path(directory, number)
    data = block_files.load(number, 0)
    block = MessageBlock(number, 1)
    block.closed = True
    bad = block.scan(data, copy=False)
    _tell_passed_over(path, block)
    block.written = block.size
    if bad is not None:
        logger.error(
            "%s: bad record at byte %d of %d (%s): the messages from there to the next block are lost",
            path, bad[0], len(data), bad[1],
        )  # fmt: skip
    block.let_go()
    return block, bad is None


def _last_block(
    directory: Path, files: OpenFiles, block_files: BlockFiles, number: int
) -> MessageBlock | None:
    """The block that was written to last: it is copied and stays open for more. None: it is not that one
    (compressed blocks are closed; the open one after it is gone)."""
    path = block_path(directory, number)
    file = map_file(files.disk, path)
    block = MessageBlock(number, 1)
    whole_head = len(file) >= HEAD.size and is_enveloped(file)
    if whole_head and not files.vault.resume(file[: HEAD.size], path).encrypts:
        return None
    if not files.vault.encrypts:
        bad = block.scan(file)
        _tell_passed_over(path, block)
        if bad is not None:
            _tell_cut(path, bad[0], len(file), bad[1], block)
            _cut(files.disk, path, bad[0], file)
        block.written = block.size
        return block
    decoded = files.vault.decode(file, path)
    end, good, head = decoded.file_end, decoded.good, bytes(file[: HEAD.size])
    bad = block.scan(bytes(decoded.data[:good]))
    _tell_passed_over(path, block)
    if bad is not None:
        # It was torn while it was not encrypted yet. No frame ends where the good records do.
        _tell_cut(path, bad[0], good, bad[1], block)
        write_atomically(files.disk, path.with_name(f"{path.name}.cut-{bad[0]}"), bytes(file))
        stored = files.vault.encode(decoded.data[: bad[0]], path)
        write_atomically(files.disk, path, stored)
        end, good, head = len(stored), bad[0], stored[: HEAD.size]
    elif decoded.why is not None:
        _tell_cut(path, end, len(file), decoded.why, block)
        _cut(files.disk, path, end, file)
    block_files.resume(number, AppendedFile(files, path, size=end, length=good, head=head if end else b""))
    block.written = block.size
    return block


def _tell_passed_over(path: Path, block: MessageBlock) -> None:
    for offset in block.passed_over:
        logger.error("%s: bad record at byte %d passed over: the message there is lost", path, offset)


def _tell_cut(path: Path, offset: int, size: int, why: str, block: MessageBlock) -> None:
    logger.warning(
        "%s: cut at byte %d of %d: bad record (%s); its %d messages before are kept, the last is %d",
        path, offset, size, why, len(block), block.last_seq,
    )  # fmt: skip


def _cut(disk: Disk, path: Path, offset: int, data: memoryview) -> None:
    """Keeps what is behind offset in a file of its own, then ends the block's file there.

    Not by truncating it: power loss could take back the truncation and keep what is written next, and records
    of both would stand in the file, under the same sequences.
    """
    kept = path.with_name(f"{path.name}.cut-{offset}")
    write_atomically(disk, kept, bytes(data[offset:]), sync_name=False)
    write_atomically(disk, path, bytes(data[:offset]))
