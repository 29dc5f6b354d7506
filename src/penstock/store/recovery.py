"""Rebuilds a stream's log from its block files.

A closed block with a valid index is not read. Every other block is scanned, and each record is checked
against its hash. A bad record followed by good ones is skipped; where a power loss took some of its bytes,
the rest of its atomic batch too. At the first bad record with nothing good behind it, the last block's file
is cut, and the cut bytes are preserved in a file beside it. A process that was killed during a write leaves
such a tail, and nothing in it was acked; after a power loss it may hold what was acked since the last sync,
unless acks wait for syncs (ARCHITECTURE.md, "After a crash"). In an earlier block such a record ends the
block; the sequences up to the next block are lost and logged.

Invariants: nothing before the first bad record of a block is lost; recovery is idempotent.

Rejected: searching for the next good record byte by byte (a payload may contain the bytes of a record); only
record lengths are followed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path

from penstock.errors import StoreCorruptError
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.block_jobs import write_index
from penstock.store.block_reading import (
    BlockReader,
    block_path,
    fingerprint,
    index_path,
    is_self_contained,
    map_file,
)
from penstock.store.blocks import BlockFiles
from penstock.store.disk import Disk
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.files import OpenFiles, write_atomically

logger = logging.getLogger("penstock.store")

_BLOCK_NAME = re.compile(r"([1-9][0-9]*)\.blk")
_SIDE_NAME = re.compile(r"([1-9][0-9]*)\.(?:idx|blk\.cut-[0-9]+)")


def block_numbers(disk: Disk, directory: Path) -> list[int]:
    """Numbers of the blocks in a directory, ascending. Removes indexes and cut tails whose block is gone."""
    names = disk.names(directory)
    numbers = sorted(int(match[1]) for name in names if (match := _BLOCK_NAME.fullmatch(name)))
    present = set(numbers)
    for name in names:
        match = _SIDE_NAME.fullmatch(name)
        if name.endswith(".new") or (match and int(match[1]) not in present):
            disk.unlink(directory / name)
    return numbers


def recover_log(
    directory: Path,
    files: OpenFiles,
    *,
    block_size: int,
    on_lost: Callable[[int, list[tuple[int, int, str]]], None],
) -> tuple[StreamLog, BlockFiles]:
    """Returns the log in a directory of blocks, and its files. An empty directory gives an empty log.

    Raises StoreCorruptError when a file cannot be read, StoreWriteError when a bad tail cannot be cut,
    StoreError when a file is encrypted and no key is configured.
    """
    reader = BlockReader(directory, files)
    log = StreamLog(block_size, True, reader.load, on_lost, reader.read_ranges)
    block_files = BlockFiles(directory, files, reader, log)
    blocks: list[MessageBlock] = []
    whole: list[MessageBlock] = []
    numbers = block_numbers(files.disk, directory)
    for number in numbers:
        block = _indexed(directory, files, number)
        if files.is_to_encrypt(block_path(directory, number)):
            if block is not None and not is_self_contained(number, reader.read(number), block.live):
                # Only the index finds the records behind a hole, or knows of removals, and it fits the plain
                # file alone: the block is encrypted by a rewrite from the log instead.
                block_files.rewrite(number)
            else:
                files.encrypt(block_path(directory, number))
                block = None
        indexed = None if block is None else block.live
        if block is None and number == numbers[-1]:
            block = _last_block(directory, files, block_files, number)
        if block is None:
            block, is_whole = _scanned(directory, reader, number)
            whole += [block] if is_whole else []
        block_files.adopt(number, indexed)
        blocks.append(block)
    for number, why in log.restore(blocks):
        logger.error("%s: block ignored: %s", block_path(directory, number), why)
    for number, first, last in log.incomplete_batches:
        logger.error(
            "%s: the atomic batch of messages %d to %d is lost: a power loss took some of its bytes",
            block_path(directory, number), first, last,
        )  # fmt: skip
    present = set(log.block_list())
    for block in whole:
        if block in present:
            log.ensure_loaded(block)
            write_index(files, directory, block.number, block.export_index())
    block_files.recover_erasures()
    return log, block_files


def _indexed(directory: Path, files: OpenFiles, number: int) -> MessageBlock | None:
    """Reads a block from its index. Returns None when the index is missing, damaged or does not fit the block
    file."""
    path = index_path(directory, number)
    try:
        index = files.read(path)
        size, tail = fingerprint(files.disk, block_path(directory, number))
        return MessageBlock.from_index(index, number, size, tail)
    except FileNotFoundError:
        return None
    except (ValueError, StoreCorruptError) as error:
        logger.warning("%s: index ignored, scanning the block instead: %s", path, error)
        files.disk.unlink(path)
        return None


def _scanned(directory: Path, reader: BlockReader, number: int) -> tuple[MessageBlock, bool]:
    """Reads a closed block by scanning its records. Returns it, without its bytes, and whether all of it was
    readable."""
    path = block_path(directory, number)
    data = reader.read(number)
    block = MessageBlock(number, 1)
    block.closed = True
    bad = block.scan(data, copy=False)
    _log_passed_over(path, block)
    block.written = block.size
    if bad is not None:
        logger.error(
            "%s: bad record at byte %d of %d (%s): the messages from there to the next block are lost",
            path, bad[0], len(data), bad[1],
        )  # fmt: skip
    block.release_borrowed()
    return block, bad is None


def _last_block(
    directory: Path, files: OpenFiles, block_files: BlockFiles, number: int
) -> MessageBlock | None:
    """Reads the block that was written last, copies it and leaves it open for appends. Returns None when the
    last file is a closed block: a compressed one, whose open successor is gone."""
    path = block_path(directory, number)
    file = map_file(files.disk, path)
    block = MessageBlock(number, 1)
    whole_head = len(file) >= HEAD.size and is_enveloped(file)
    if whole_head and not files.file_cipher.resume(file[: HEAD.size], path).encrypts:
        return None
    if not files.file_cipher.encrypts:
        bad = block.scan(file)
        _log_passed_over(path, block)
        if bad is not None:
            _log_cut(path, bad[0], len(file), bad[1], block)
            _cut(files.disk, path, bad[0], file)
        block.written = block.size
        return block
    decoded = files.file_cipher.decode(file, path)
    end, good, head = decoded.file_end, decoded.good, bytes(file[: HEAD.size])
    bad = block.scan(bytes(decoded.data[:good]))
    _log_passed_over(path, block)
    if bad is not None:
        # It was torn before the store was encrypted. Frames do not end at record boundaries, so encrypt the
        # good part again instead of cutting at a frame.
        _log_cut(path, bad[0], good, bad[1], block)
        write_atomically(files.disk, path.with_name(f"{path.name}.cut-{bad[0]}"), bytes(file))
        stored = files.file_cipher.encode(decoded.data[: bad[0]], path)
        write_atomically(files.disk, path, stored)
        end, good, head = len(stored), bad[0], stored[: HEAD.size]
    elif decoded.why is not None:
        _log_cut(path, end, len(file), decoded.why, block)
        _cut(files.disk, path, end, file)
    block_files.resume(number, AppendedFile(files, path, size=end, length=good, head=head if end else b""))
    block.written = block.size
    return block


def _log_passed_over(path: Path, block: MessageBlock) -> None:
    for offset in block.skipped_offsets:
        logger.error("%s: bad record at byte %d skipped: its message is lost", path, offset)


def _log_cut(path: Path, offset: int, size: int, why: str, block: MessageBlock) -> None:
    logger.warning(
        "%s: cut at byte %d of %d: bad record (%s); the %d messages before it are kept, the last is %d",
        path, offset, size, why, len(block), block.last_seq,
    )  # fmt: skip


def _cut(disk: Disk, path: Path, offset: int, data: memoryview) -> None:
    """Preserves the bytes from `offset` on in another file, then ends the block's file there.

    Replaces the file instead of truncating it: a power loss could undo the truncation but keep later appends,
    and the file would contain records of both under the same sequences.
    """
    cut = path.with_name(f"{path.name}.cut-{offset}")
    write_atomically(disk, cut, bytes(data[offset:]), sync_name=False)
    write_atomically(disk, path, bytes(data[:offset]))
