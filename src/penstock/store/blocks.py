"""The block files of one stream: writes what is new in the log, and syncs it.

`<number>.blk` contains a block's records and is append-only, except that a secure removal overwrites a record
with a tombstone of the same size. `<number>.idx` contains what recovery needs of a closed block. A missing
index is no error: recovery then scans the block. An index is used only when it fits its block file: power
loss leaves holes in files, and only the index finds the records behind a hole. An encrypted block file is
appended to in frames (see envelope.py), and a compressed one is rewritten when its block closes.

The parts, each with the ordering it keeps:
- block_writing.py appends to the files.
- block_syncs.py syncs them, in this thread or in the background.
- block_jobs.py finalises, removes, erases and rewrites closed blocks in the background.
- block_erasing.py overwrites securely removed records in one file; erasures.py says when.

write() does everything itself except the overwriting of secure removals, which follows the sync of their
tombstones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.block_jobs import BlockJobs
from penstock.store.block_reading import BlockReader
from penstock.store.block_syncs import BlockSyncs
from penstock.store.block_writing import BlockWriter
from penstock.store.envelope import AppendedFile
from penstock.store.erasures import Erasures, Patch, find_records, notes_end, sequence_of
from penstock.store.files import OpenFiles

logger = logging.getLogger("penstock.store")


class BlockFiles:
    """Writes and syncs one stream's block files."""

    def __init__(self, directory: Path, files: OpenFiles, reader: BlockReader, log: StreamLog) -> None:
        self._log = log
        self._reader = reader
        self._closed = False
        self._erasures = Erasures(directory, files)
        self._syncs = BlockSyncs(directory, files, self._erasures, self._pending_rewrites)
        self._writer = BlockWriter(directory, files, log, reader, self._syncs)
        self._jobs = BlockJobs(directory, files, log, reader, self._writer, self._syncs, self._erasures)

    def _pending_rewrites(self) -> set[int]:
        return self._jobs.pending_rewrites()

    @property
    def writes(self) -> int:
        """Number of the last write() that succeeded; what recovery found counts as the first one."""
        return self._syncs.writes

    @property
    def synced_writes(self) -> int:
        """Number of the last write() that is on disk; 0: none."""
        return self._syncs.synced_writes

    @property
    def must_write_again(self) -> bool:
        """Whether a sync failed, so that only a write() followed by a sync makes what it covered durable."""
        return bool(self._syncs.distrusted)

    def adopt(self, number: int, indexed: int | None = None) -> None:
        """Registers a block file that recovery found. indexed: how many messages the index had from which it
        was read."""
        self._writer.adopt(number)
        if indexed is not None:
            self._jobs.note_indexed(number, indexed)

    def rewrite(self, number: int) -> None:
        """Schedules a rewrite of a damaged block, when it is closed."""
        self._jobs.rewrite(number)

    def resume(self, number: int, file: AppendedFile) -> None:
        """Registers the encrypted open block that recovery found."""
        self._writer.resume(number, file)

    def set_compression(self, compress: bool) -> None:
        """Whether blocks that close from now on are compressed."""
        self._jobs.compress = compress

    # ------------------------------------------------------------------ writing

    def write(self) -> None:
        """Writes everything new to the operating system; see interface.StreamStore.write().

        Raises StoreWriteError.
        """
        if self._syncs.distrusted:
            self._list_erasures()
            self._writer.write_again(self._jobs.busy(), self._erasures.waiting)
        self._syncs.begin_write()
        in_order = self._log.flush_tombstones() and self._syncs.was_clean
        try:
            self._write_all(in_order)
        except StoreWriteError:
            if not self._jobs.free_space():
                raise
            self._write_all(in_order)
        self._log.all_written()
        self._syncs.end_write()
        if self._erasures.written():
            self._sync_for_erasures()
        self._jobs.written()

    def _write_all(self, in_order: bool) -> None:
        self._list_erasures()
        self._writer.write_new(in_order=in_order)

    def _list_erasures(self) -> None:
        # The list first: an entry without its tombstone has no effect, but not the other way round.
        if self._erasures.add(self._log.take_patches()):
            self._syncs.names_changed()

    @contextmanager
    def removing(self) -> Iterator[None]:
        """See interface.StreamStore.removing()."""
        self._jobs.removals += 1
        try:
            yield
        finally:
            self._jobs.removals -= 1

    # ------------------------------------------------------------------ syncing

    def sync(self) -> None:
        """Syncs everything written, and overwrites what was removed securely. Raises StoreWriteError.

        Waits for this stream's syncs in flight, and fails if one of them fails: what it covered is to be
        written again, and only then does a sync of it say anything. Jobs in flight sync what they write
        themselves.
        """
        self._syncs.wait()
        self._syncs.run()
        if self._erasures.ready:
            try:
                self._jobs.erase_all()
            except OSError as error:
                raise StoreWriteError(f"cannot overwrite removed records: {error.strerror}") from error
            self._syncs.run()

    def drain(self) -> None:
        """Waits for the background work of this stream."""
        self._syncs.drain()
        self._jobs.drain()

    def start_sync(
        self,
        done: Callable[[StoreWriteError | None], object],
        *,
        also: Callable[[], object] = lambda: None,
        names: Sequence[Path] = (),
        on_end: Callable[[StoreWriteError | None], object] = lambda error: None,
    ) -> None:
        """Starts a sync in the background, together with `also`, which syncs other files, and directories
        (`names`). At its end it calls `on_end`, then `done`, each with the error or None; see BlockSyncs."""
        self._syncs.start([on_end, done, self._sync_ended], also=also, names=names)

    def _sync_ended(self, failure: StoreWriteError | None) -> None:
        self._jobs.sync_ended()
        # Where something raises at the end of each sync, one would follow the other for ever, also while a
        # request waits for the last of them. The end of a later sync comes here again.
        if failure is None and not self._syncs.end_raised:
            self._sync_for_erasures()

    # ------------------------------------------------------------------ secure removals

    def recover_erasures(self) -> None:
        """Continues to overwrite what another process did not get to overwrite."""
        by_block: dict[int, list[Patch]] = {}
        for patch in self._erasures.recover():
            if patch.number in self._writer.known and self._log.load(sequence_of(patch)) is None:
                by_block.setdefault(patch.number, []).append(patch)
        confirmed: list[Patch] = []
        rewriting: list[Patch] = []
        for number, patches in by_block.items():
            try:
                found = find_records(self._reader.read(number), patches)
            except StoreError as error:
                logger.error("%s; securely removed records may still be in it", error)
                continue
            if found is None:
                self._jobs.rewrite(number)
                rewriting += patches
            else:
                confirmed += [patch for patch in found if self._may_erase(patch)]
        self._overwrite_in_memory(confirmed)
        self._erasures.resume(confirmed, rewriting)
        self._sync_for_erasures()

    def _overwrite_in_memory(self, patches: list[Patch]) -> None:
        """The open block was copied from its file, and is written from memory when it is compressed."""
        for patch in patches:
            self._log.patch(patch.number, patch.offset, patch.data)

    def _may_erase(self, patch: Patch) -> bool:
        """The record of the last message may be the only one with the stream's last time: a write that was
        torn lost its tombstone, and its removal was not confirmed."""
        last = self._log.block_list()[-1].number
        return sequence_of(patch) < self._log.last_seq or notes_end(
            self._reader.read(last), self._log.last_seq
        )

    def _sync_for_erasures(self) -> None:
        """Syncs the tombstones of records that are to be overwritten. With a sync in flight, its end calls
        this again."""
        if self._erasures.need_sync and self._syncs.is_idle and not self._closed:
            self.start_sync(self._synced_for_erasures)

    def _synced_for_erasures(self, error: StoreWriteError | None) -> None:
        if error is not None:
            logger.warning("%s: removed records are not overwritten yet: %s", self._erasures.path, error)

    def close(self) -> None:
        """Releases the files without writing. Syncs and jobs in flight end without effect."""
        self._closed = True
        self._syncs.close()
        self._jobs.close()
        self._erasures.close()
        self._writer.close()
