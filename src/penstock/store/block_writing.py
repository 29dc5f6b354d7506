"""Appends what is new in a stream's log to its block files.

Bytes are written front to back: a file never has a hole of our making. An encrypted block file is appended to
in frames (see envelope.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.errors import StoreWriteError
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.block_erasing import OldFile
from penstock.store.block_reading import BlockReader, block_path, index_path
from penstock.store.block_syncs import BlockSyncs
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.erasures import Patch
from penstock.store.files import OpenFiles, Permit, write_atomically

logger = logging.getLogger("penstock.store")


class BlockWriter:
    """The block files that one stream has, and appends to them."""

    def __init__(
        self, directory: Path, files: OpenFiles, log: StreamLog, reader: BlockReader, syncs: BlockSyncs
    ) -> None:
        self.known: set[int] = set()  # blocks that have a file
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._encrypts = files.file_cipher.encrypts
        self._log = log
        self._reader = reader
        self._syncs = syncs
        self._appended: dict[int, AppendedFile] = {}  # encrypted blocks that may still grow
        # The path of the block written last, usually also the next one: building and hashing a Path took half
        # the time of a small write.
        self._written_number = -1
        self._written_path = directory

    def adopt(self, number: int) -> None:
        """Registers a block file that recovery found."""
        self.known.add(number)
        # The process that wrote it may have died before its sync.
        self._syncs.written(number)
        self._syncs.names_changed()

    def resume(self, number: int, file: AppendedFile) -> None:
        """Registers the encrypted open block that recovery found."""
        self._appended[number] = file

    def write_new(self, *, in_order: bool = False) -> None:
        """Writes the unwritten blocks, in order. Raises StoreWriteError.

        A power loss must not keep the tombstone of a replaced message and lose the message that replaced it,
        whose bytes are in an earlier file. When everything before this write is on disk, as with `sync:
        always`, each file is therefore synced before the next one is written (`in_order`). Otherwise a power
        loss takes back everything since the last sync in any case, and one sync per block would delay all
        writers.
        """
        for block in self._log.unwritten():
            if in_order and self._syncs.unsynced - {block.number}:
                self._syncs.run()
            self._write_block(block)

    def _write_block(self, block: MessageBlock) -> None:
        if block.number != self._written_number:
            self._written_number = block.number
            self._written_path = block_path(self._directory, block.number)
        path = self._written_path
        with memoryview(block) as view:
            if self._encrypts:
                appended = self._appended.get(block.number)
                if appended is None:
                    appended = self._appended[block.number] = AppendedFile(self._files, path)
                while block.written < block.size:
                    with view[block.written :] as rest:
                        block.written += appended.append(rest)
            while block.written < block.size:
                with view[block.written :] as rest:
                    block.written += self._files.write(path, rest, block.written)
        self._syncs.written(block.number)
        if block.number not in self.known:
            self.known.add(block.number)
            self._syncs.names_changed()
        assert block.written == block.size

    def write_again(self, busy: set[int], erasures: Callable[[int], Iterable[Patch]]) -> None:
        """Writes files whose sync failed again, in place: the system marks the bytes as changed, and the next
        sync writes them. A new file would need room, which a full disk has not. Raises StoreWriteError.

        The bytes in memory are preferred to those of the file: the file's are in the system's cache, and lost
        when it needed the memory. busy: blocks of a job in flight, which follow later. erasures: gives the
        records of a block that are overwritten in memory, but not yet in its file: the tombstones of their
        removals must be on disk before (see erasures.py), so the file keeps what it has there.
        """
        blocks = {block_path(self._directory, block.number): block for block in self._log.block_list()}
        later = {block_path(self._directory, number) for number in busy}
        for path in sorted(self._syncs.distrusted.copy() - later):
            try:
                data = stored = self._disk.read(path) if self._disk.exists(path) else b""
            except OSError as error:
                raise StoreWriteError(f"cannot read the file: {error.strerror}", path=str(path)) from error
            block = blocks.get(path)
            if block is not None and block.resident and not is_enveloped(data):
                with memoryview(block) as view:
                    wanted = bytearray(view[: block.written])
                for patch in erasures(block.number):
                    span = slice(patch.offset, patch.offset + len(patch.data))
                    if span.stop <= min(len(stored), len(wanted)):
                        wanted[span] = stored[span]
                data = bytes(wanted)
            at = 0
            while at < len(data):
                at += self._files.write(path, data[at:], at)
            if data and path.suffix == ".blk":
                self._syncs.written(int(path.stem))
            self._syncs.distrusted.discard(path)
            logger.warning("%s: written again, because its sync failed", path)

    def end_appends(self, block: MessageBlock) -> bool:
        """A block is closed. Returns whether its file has many frames: every write to an encrypted file adds
        one. They are worth merging when they cost more than a quarter of the block."""
        if self._appended.pop(block.number, None) is None:
            return False
        return self._disk.size(block_path(self._directory, block.number)) > block.size * 5 // 4

    def replaced(self, number: int) -> None:
        """A block's file was replaced: later writes go to the new one."""
        self._files.forget(block_path(self._directory, number))

    def overwrite_open(self, number: int, patches: list[Patch]) -> None:
        """Overwrites records in the plain file of the open block. Raises StoreWriteError."""
        path = block_path(self._directory, number)
        self._syncs.written(number)
        for patch in patches:
            written = 0
            while written < len(patch.data):
                written += self._files.write(path, patch.data[written:], patch.offset + written)

    def replace_open(self, number: int, plain: bytearray) -> OldFile:
        """Replaces the encrypted file of the open block and returns the old one, open. Raises
        StoreWriteError.

        When only the sync of its name failed, the file was replaced all the same, and later appends must go
        to the new file: the head on disk, not the exception, decides which one is current.
        """
        path = block_path(self._directory, number)
        stored = self._files.file_cipher.encode(plain, path)
        head = stored[: HEAD.size]
        try:
            old = OldFile(path, self._disk.open(path, create=False), self._disk.size(path))
        except OSError as error:
            raise StoreWriteError(f"cannot open the file: {error.strerror}", path=str(path)) from error
        try:
            write_atomically(self._disk, path, stored)
        except BaseException:
            self._disk.close(old.fd)
            raise
        finally:
            if self._disk.read_at(path, 0, HEAD.size) == head:
                self._files.forget(path)
                self._appended[number] = AppendedFile(
                    self._files, path, size=len(stored), length=len(plain), head=head
                )
        return old

    def forget(self, number: int) -> None:
        """A block's file is going to be removed."""
        self._files.forget(block_path(self._directory, number))
        self.known.discard(number)
        self._reader.forget(number)
        self._syncs.discard(number)
        self._appended.pop(number, None)

    def unlink(self, numbers: list[int], permit: Permit) -> None:
        """Removes the files of blocks. Safe in any thread. Raises StoreWriteError."""
        for number in numbers:
            path = block_path(self._directory, number)
            try:
                with permit.entered():
                    self._disk.unlink(index_path(self._directory, number))
                with permit.entered():
                    self._disk.unlink(path)
            except OSError as error:
                raise StoreWriteError(f"cannot remove the file: {error.strerror}", path=str(path)) from error

    def close(self) -> None:
        """Releases the files without writing, also one whose first write failed and that is not `known`."""
        self._files.forget_below(self._directory)
