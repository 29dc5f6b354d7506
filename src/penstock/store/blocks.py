"""The files of one stream's blocks: writes what is new in its log, gives closed blocks back.

`<number>.blk` holds a block's records and is only appended to (but for secure removals, which put a note of
the same size over a record); `<number>.idx` is what recovery needs of a closed block. An index may always be
missing: recovery then reads the block.

Ordering: bytes are written front to back, so that a file never has a hole; a block's file is removed only
after the notes that make it superfluous were written, and the last block that is left was synced.
"""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.errors import StoreCorruptError, StoreWriteError
from penstock.kernels.compaction import compact
from penstock.kernels.msgblock import MessageBlock
from penstock.kernels.streamlog import StreamLog
from penstock.store.disk import Disk
from penstock.store.files import OpenFiles, remove_file, sync_directory, write_atomically

logger = logging.getLogger("penstock.store")

COMPACTIONS_A_WRITE = 2
"""Blocks rewritten after a write at most. One fills while records of a block's size are appended, so that two
keep up, and a write is held up by some milliseconds only."""


def block_path(directory: Path, number: int) -> Path:
    """The file of a block's records."""
    return directory / f"{number}.blk"


def index_path(directory: Path, number: int) -> Path:
    """The file of a block's index."""
    return directory / f"{number}.idx"


def map_file(disk: Disk, path: Path) -> memoryview:
    """A file's bytes, read when they are touched. Raises StoreCorruptError when it can't be read."""
    try:
        return disk.map(path)
    except OSError as error:
        raise StoreCorruptError(f"cannot read it: {error.strerror}", path=str(path)) from error


def write_index(disk: Disk, directory: Path, block: MessageBlock) -> None:
    """Writes a closed block's index. A disk that refuses costs the next recovery time, nothing else."""
    path = index_path(directory, block.number)
    try:
        write_atomically(disk, path, block.export_index(), sync=False)
    except StoreWriteError as error:
        logger.warning("%s: left without index: %s", path, error)


class BlockFiles:
    """Writer and reader of one stream's block files."""

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._unsynced: set[int] = set()
        self._names_changed = False
        self._known: set[int] = set()
        self._patches: list[tuple[int, int, bytes]] = []
        self._rewrites: list[tuple[MessageBlock | None, list[int]]] = []
        # Of the block that was written last, nearly always the next one too: making and hashing a Path took
        # half the time of a small write.
        self._written_number = -1
        self._written_path = directory

    def load(self, number: int) -> memoryview:
        """The bytes of a closed block."""
        return map_file(self._disk, block_path(self._directory, number))

    def adopt(self, number: int) -> None:
        """A block that recovery found a file of."""
        self._known.add(number)
        # Who wrote it may have been killed before a sync.
        self._unsynced.add(number)
        self._names_changed = True

    def write(self, log: StreamLog) -> None:
        """Hands all that is new to the operating system, as interface.StreamStore says.

        Raises StoreWriteError.
        """
        log.flush_notes()
        for block in log.unwritten():
            self._write_block(block)
        self._patches += log.take_patches()
        if self._patches:
            # What is half written over when the machine dies is gone by the note of its removal alone.
            self.sync()
        while self._patches:
            number, offset, data = self._patches[0]
            if number in self._known and not any(
                made and made.number == number for made, _ in self._rewrites
            ):
                self._patch(number, offset, data)
            del self._patches[0]
        for block in log.take_closed():
            write_index(self._disk, self._directory, block)
            log.settle(block)
        self._compact(log)
        dropped = log.take_dropped()
        if dropped:
            self._remove(log, dropped)

    def _compact(self, log: StreamLog) -> None:
        """Rewrites blocks that are mostly of removed messages. What a full disk interrupts is tried again:
        until then the block stays in memory."""
        self._rewrites += compact(log, COMPACTIONS_A_WRITE)
        if not self._rewrites:
            return
        for block in log.unwritten():
            self._write_block(block)
        present = log.block_list()
        self._sync_block(present[-1].number)
        # In order: what one rewrite left out of a block can rest on the one before being on disk.
        while self._rewrites:
            made, gone = self._rewrites[0]
            if made is not None and made.replaces and made in present:
                self._replace(made)
                log.settle(made)
            elif made is not None and made.replaces and len(self._rewrites) > 1:
                # Rewritten again before it came to disk: its files may go when the later one is there.
                self._rewrites[1][1].extend(gone)
                gone = []
            self._unlink(gone)
            del self._rewrites[0]

    def _replace(self, made: MessageBlock) -> None:
        path = block_path(self._directory, made.number)
        remove_file(self._disk, index_path(self._directory, made.number))
        self._files.forget(path)
        write_atomically(self._disk, path, bytes(made))
        self._unsynced.discard(made.number)
        made.written = made.size
        made.replaces = False
        write_index(self._disk, self._directory, made)

    def _write_block(self, block: MessageBlock) -> None:
        if block.number != self._written_number:
            self._written_number = block.number
            self._written_path = block_path(self._directory, block.number)
        path = self._written_path
        with memoryview(block) as view:
            while block.written < block.size:
                with view[block.written :] as rest:
                    block.written += self._files.write(path, rest, block.written)
        self._unsynced.add(block.number)
        if block.number not in self._known:
            self._known.add(block.number)
            self._names_changed = True
        assert block.written == block.size

    def _patch(self, number: int, offset: int, data: bytes) -> None:
        path = block_path(self._directory, number)
        # The index counts the message; without one recovery reads the block, and finds the note.
        remove_file(self._disk, index_path(self._directory, number))
        while data:
            count = self._files.write(path, data, offset)
            offset += count
            data = data[count:]
        self._unsynced.add(number)

    def _remove(self, log: StreamLog, numbers: list[int]) -> None:
        remaining = log.block_list()
        if len(remaining) == 1:
            # All that is known of sequences is in this one now: it must not be the next to vanish.
            self._sync_block(remaining[0].number)
        try:
            self._unlink(numbers)
        except StoreWriteError as error:
            # Everything in it is below the floor that is noted in a later block.
            logger.warning("left behind: %s", error)

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            path = block_path(self._directory, number)
            self._files.forget(path)
            remove_file(self._disk, index_path(self._directory, number))
            remove_file(self._disk, path)
            self._known.discard(number)
            self._unsynced.discard(number)
            self._names_changed = True

    def _sync_block(self, number: int) -> None:
        if number in self._unsynced:
            self._files.sync(block_path(self._directory, number))
            self._unsynced.discard(number)

    def sync(self) -> None:
        """Everything written is on the disk. Raises StoreWriteError."""
        for number in sorted(self._unsynced):
            self._sync_block(number)
        if self._names_changed:
            sync_directory(self._disk, self._directory)
            self._names_changed = False

    def close(self) -> None:
        """Lets the files go; nothing is written."""
        for number in self._known:
            self._files.forget(block_path(self._directory, number))
