"""The store of a stream whose group has its messages on disk (decision 0032).

Nothing here is needed after a crash: a start builds the stream from the checkpoint and the log of its group.
So nothing is synced, and blocks stay in memory until all such streams of the server have more than a budget.
Then the oldest closed ones are written to `<stream>/spilled/<n>.blk`, in the background, and read from there
like those of any stream. A start removes the files.

Invariants: a block keeps its bytes in memory until its whole file is there; one job at a time works on the
files of a stream, in the order in which they were asked for; a file goes when its block leaves the log.

Rejected: the files of other streams (streamfiles.py), with every message written three times: to the log of
the group, to a block, and to a chunk of a checkpoint. Of the time of a replica's fast ingest, a quarter went
into block files that nothing ever read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import StoreError
from penstock.kernels.log.compaction import compact
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE, StreamLog
from penstock.store.block_erasing import overwrite, zero
from penstock.store.block_memory import BlockMemory
from penstock.store.block_reading import BlockReader, block_path
from penstock.store.erasures import Patch
from penstock.store.files import (
    META,
    SPILLED,
    OpenFiles,
    Permit,
    hide_directory,
    replace_meta,
    write_atomically,
)
from penstock.store.memory import COMPACTIONS_A_WRITE, MemoryStreamStore

logger = logging.getLogger("penstock.store")


class ReplicaStreamStore(MemoryStreamStore):
    """See the module, and interface.StreamStore. Constructed when the directory of the stream has its meta.

    memory: of all replicated streams. undeleted: contains its name while its files could not be removed.
    block_size: of the log; None: its default.
    """

    def __init__(
        self,
        owner: MutableMapping[str, Any],
        directory: Path,
        name: str,
        meta: bytes,
        *,
        files: OpenFiles,
        memory: BlockMemory,
        undeleted: set[str],
        block_size: int | None = None,
    ) -> None:
        self._directory = directory
        self._undeleted = undeleted
        self._spilled = directory / SPILLED
        self._files = files
        self._memory = memory
        self._reader = BlockReader(self._spilled, files)
        log = StreamLog(
            block_size or DEFAULT_BLOCK_SIZE,
            False,
            self._reader.load,
            self._on_lost,
            self._reader.read_ranges,
        )
        super().__init__(owner, name, meta, storage="file", log=log)
        self._compress = False
        self._blocks: dict[int, MessageBlock] = {}  # closed ones, by number
        self._on_disk: set[int] = set()  # numbers with a file, or one that is being written
        self._jobs: deque[tuple[Callable[[], None], Callable[[StoreError | OSError | None], object]]] = (
            deque()
        )
        self._is_busy = self._closed = False
        self._permit = Permit()

    def _on_lost(self, number: int, lost: list[tuple[int, int, str]]) -> None:
        """Logs messages of a block whose file cannot be read. Others of the group have them: this replica
        differs then, which the group notices."""
        offset, seq, why = lost[0]
        logger.error(
            "%s: %d messages of stream %s are lost here, from %d on: its record at byte %d is bad (%s)",
            block_path(self._spilled, number), len(lost), self.name, seq, offset, why,
        )  # fmt: skip

    def save_meta(self, meta: bytes) -> None:
        replace_meta(self._files, self._directory / META, self.name, self.meta, meta)
        self.meta = meta

    def set_compression(self, compress: bool) -> None:
        self._compress = compress

    def write(self) -> None:
        """Compacts sparse blocks, and takes notice of what closed and what left the log. Raises nothing: what
        cannot be written stays in memory."""
        log, memory = self.log, self._memory
        gone: list[int] = []
        if not self._removals:
            for made, numbers in compact(log, COMPACTIONS_A_WRITE):
                gone += numbers
                if made is not None:
                    self._forget([made.number])
                    self._add(made)
        for block in log.take_closed():
            self._add(block)
        self._forget(gone + log.take_dropped())
        patches = log.take_patches()
        if patches:
            self._erase(patches)
        memory.reduce()

    def _add(self, block: MessageBlock) -> None:
        self._blocks[block.number] = block
        self._memory.add(block, self)

    def _forget(self, numbers: Iterable[int]) -> None:
        """Blocks left the log, or were rewritten. Their files go."""
        removed = []
        for number in numbers:
            block = self._blocks.pop(number, None)
            if block is not None:
                self._memory.discard(block)
            if number in self._on_disk:
                self._on_disk.remove(number)
                removed.append(number)
        if removed:
            self._run(partial(self._unlink, removed), partial(self._ended, "removed"))

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            with self._permit.entered():
                self._files.disk.unlink(block_path(self._spilled, number))

    # --- writing blocks

    def spill(self, block: MessageBlock) -> None:
        """Writes a closed block to its file, after which its bytes need not stay in memory."""
        self._on_disk.add(block.number)
        view = memoryview(block)  # the bytes stay where they are
        self._run(
            partial(self._write_file, block.number, view, self._compress), partial(self._spilt, block, view)
        )

    def _write_file(self, number: int, view: memoryview, compress: bool) -> None:
        path, file_cipher = block_path(self._spilled, number), self._files.file_cipher
        whole = compress or file_cipher.encrypts
        data = file_cipher.encode(view, path, compress=compress) if whole else view
        write_atomically(self._files.disk, path, data, sync=False, permit=self._permit)

    def _spilt(self, block: MessageBlock, view: memoryview, error: StoreError | OSError | None) -> None:
        view.release()
        self._memory.write_ended(block)
        self._reader.forget(block.number)
        is_needed = not self._closed and self._blocks.get(block.number) is block
        if error is None:
            self._memory.write_succeeded()
            if is_needed:
                block.written = block.size
                block.replaces = False
                self.log.mark_stored(block)
        elif is_needed:
            self._ended("written, and stay in memory", error)
            self._on_disk.discard(block.number)
            self._memory.write_failed(block, self)

    # --- secure removals

    def _erase(self, patches: list[tuple[int, int, bytes]]) -> None:
        """Overwrites records in files; in memory they are overwritten already."""
        by_block: dict[int, list[Patch]] = {}
        for number, offset, data in patches:
            if number in self._on_disk:
                by_block.setdefault(number, []).append(Patch(number, offset, data, b""))
        for number, of_block in by_block.items():
            work = partial(self._overwrite, number, of_block, self._compress)
            self._run(work, partial(self._ended, "overwritten where messages were erased"))

    def _overwrite(self, number: int, patches: list[Patch], compress: bool) -> None:
        done = overwrite(
            self._files, self._spilled, self._reader, number, patches, compress=compress, permit=self._permit
        )
        if done.old is not None:
            zero(self._files.disk, done.old)

    # --- jobs

    def _run(self, work: Callable[[], None], done: Callable[[StoreError | OSError | None], object]) -> None:
        self._jobs.append((work, done))
        self._start()

    def _start(self) -> None:
        while self._jobs and not self._is_busy:
            self._is_busy = True
            work, done = self._jobs.popleft()
            self._memory.run(work, partial(self._job_ended, done))

    def _job_ended(
        self,
        done: Callable[[StoreError | OSError | None], object],
        _: None,
        error: StoreError | OSError | None,
    ) -> None:
        self._is_busy = False
        done(error)
        self._start()

    def _ended(self, what: str, error: StoreError | OSError | None) -> None:
        if error is not None and not self._closed:
            logger.error("%s: blocks cannot be %s: %s", self._spilled, what, error)

    # --- the end

    def trim_cache(self) -> None:
        self.log.release_idle()

    def close(self) -> None:
        """Releases the files. The next start removes them."""
        self.abandon()

    def abandon(self) -> None:
        self._closed = True
        self._permit.revoke()
        for block in self._blocks.values():
            self._memory.discard(block)
        self._blocks.clear()
        super().delete()

    def delete(self) -> None:
        self.abandon()
        self._undeleted.add(self.name)
        hidden = hide_directory(self._files.disk, self._directory, META)
        self._undeleted.discard(self.name)
        self._files.remove_hidden(hidden)
