"""The background jobs on one stream's block files: finalise, remove, erase and rewrite closed blocks.

One job at a time, and nothing else touches the files of a job in flight (a sync may read them). Its work gets
copies and touches files alone; its end changes the state here, in the thread that owns the store. After
close(), jobs in flight change no more names.

Ordering:
- Jobs start only while the whole log is written. A removal must not reach the disk through an index, a
  rewritten block or a removed file before its tombstone: the message may have been replaced by one that is
  not written yet, and after a crash neither would exist.
- A block file is removed only after the tombstones that make it redundant were written, and after the
  remaining last block was synced.
- A rewritten block replaces its file only after all later block files were synced: these contain the
  messages that replaced the omitted ones, and they carry the sequences. With `sync: always` the same order
  holds for indexes and for removed files.
- It does so after the files of all blocks that left the log were removed: it omits the tombstones of their
  messages.
- A securely removed record is overwritten after a sync that covers its tombstone (see erasures.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.compaction import compact, rewrite_block
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.block_erasing import (
    Overwritten,
    apply_patches,
    log_unreadable,
    overwrite,
    plain_of_envelope,
    zero,
)
from penstock.store.block_reading import BlockReader, block_path, fingerprint, index_path
from penstock.store.block_syncs import BlockSyncs
from penstock.store.block_writing import BlockWriter
from penstock.store.envelope import HEAD
from penstock.store.erasures import Erasures, Patch
from penstock.store.executor import drain
from penstock.store.files import OpenFiles, Permit, write_atomically

logger = logging.getLogger("penstock.store")

COMPACTIONS_A_WRITE = 2
"""Blocks rewritten after each write at most. A block fills in the time in which its size is appended, so two
keep up with any writer, and they delay a write by a few milliseconds at most."""

CLOSING_MAX = 8
"""Closed blocks waiting to be finalised (indexed, compressed, evicted) before write() waits for the
executor."""


def write_index(
    files: OpenFiles,
    directory: Path,
    number: int,
    index: bytearray,
    *,
    permit: Permit | None = None,
) -> None:
    """Ties a closed block's exported index to its file, and writes it. A failure is only logged: it makes
    the next recovery slower."""
    path = index_path(directory, number)
    try:
        size, tail = fingerprint(files.disk, block_path(directory, number))
        MessageBlock.tie_index(index, size, tail)
        files.replace(path, index, sync=False, permit=permit)
    except (StoreWriteError, OSError) as error:
        if permit is None or not permit.is_revoked:
            logger.warning("%s: index not written: %s", path, error)


class BlockJobs:
    """Runs the jobs of one stream's blocks. `compress`: whether blocks that close from now on are
    compressed."""

    def __init__(
        self,
        directory: Path,
        files: OpenFiles,
        log: StreamLog,
        reader: BlockReader,
        writer: BlockWriter,
        syncs: BlockSyncs,
        erasures: Erasures,
    ) -> None:
        self.compress = False
        self.removals = 0  # removals in slices that have begun and not ended
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._file_cipher = files.file_cipher
        self._log = log
        self._reader = reader
        self._writer = writer
        self._syncs = syncs
        self._erasures = erasures
        self._closing: deque[MessageBlock] = deque()
        self._dropped: list[int] = []
        self._dropped_unwritten: list[int] = []  # dropped, but their tombstones are not written yet
        self._rewrites: list[tuple[MessageBlock | None, list[int]]] = []
        self._indexed: dict[int, int] = {}  # blocks whose index recovery read, and how many messages it had
        self._damaged: set[int] = set()  # damaged blocks: they are rewritten from the log
        self._busy: set[int] = set()  # blocks whose files the job in flight writes or removes
        self._owner = object()  # of the work in the executor
        self._permit = Permit()
        self._failed = False  # the last job failed; the next write tries again
        self._is_running = self._closed = False
        self._compactions_left = 0

    def note_indexed(self, number: int, messages: int) -> None:
        """Recovery read a block from its index, which had so many messages."""
        self._indexed[number] = messages

    def rewrite(self, number: int) -> None:
        """Schedules a rewrite of a damaged block, when it is closed."""
        self._damaged.add(number)

    def written(self) -> None:
        """The whole log was written. Starts the jobs that follow, and waits for some when the executor is too
        slow: blocks that are not finalised stay in memory."""
        self._failed = False
        self._closing.extend(self._log.take_closed())
        self._dropped += self._dropped_unwritten
        self._dropped_unwritten.clear()
        self._run()
        while len(self._closing) > CLOSING_MAX and self._files.executor.complete_one(self._owner):
            pass

    def sync_ended(self) -> None:
        """A sync in flight may have blocked the removal or overwriting of the files that it covered."""
        if (self._erasures.ready or self._dropped) and not self._busy:
            self._continue()

    def drain(self) -> None:
        """Waits for the jobs."""
        drain(self._files.executor, self._owner)

    def close(self) -> None:
        """Lets jobs in flight end without effect."""
        self._closed = True
        self._permit.revoke()

    # ------------------------------------------------------------------ the order of jobs

    def _run(self) -> None:
        """Starts jobs until one runs in the background."""
        self._is_running = True
        self._compactions_left = 0 if self.removals else COMPACTIONS_A_WRITE
        try:
            while not self._busy and not self._failed and self._start_next():
                pass
        finally:
            self._is_running = False

    def _end_job(self) -> None:
        """Ends the job in flight and starts the next one."""
        for number in self._busy:
            self._reader.forget(number)
        self._busy = set()
        self._continue()

    def _continue(self) -> None:
        if self._is_running or self._closed:
            return
        try:
            self._run()
        except (StoreError, OSError) as error:
            logger.warning("%s: maintenance failed, the next write tries again: %s", self._directory, error)
            self._failed = True  # the next write tries again and raises if it fails too

    def _start_next(self) -> bool:
        """Starts the next job. Returns False when there is none."""
        if not self._log.is_written or self._syncs.distrusted:
            return False  # the next write starts them
        # Finalising comes first: closed blocks occupy memory until it is done.
        if self._closing:
            block = self._closing.popleft()
            if block.number in self._writer.known and block.resident and not block.replaces:
                self._finalize_block(block)
            return True
        # Files that a sync in flight covers stay until it ends: it would sync a path that no longer exists.
        self._dropped += self._log.take_dropped()
        if self._dropped and any(number not in self._syncs.syncing for number in self._dropped):
            self._remove()
            return True
        return (bool(self._erasures.ready) and self._erase_next()) or self._rewrite_next()

    def _begin_job(self, *numbers: int) -> None:
        assert not self._busy, (self._busy, numbers)
        self._busy = set(numbers)

    def busy(self) -> set[int]:
        """Blocks whose files a job in flight works on."""
        return self._busy

    def _write_index(
        self, number: int, index: bytearray, after: Iterable[Path] = (), permit: Permit | None = None
    ) -> None:
        try:
            self._syncs.sync_files(after)
        except StoreWriteError as error:
            logger.warning("%s: index not written: %s", index_path(self._directory, number), error)
            return
        write_index(self._files, self._directory, number, index, permit=permit)

    # ------------------------------------------------------------------ closed blocks

    def _finalize_block(self, block: MessageBlock) -> None:
        """Compresses a closed block or merges its frames, and writes its index."""
        path = block_path(self._directory, block.number)
        compress, many_frames = self.compress, self._writer.end_appends(block)
        data = bytes(block) if compress or many_frames else None
        index = block.export_index()
        before = self._syncs.required_after(block.number)

        def work() -> None:
            if data is not None:
                stored = self._file_cipher.encode(data, path, compress=compress)
                write_atomically(self._disk, path, stored, permit=self._permit)
            self._write_index(block.number, index, before, permit=self._permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                logger.warning("%s: block not compressed: %s", path, error)
                # The original file is intact, so the index that describes it can still be written.
                self._write_index(block.number, index, before)
            elif data is not None:
                self._writer.replaced(block.number)
                self._syncs.discard(block.number)
            if block.number in self._writer.known:
                self._log.mark_stored(block)
            self._end_job()

        self._begin_job(block.number)
        self._files.executor.run(work, done, self._owner)

    # ------------------------------------------------------------------ rewritten blocks

    def _rewrite_next(self) -> bool:
        """Starts to write the next rewritten block. Returns False when there is none."""
        if self._damaged and not self._rewrites:
            # The open block cannot be rewritten: it is when it has closed.
            number = next((one for one in self._damaged if one != self._open_number()), None)
            if number is not None:
                self._damaged.remove(number)
                self._add_rewrites(rewrite_block(self._log, number))
        if not self._rewrites and self._compactions_left:
            compacted = compact(self._log, 1)
            if compacted:
                self._add_rewrites(compacted)
            self._compactions_left -= 1
        if not self._rewrites:
            return False
        # Compaction may have moved messages into a new block: it must be on disk before the old file is
        # replaced.
        self._writer.write_new()
        made = self._next_rewrite()
        if self._dropped:
            # A rewritten block has no tombstones of messages whose blocks left the log: while such a file
            # exists, a crash would bring them back.
            return any(number not in self._syncs.syncing for number in self._dropped)
        if made is not None:
            self._replace(made)
        return True

    def _add_rewrites(self, rewrites: list[tuple[MessageBlock | None, list[int]]]) -> None:
        self._rewrites += rewrites
        for made, _ in rewrites:
            if made is not None:
                self._erasures.rewritten(made.number)

    def _next_rewrite(self) -> MessageBlock | None:
        """Returns the first rewritten block that is still in the log; schedules the files of the others for
        removal. Keeps the order: what one rewrite omits may depend on the previous rewrite being on disk. A
        block that is being written stays first until the write ends: only then may what it replaces go."""
        while self._rewrites:
            made, gone = self._rewrites[0]
            if (
                made is not None
                and made.replaces
                and (made.number in self._busy or made in self._log.block_list())
            ):
                return made
            del self._rewrites[0]
            if made is not None and made.replaces and self._rewrites:
                # Rewritten again before it was written: its old files may go once the later rewrite is on
                # disk.
                self._rewrites[0][1].extend(gone)
            else:
                self._dropped += gone
        return None

    def _replace(self, made: MessageBlock) -> None:
        """Replaces a block's file by its rewritten version. After an error such as a full disk it is tried
        again; until then the block stays in memory.

        The old index stays until the new one replaces it, because the old file may not be readable without
        it. An old index can fit the new file only if size and last record are equal, and then all other
        records are equal too.
        """
        # The rewritten file omits messages that later blocks replaced: those blocks must be durable first.
        path = block_path(self._directory, made.number)
        before = self._syncs.paths_after(made.number, self._syncs.unsynced | self._syncs.syncing)
        data, index_body, compress = bytes(made), made.export_index(), self.compress
        whole = compress or self._file_cipher.encrypts
        self._writer.end_appends(made)

        def work() -> None:
            self._syncs.sync_files(before)
            stored = self._file_cipher.encode(data, path, compress=compress) if whole else data
            write_atomically(self._disk, path, stored, permit=self._permit)
            self._write_index(made.number, index_body, permit=self._permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                logger.error("%s: cannot rewrite the block: %s", path, error)
                self._failed = True
            else:
                self._writer.replaced(made.number)
                self._indexed.pop(made.number, None)
                self._syncs.discard(made.number)
                made.written = made.size
                made.replaces = False
                if made.number in self._writer.known:
                    self._log.mark_stored(made)
                self._dropped += self._rewrites.pop(0)[1]
            self._end_job()

        self._begin_job(made.number)
        self._files.executor.run(work, done, self._owner)

    def _waiting_for_rewrite(self) -> set[int]:
        return {made.number for made, _ in self._rewrites if made is not None} | self._damaged

    def pending_rewrites(self) -> set[int]:
        """Blocks whose files still have records that a job is going to omit or to remove."""
        replaced = (number for _, gone in self._rewrites for number in gone)
        return self._waiting_for_rewrite().union(replaced, self._dropped, self._dropped_unwritten, self._busy)

    # ------------------------------------------------------------------ removed blocks

    def free_space(self) -> bool:
        """Removes dropped blocks early on a full disk, though their tombstones cannot be written. Returns
        whether it freed anything. Raises StoreWriteError.

        Frees the oldest files up to the first one that must stay: a newer file may contain the only tombstone
        of something removed from it before this write. The newest file with records stays, since it carries
        the last sequence (a recovery may leave an empty one behind it). What was removed from it reappears if
        the process dies before the tombstone is written; that removal was never acknowledged. Blocks dropped
        for messages that are not written stay as well: those publishes are rejected, and the messages they
        would have replaced are acked.
        """
        self._next_rewrite()
        self._dropped_unwritten += self._log.take_dropped()
        dropped = sorted(self._dropped + self._dropped_unwritten)
        newest = max((n for n in dropped if self._has_records(n)), default=0)
        upto = min(self._needed_files() | {newest})
        free = [n for n in dropped if n < upto]
        if not free:
            return False
        if newest in self._syncs.unsynced | self._syncs.syncing:
            self._syncs.sync_files([block_path(self._directory, newest)])
        self._dropped = [n for n in self._dropped if n not in free]
        self._dropped_unwritten = [n for n in self._dropped_unwritten if n not in free]
        self._forget(free)
        self._writer.unlink(free, self._permit)
        return True

    def _has_records(self, number: int) -> bool:
        path = block_path(self._directory, number)
        return number in self._writer.known and self._disk.exists(path) and self._disk.size(path) > HEAD.size

    def _needed_files(self) -> set[int]:
        """Blocks whose files must stay while the log cannot be written."""
        live = {block.number for block in self._log.block_list()} & self._writer.known
        replaced = {number for _, gone in self._rewrites for number in gone}
        return live | replaced | self._busy | self._syncs.syncing | self._log.superseded_blocks()

    def _remove(self) -> None:
        """Removes the files of blocks that left the log, after making a later block durable that carries at
        least their sequences: the stream must not reuse sequences after a power loss."""
        syncing = self._syncs.syncing
        numbers = [number for number in self._dropped if number not in syncing]
        self._dropped = [number for number in self._dropped if number in syncing]
        # The successor stays unsynced: a group commit that starts now must cover it even if this job is
        # slower.
        witness = [block_path(self._directory, number) for number in self._successor_to_sync(max(numbers))]
        self._forget(numbers)
        before = dict.fromkeys([*witness, *self._syncs.required_after(min(numbers))])

        def work() -> None:
            self._syncs.sync_files(before)
            self._writer.unlink(numbers, self._permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                # Tombstones in this block may cover earlier blocks: no other file may go until this removal
                # succeeded.
                logger.warning("block files not removed yet: %s", error)
                self._dropped = numbers + self._dropped
                present = (n for n in numbers if self._disk.exists(block_path(self._directory, n)))
                self._writer.known.update(present)
                self._failed = True
            self._syncs.names_changed()
            self._end_job()

        self._begin_job(*numbers)
        self._files.executor.run(work, done, self._owner)

    def _successor_to_sync(self, number: int) -> set[int]:
        """The block to sync before blocks up to `number` may go; empty when a later one is on disk
        already."""
        later = [block for block in self._log.block_list() if block.number > number]
        speaking = [block.number for block in later if len(block)] or [block.number for block in later[-1:]]
        # Prefer the first one: a closed block is synced once, while the open one is written to again.
        unsynced = self._syncs.unsynced | self._syncs.syncing
        return set(speaking[:1]) if unsynced.issuperset(speaking) else set()

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._writer.forget(number)
            self._indexed.pop(number, None)
            self._damaged.discard(number)

    # ------------------------------------------------------------------ securely removed records

    def _erase_next(self) -> bool:
        """Overwrites the securely removed records of the next block. Returns False when there is none.

        Those in files that a sync in flight covers wait for its end.
        """
        number = next((one for one in self._erasures.ready if one not in self._syncs.syncing), None)
        if number is None:
            return False
        patches = self._take_erasures(number)
        if patches and number == self._open_number():
            self._erase_open(number, patches)
        elif patches:
            self._erase_closed(number, patches)
        return True

    def erase_all(self) -> None:
        """Overwrites now what no job or sync in flight uses. Raises StoreError, OSError; what is left is
        tried again later."""
        blocked = self._busy | self._syncs.syncing
        for number in [number for number in self._erasures.ready if number not in blocked]:
            patches = self._take_erasures(number)
            if not patches:
                continue
            if number == self._open_number():
                self._erase_open(number, patches)
                continue
            try:
                outcome = self._overwrite(number, patches)
            except (StoreError, OSError):
                self._erasures.put_back(patches)
                raise
            if outcome.old is not None:
                self._writer.replaced(number)
                zero(self._disk, outcome.old)
            self._erased(number, patches, outcome)

    def _take_erasures(self, number: int) -> list[Patch]:
        """Takes the records to overwrite in a block, none when they go with the file."""
        patches = self._erasures.take_ready(number)
        if number in self._waiting_for_rewrite() and number != self._open_number():
            self._erasures.left_to_rewrite(patches)
            return []
        if number not in self._writer.known:
            self._erasures.overwritten(patches)
            return []
        return patches

    def _open_number(self) -> int:
        return next((block.number for block in self._log.block_list()[-1:] if not block.closed), 0)

    def _erase_open(self, number: int, patches: list[Patch]) -> None:
        """Overwrites records of the open block. In this thread: the next write appends to the file, and an
        encrypted one must not be replaced meanwhile. A plain one gets writes as large as the records, like an
        append. Raises StoreWriteError; the records are then tried again later."""
        path = block_path(self._directory, number)
        try:
            plain = plain_of_envelope(self._files, path)
        except (OSError, StoreError) as error:
            log_unreadable(path, error)
            self._erasures.overwritten(patches)
            return
        try:
            if plain is None:
                self._writer.overwrite_open(number, patches)
            else:
                apply_patches(plain, patches)
                zero(self._disk, self._writer.replace_open(number, plain))
                self._syncs.discard(number)
        except BaseException:
            self._erasures.put_back(patches)
            raise
        self._erasures.overwritten(patches)

    def _erase_closed(self, number: int, patches: list[Patch]) -> None:
        """Overwrites records of a closed block in the background."""

        def done(outcome: Overwritten | None, error: StoreError | OSError | None) -> None:
            if self._closed:
                if outcome is not None and outcome.old is not None:
                    self._disk.close(outcome.old.fd)
                return
            if outcome is None:
                logger.warning("block %d: removed records are not overwritten yet: %s", number, error)
                self._erasures.put_back(patches)
                self._failed = True
                self._end_job()
            elif outcome.old is None:
                self._erased(number, patches, outcome)
                self._end_job()
            else:
                # Before the old file is zeroed, so that its last descriptor is closed there: that frees its
                # 8 MiB, which took 8 ms in this thread.
                self._writer.replaced(number)
                self._zero(number, patches, outcome)

        self._begin_job(number)
        self._files.executor.run(lambda: self._overwrite(number, patches), done, self._owner)

    def _overwrite(self, number: int, patches: list[Patch]) -> Overwritten:
        return overwrite(
            self._files, self._directory, self._reader, number, patches,
            compress=self.compress, permit=self._permit, indexed=self._indexed.get(number),
        )  # fmt: skip

    def _zero(self, number: int, patches: list[Patch], outcome: Overwritten) -> None:
        """Zeroes the replaced file in the background, now that loading the block opens the new one."""
        old = outcome.old
        assert old is not None
        assert number in self._busy, number

        def done(_: None, error: StoreError | OSError | None) -> None:
            if not self._closed:
                self._erased(number, patches, outcome)
                self._end_job()

        self._files.executor.run(lambda: zero(self._disk, old), done, self._owner)

    def _erased(self, number: int, patches: list[Patch], outcome: Overwritten) -> None:
        if outcome.needs_rewrite:
            self._damaged.add(number)
            self._erasures.left_to_rewrite(patches)
            return
        self._indexed.pop(number, None)
        self._erasures.overwritten(patches)
        if outcome.old is not None:
            self._syncs.discard(number)  # the new file is synced
