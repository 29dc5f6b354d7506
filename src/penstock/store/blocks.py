"""The block files of one stream: writes what is new in the log.

`<number>.blk` contains a block's records and is append-only, except that a secure removal overwrites a record
with a tombstone of the same size. `<number>.idx` contains what recovery needs of a closed block. A missing
index is no error: recovery then scans the block. An index is used only when it fits its block file: power
loss leaves holes in files, and only the index finds the records behind a hole. An encrypted block file is
appended to in frames (see envelope.py), and a compressed one is rewritten when its block closes. A secure
removal rewrites such a file as a whole and zeroes the old one.

Ordering:
- Bytes are written front to back: a file never has a hole of our making.
- A block file is removed only after the tombstones that make it redundant were written, and after the
  remaining last block was synced.
- A rewritten block replaces its file only after all later block files were synced: these contain the
  messages that replaced the omitted ones, and they carry the sequences. With `sync: always` the same order
  holds for indexes and for removed files.
- A securely removed record is overwritten after a sync that covers its tombstone (see erasures.py).

write() itself does what it promises, but the overwriting, which follows that sync. Writing indexes,
compressing and rewriting blocks are background jobs: one at a time for a stream, and nothing else touches the
files of a job in flight. After close(), jobs in flight change no more names.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock import faults
from penstock.errors import StoreError, StoreWriteError
from penstock.kernels.log.compaction import compact, rewrite_block
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.block_reading import (
    FILE_HEAD_BYTES,
    BlockReader,
    block_path,
    fingerprint,
    index_path,
    is_self_contained,
    map_file,
)
from penstock.store.disk import Disk
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.erasures import Covered, Erasures, Patch, find_records, notes_end, sequence_of
from penstock.store.executor import drain
from penstock.store.files import OpenFiles, Permit, remove_file, sync_directory, write_atomically

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
    index: bytes,
    *,
    after: Sequence[Path] = (),
    permit: Permit | None = None,
) -> None:
    """Writes a closed block's exported index, tied to its file, after syncing the files `after`. A failure is
    only logged: it makes the next recovery slower."""
    path = index_path(directory, number)
    try:
        sync_files(files.disk, after)
        size, tail = fingerprint(files.disk, block_path(directory, number))
        tied = MessageBlock.tie_index(index, size, tail)
        files.replace(path, tied, sync=False, permit=permit)
    except (StoreWriteError, OSError) as error:
        if permit is None or not permit.is_revoked:
            logger.warning("%s: index not written: %s", path, error)


class _Sync(NamedTuple):
    """What a sync covers."""

    numbers: set[int]  # blocks
    names_changed: bool
    erasures: Covered


class _SyncInFlight:
    """A sync in the background. end: called with its error or None, in the order of the starts."""

    __slots__ = ("end", "failure", "is_done", "numbers")

    def __init__(self, numbers: set[int], end: Callable[[StoreWriteError | None], object]) -> None:
        self.numbers = numbers
        self.end = end
        self.failure: StoreWriteError | None = None
        self.is_done = False


class BlockFiles:
    """Writes and reads one stream's block files. `compress`: whether blocks that close from now on are
    compressed."""

    def __init__(self, directory: Path, files: OpenFiles, reader: BlockReader) -> None:
        self.compress = False
        self._reader = reader
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._file_cipher = files.file_cipher
        self._unsynced: set[int] = set()  # blocks written since the last sync
        self._was_clean = False  # everything was on disk when the last write began
        self._in_order = False  # this write syncs each file before it writes the next one
        self._in_flight: list[_SyncInFlight] = []  # in the order of their starts
        self._sync_failure: StoreWriteError | None = None  # of the last one that failed; see sync()
        self._syncing: set[int] = set()  # blocks covered by them
        self._names_changed = False
        self._known: set[int] = set()  # blocks that have a file
        self._erasures = Erasures(directory, files)
        self._rewrites: list[tuple[MessageBlock | None, list[int]]] = []
        self._index_only: set[int] = set()  # blocks readable only with their index: they are rewritten
        self._closing: deque[MessageBlock] = deque()
        self._dropped: list[int] = []
        self._dropped_unwritten: list[int] = []  # dropped, but their tombstones are not written yet
        self._jobs, self._syncs = object(), object()  # owners of the work in the executor
        self._busy_number = 0  # block of the job in flight
        self._removing: list[int] = []  # blocks whose files the job in flight removes
        self._failed = False  # the last job failed; the next write() tries again
        self._permit = Permit()  # of the jobs
        self._in_maintenance = self._closed = False
        self._compactions_left = 0
        self._removals = 0  # removals in slices that have begun and not ended
        self._appended: dict[int, AppendedFile] = {}  # encrypted blocks that may still grow
        # The path of the block written last, usually also the next one: building and hashing a Path took half
        # the time of a small write.
        self._written_number = -1
        self._written_path = directory

    def adopt(self, number: int) -> None:
        """Registers a block file that recovery found."""
        self._known.add(number)
        # The process that wrote it may have died before its sync.
        self._unsynced.add(number)
        self._names_changed = True

    def rewrite(self, number: int) -> None:
        """Schedules a rewrite of a closed block that only its index can read."""
        self._index_only.add(number)

    def resume(self, number: int, file: AppendedFile) -> None:
        """Registers the encrypted open block that recovery found."""
        self._appended[number] = file

    # ------------------------------------------------------------------ writing

    def write(self, log: StreamLog) -> None:
        """Writes everything new to the operating system; see interface.StreamStore.write().

        Raises StoreWriteError.
        """
        self._was_clean = not self._unsynced and not self._syncing
        self._in_order = log.flush_notes() and self._was_clean
        try:
            self._write_all(log)
        except StoreWriteError:
            if not self._free_space(log):
                raise
            self._write_all(log)
        log.all_written()
        self._erasures.written()
        self._failed = self._in_order = False
        self._closing.extend(log.take_closed())
        self._dropped += self._dropped_unwritten
        self._dropped_unwritten.clear()
        self._sync_for_erasures(log)
        self._run_maintenance(log)
        while len(self._closing) > CLOSING_MAX and self._files.executor.complete_one(self._jobs):
            pass  # the executor is too slow: blocks that are not finalised stay in memory, so bound them

    def _write_all(self, log: StreamLog) -> None:
        self._names_changed |= self._erasures.add(log.take_patches())
        self._write_new(log)

    @contextmanager
    def removing(self) -> Iterator[None]:
        """See interface.StreamStore.removing()."""
        self._removals += 1
        try:
            yield
        finally:
            self._removals -= 1

    def _write_new(self, log: StreamLog) -> None:
        """Writes the unwritten blocks, in order.

        A power loss must not keep the tombstone of a replaced message and lose the message that replaced it,
        whose bytes are in an earlier file. When everything before this write is on disk, as with `sync:
        always`, each file is therefore synced before the next one is written. Otherwise a power loss takes
        back everything since the last sync in any case, and one sync per block would delay all writers.
        """
        for block in log.unwritten():
            if self._in_order and self._unsynced - {block.number}:
                self._sync_now()
            self._write_block(block)

    def _write_block(self, block: MessageBlock) -> None:
        if block.number != self._written_number:
            self._written_number = block.number
            self._written_path = block_path(self._directory, block.number)
        path = self._written_path
        with memoryview(block) as view:
            if self._file_cipher.encrypts:
                appended = self._appended.get(block.number)
                if appended is None:
                    appended = self._appended[block.number] = AppendedFile(self._files, path)
                while block.written < block.size:
                    with view[block.written :] as rest:
                        block.written += appended.append(rest)
            while block.written < block.size:
                with view[block.written :] as rest:
                    block.written += self._files.write(path, rest, block.written)
        self._unsynced.add(block.number)
        if block.number not in self._known:
            self._known.add(block.number)
            self._names_changed = True
        assert block.written == block.size

    def _free_space(self, log: StreamLog) -> bool:
        """Removes dropped blocks early on a full disk, though their tombstones cannot be written. Returns
        whether it freed anything.

        Frees the oldest files up to the first one that must stay: a newer file may contain the only tombstone
        of something removed from it before this write. The newest written file stays, since it carries the
        last sequence. What was removed from it reappears if the process dies before the tombstone is written;
        that removal was never acknowledged. Blocks dropped for messages that are not written stay as well:
        those publishes are rejected, and the messages they would have replaced are acked.
        """
        self._next_rewrite(log)
        self._dropped_unwritten += log.take_dropped()
        dropped = sorted(self._dropped + self._dropped_unwritten)
        newest = max((n for n in dropped if n in self._known), default=0)
        upto = min(self._needed_files(log) | {newest})
        free = [n for n in dropped if n < upto]
        if not free:
            return False
        if newest in self._unsynced | self._syncing:
            sync_files(self._disk, [block_path(self._directory, newest)])
        self._dropped = [n for n in self._dropped if n not in free]
        self._dropped_unwritten = [n for n in self._dropped_unwritten if n not in free]
        for number in free:
            self._forget(number)
        self._unlink(free)
        return True

    def _needed_files(self, log: StreamLog) -> set[int]:
        """Blocks whose files must stay while the log cannot be written."""
        live = {block.number for block in log.block_list()} & self._known
        replaced = {number for _, gone in self._rewrites for number in gone}
        busy = {self._busy_number, *self._removing} - {0}
        return live | replaced | busy | self._syncing | log.superseded_blocks()

    # ------------------------------------------------------------------ background jobs

    def _run_maintenance(self, log: StreamLog) -> None:
        """Starts the jobs that follow a write, until one runs in the background."""
        self._in_maintenance = True
        self._compactions_left = 0 if self._removals else COMPACTIONS_A_WRITE
        try:
            if self._erasures.ready:
                self._erase()
            while not self._busy_number and not self._failed and self._start_next_job(log):
                pass
        finally:
            self._in_maintenance = False

    def _job_done(self, log: StreamLog) -> None:
        """Ends the background job in flight and starts the next one."""
        self._reader.forget(self._busy_number)
        self._busy_number = 0
        if self._in_maintenance or self._closed:
            return
        try:
            self._run_maintenance(log)
        except (StoreError, OSError) as error:
            logger.warning("%s: maintenance failed, the next write tries again: %s", self._directory, error)
            self._failed = True  # the next write() tries again and raises if it fails too

    def _start_next_job(self, log: StreamLog) -> bool:
        """Submits the next job. Returns False when there is none.

        A removal must not reach the disk through an index, a rewritten block or a removed file before its
        tombstone. The message may have been replaced by one that is not written yet; after a crash, neither
        would exist. Jobs therefore start only while the whole log is written; otherwise the next write()
        starts them.
        """
        if not log.is_written:
            return False
        # Finalising comes first: closed blocks occupy memory until it is done.
        if self._closing:
            block = self._closing.popleft()
            if block.number in self._known and block.resident and not block.replaces:
                self._finalize_block(log, block)
            return True
        # Files that a sync in flight covers stay until it ends: it would sync a path that no longer exists.
        self._dropped += log.take_dropped()
        if self._dropped and any(number not in self._syncing for number in self._dropped):
            self._remove(log)
            return True
        if not self._rewrites and self._index_only:
            self._add_rewrites(rewrite_block(log, self._index_only.pop()))
        if not self._rewrites and self._compactions_left:
            self._add_rewrites(compact(log, 1))
            self._compactions_left -= 1
        if not self._rewrites:
            return False
        # Compaction may have moved messages into a new block: it must be on disk before the old file is
        # replaced.
        self._write_new(log)
        made = self._next_rewrite(log)
        if made is not None:
            self._replace(log, made)
        return True

    def _add_rewrites(self, rewrites: list[tuple[MessageBlock | None, list[int]]]) -> None:
        self._rewrites += rewrites
        for made, _ in rewrites:
            if made is not None:
                self._erasures.rewritten(made.number)

    def _next_rewrite(self, log: StreamLog) -> MessageBlock | None:
        """Returns the first rewritten block that is still in the log; schedules the files of the others for
        removal. Keeps the order: what one rewrite omits may depend on the previous rewrite being on disk. A
        block that is being written stays first until the write ends: only then may what it replaces go."""
        while self._rewrites:
            made, gone = self._rewrites[0]
            if (
                made is not None
                and made.replaces
                and (made.number == self._busy_number or made in log.block_list())
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

    def _finalize_block(self, log: StreamLog, block: MessageBlock) -> None:
        """Compresses a closed block or merges its frames, and writes its index."""
        path = block_path(self._directory, block.number)
        # Every write to an encrypted file adds a frame; merge them when they cost more than a quarter of the
        # block.
        many_frames = block.number in self._appended and self._disk.size(path) > block.size * 5 // 4
        self._appended.pop(block.number, None)
        compress = self.compress
        data = bytes(block) if compress or many_frames else None
        index = block.export_index()
        before = self._unsynced_after(block.number)

        def work() -> None:
            if data is not None:
                stored = self._file_cipher.encode(data, path, compress=compress)
                write_atomically(self._disk, path, stored, permit=self._permit)
            write_index(self._files, self._directory, block.number, index, after=before, permit=self._permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                logger.warning("%s: block not compressed: %s", path, error)
                # The original file is intact, so the index that describes it can still be written.
                write_index(self._files, self._directory, block.number, index, after=before)
            elif data is not None:
                self._files.forget(path)
                self._unsynced.discard(block.number)
            if block.number in self._known:
                log.mark_stored(block)
            self._job_done(log)

        self._busy_number = block.number
        self._files.executor.run(work, done, self._jobs)

    def _replace(self, log: StreamLog, made: MessageBlock) -> None:
        """Replaces a block's file by its rewritten version. After an error such as a full disk it is tried
        again; until then the block stays in memory.

        The old index stays until the new one replaces it, because the old file may not be readable without
        it. An old index can fit the new file only if size and last record are equal, and then all other
        records are equal too.
        """
        # The rewritten file omits messages that later blocks replaced: those blocks must be durable first.
        path = block_path(self._directory, made.number)
        before = self._paths_after(made.number, self._unsynced | self._syncing)
        data, index_body, compress = bytes(made), made.export_index(), self.compress
        whole = compress or self._file_cipher.encrypts
        self._appended.pop(made.number, None)

        def work() -> None:
            sync_files(self._disk, before)
            stored = self._file_cipher.encode(data, path, compress=compress) if whole else data
            write_atomically(self._disk, path, stored, permit=self._permit)
            write_index(self._files, self._directory, made.number, index_body, permit=self._permit)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                logger.error("%s: cannot rewrite the block: %s", path, error)
                self._failed = True
            else:
                self._files.forget(path)
                self._unsynced.discard(made.number)
                made.written = made.size
                made.replaces = False
                if made.number in self._known:
                    log.mark_stored(made)
                self._dropped += self._rewrites.pop(0)[1]
            self._job_done(log)

        assert not self._busy_number, (self._busy_number, made.number)
        self._busy_number = made.number
        self._files.executor.run(work, done, self._jobs)

    def _unsynced_after(self, number: int) -> list[Path]:
        """The files that must be on disk before anything there reflects a removal from this block: they
        contain the messages that replaced the removed ones. A background job can overtake the sync that would
        cover them.

        This applies only when everything written before them is on disk, as with `sync: always`. Otherwise a
        power loss takes back everything since the last sync in any case, and one sync per block would delay
        all writers.
        """
        numbers = self._syncing | self._unsynced if self._was_clean else self._syncing
        return self._paths_after(number, numbers)

    def _paths_after(self, number: int, numbers: set[int]) -> list[Path]:
        return [block_path(self._directory, one) for one in sorted(numbers) if one > number]

    def _remove(self, log: StreamLog) -> None:
        """Removes the files of blocks that left the log, after making a later block durable that carries at
        least their sequences: the stream must not reuse sequences after a power loss."""
        numbers = [number for number in self._dropped if number not in self._syncing]
        self._dropped = [number for number in self._dropped if number in self._syncing]
        # The successor stays in `_unsynced`: a group commit that starts now must cover it even if this job is
        # slower.
        witness = [
            block_path(self._directory, number) for number in self._successor_to_sync(log, max(numbers))
        ]
        for number in numbers:
            self._forget(number)
        before = dict.fromkeys([*witness, *self._unsynced_after(min(numbers))])

        def work() -> None:
            sync_files(self._disk, before)
            self._unlink(numbers)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if self._closed:
                return
            if error is not None:
                # Tombstones in this block may cover earlier blocks: no other file may go until this removal
                # succeeded.
                logger.warning("block files not removed yet: %s", error)
                self._dropped = numbers + self._dropped
                self._known.update(n for n in numbers if self._disk.exists(block_path(self._directory, n)))
                self._failed = True
            self._names_changed = True
            self._removing = []
            self._job_done(log)

        assert not self._busy_number, (self._busy_number, numbers)
        self._busy_number, self._removing = numbers[0], numbers
        self._files.executor.run(work, done, self._jobs)

    def _successor_to_sync(self, log: StreamLog, number: int) -> set[int]:
        """The block to sync before blocks up to `number` may go; empty when a later one is on disk
        already."""
        later = [block for block in log.block_list() if block.number > number]
        speaking = [block.number for block in later if len(block)] or [block.number for block in later[-1:]]
        # Prefer the first one: a closed block is synced once, while the open one is written to again.
        return set(speaking[:1]) if (self._unsynced | self._syncing).issuperset(speaking) else set()

    def _forget(self, number: int) -> None:
        self._files.forget(block_path(self._directory, number))
        self._known.discard(number)
        self._reader.forget(number)
        self._index_only.discard(number)
        self._unsynced.discard(number)
        self._appended.pop(number, None)

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            path = block_path(self._directory, number)
            try:
                with self._permit.entered():
                    self._disk.unlink(index_path(self._directory, number))
                with self._permit.entered():
                    self._disk.unlink(path)
            except OSError as error:
                raise StoreWriteError(f"cannot remove the file: {error.strerror}", path=str(path)) from error

    # ------------------------------------------------------------------ secure removals

    def recover_erasures(self, log: StreamLog) -> None:
        """Continues to overwrite what another process did not get to overwrite."""
        by_block: dict[int, list[Patch]] = {}
        for patch in self._erasures.recover():
            if patch.number in self._known and log.load(sequence_of(patch)) is None:
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
                self._index_only.add(number)
                rewriting += patches
            else:
                confirmed += [patch for patch in found if self._may_erase(log, patch)]
        self._erasures.resume(confirmed, rewriting)
        self._sync_for_erasures(log)

    def _may_erase(self, log: StreamLog, patch: Patch) -> bool:
        """The record of the last message may be the only one with the stream's last time: a write that was
        torn lost the note of it, and its removal was not confirmed."""
        last = log.block_list()[-1].number
        return sequence_of(patch) < log.last_seq or notes_end(self._reader.read(last), log.last_seq)

    def _sync_for_erasures(self, log: StreamLog) -> None:
        """Syncs the tombstones of records that are to be overwritten. With a sync in flight, its end calls
        this again."""
        if self._erasures.need_sync and not self._in_flight and not self._closed:
            self.start_sync(log, self._synced_for_erasures)

    def _synced_for_erasures(self, error: StoreWriteError | None) -> None:
        if error is not None:
            logger.warning("%s: removed records are not overwritten yet: %s", self._directory, error)

    def _rewriting(self) -> set[int]:
        """Blocks whose files still have records that a rewrite omits."""
        waiting = {made.number for made, _ in self._rewrites if made is not None}
        return waiting | self._index_only | {self._busy_number}

    def _erase(self) -> None:
        """Overwrites securely removed records with tombstones; defers those in files that a job or sync is
        using."""
        erasures = self._erasures
        rewritten = {made.number for made, _ in self._rewrites if made is not None} | self._index_only
        waiting, erasures.ready = erasures.ready, []
        by_block: dict[int, list[Patch]] = {}
        for patch in waiting:
            if patch.number == self._busy_number or patch.number in self._syncing:
                erasures.ready.append(patch)
            elif patch.number in rewritten:
                erasures.left_to_rewrite([patch])
            elif patch.number in self._known:
                by_block.setdefault(patch.number, []).append(patch)
            else:
                erasures.overwritten([patch])
        try:
            while by_block:
                number = next(iter(by_block))
                self._patch(number, [(patch.offset, patch.data) for patch in by_block[number]])
                done = by_block.pop(number)
                (erasures.left_to_rewrite if number in self._index_only else erasures.overwritten)(done)
        finally:
            erasures.ready += [patch for patches in by_block.values() for patch in patches]

    def _patch(self, number: int, patches: list[tuple[int, bytes]]) -> None:
        """Overwrites records in one block file. Leaves an unreadable file as it is: the tombstones exist
        elsewhere too, and reading the block reports what is lost."""
        path, index = block_path(self._directory, number), index_path(self._directory, number)
        has_index = self._disk.exists(index)
        try:
            if has_index and not is_self_contained(number, self._reader.read(number)):
                self._index_only.add(number)  # its rewrite omits the records that are to be erased
                return
            is_whole = is_enveloped(self._disk.read_at(path, 0, FILE_HEAD_BYTES))
            plain = self._file_cipher.decode(map_file(self._disk, path), path).data if is_whole else None
        except (OSError, StoreError) as error:
            logger.error("%s: cannot be read; securely removed records may still be in it: %s", path, error)
            return
        # The index still counts the removed message. Without an index, recovery scans the block and finds the
        # tombstone. The removal of the index must be durable first: were the index to reappear after a power
        # loss, the subject would count the message as long as the block exists.
        if has_index:
            remove_file(self._disk, index)
            sync_directory(self._disk, self._directory)
        self._unsynced.add(number)
        if plain is not None:
            self._patch_envelope(path, number, plain, patches)
            return
        for offset, data in patches:
            written = 0
            while written < len(data):
                written += self._files.write(path, data[written:], offset + written)

    def _patch_envelope(
        self, path: Path, number: int, plain: bytearray, patches: list[tuple[int, bytes]]
    ) -> None:
        """Writes a new file without the records, then zeroes the old file, which no name refers to any
        more."""
        for offset, data in patches:
            plain[offset : offset + len(data)] = data
        compress = self.compress and number not in self._appended
        stored = self._file_cipher.encode(plain, path, compress=compress)
        old = self._disk.open(path)
        try:
            size = self._disk.size(path)
            self._replace_envelope(path, number, stored, len(plain))
            at = 0
            while at < size:
                at += self._disk.write(old, bytes(min(size - at, 1 << 20)), at)
            self._disk.sync(old)
        except OSError as error:
            logger.warning("%s: securely removed records may still be on the disk: %s", path, error.strerror)
        finally:
            self._disk.close(old)
        self._unsynced.discard(number)

    def _replace_envelope(self, path: Path, number: int, stored: bytes, length: int) -> None:
        """Replaces an enveloped file that may be open for appends. Raises StoreWriteError.

        When only the sync of its name failed, the file was replaced all the same, and later appends must go
        to the new file: the head on disk, not the exception, decides which one is current.
        """
        head = stored[: HEAD.size]
        try:
            write_atomically(self._disk, path, stored)
        finally:
            if self._disk.read_at(path, 0, HEAD.size) == head:
                self._files.forget(path)
                if number in self._appended:
                    self._appended[number] = AppendedFile(
                        self._files, path, size=len(stored), length=length, head=head
                    )

    # ------------------------------------------------------------------ syncing

    def sync(self) -> None:
        """Syncs everything written, and overwrites what was removed securely. Raises StoreWriteError.

        Waits for this stream's syncs in flight, and fails if one of them fails: what it covered is to be
        written again, and only then does a sync of it say anything. Jobs in flight sync what they write
        themselves.
        """
        self._sync_failure = None
        drain(self._files.executor, self._syncs)
        if self._sync_failure is not None:
            # The system may have dropped what it covered, and would report success from now on.
            raise self._sync_failure
        self._sync_now()
        if self._erasures.ready:
            self._erase()
            self._sync_now()

    def drain(self) -> None:
        """Waits for the background work of this stream."""
        drain(self._files.executor, self._syncs)
        drain(self._files.executor, self._jobs)

    def _sync_now(self) -> None:
        sync = self._begin_sync()
        try:
            self._run_sync(sync)
        except StoreWriteError:
            self._sync_failed(sync)
            raise
        self._erasures.sync_succeeded(sync.erasures)

    def start_sync(
        self,
        log: StreamLog,
        done: Callable[[StoreWriteError | None], object],
        *,
        also: Sequence[Path] = (),
        names: Sequence[Path] = (),
        on_end: Callable[[StoreWriteError | None], object] = lambda error: None,
    ) -> None:
        """Starts a sync in the background, together with other files (`also`) and directories (`names`). At
        its end it calls `on_end`, then `done`, each with the error or None.

        A success means that everything written before the start is on disk. What a sync in flight covers is
        not covered again, so this one ends after all that are in flight, and fails if one of them fails.

        Calls `done` even when the bookkeeping before it raises: acks wait for it.
        """
        sync = self._begin_sync()

        def work() -> None:
            sync_files(self._disk, also)
            self._run_sync(sync)
            for directory in names:
                self._sync_names(directory)

        def note_end(failure: StoreWriteError | None) -> None:
            if self._closed:
                return  # the files may be those of another stream of this name
            self._syncing = set().union(*(one.numbers for one in self._in_flight))
            if failure is None:
                self._erasures.sync_succeeded(sync.erasures)
            else:
                self._sync_failure = failure
                self._sync_failed(sync)
                self._write_again(log, sync.numbers)

        def end(failure: StoreWriteError | None) -> None:
            for step in (note_end, on_end):
                # An exception in the bookkeeping must not keep `done` from running: the stream's acks would
                # wait forever.
                faults.contain(step, self._bookkeeping_failed, failure)
            done(failure)
            # The sync that ended may have blocked the removal or overwriting of its files.
            if (self._erasures.ready or self._dropped) and not self._busy_number:
                self._job_done(log)
            if failure is None:
                self._sync_for_erasures(log)

        flight = _SyncInFlight(sync.numbers, end)
        self._in_flight.append(flight)
        self._syncing |= sync.numbers

        def finish(_: None, error: StoreError | OSError | None) -> None:
            flight.is_done = True
            if error is not None:
                flight.failure = StoreWriteError(str(error))
            self._end_syncs()

        self._files.executor.run(work, finish, self._syncs)

    def _end_syncs(self) -> None:
        """Ends the syncs that are done and follow no other one that is in flight."""
        if not self._in_flight or not self._in_flight[0].is_done:
            return
        first = self._in_flight.pop(0)
        if first.failure is not None:
            for later in self._in_flight:
                later.failure = first.failure
        try:
            first.end(first.failure)
        finally:
            self._end_syncs()

    def _bookkeeping_failed(self, error: Exception, *_: object) -> None:
        faults.note(f"end of a sync of {self._directory}", error)

    def _begin_sync(self) -> _Sync:
        sync = _Sync(self._unsynced, self._names_changed, self._erasures.begin_sync(self._rewriting))
        self._unsynced, self._names_changed = set(), False
        return sync

    def _sync_failed(self, sync: _Sync) -> None:
        self._unsynced |= sync.numbers
        self._names_changed |= sync.names_changed
        self._erasures.sync_failed(sync.erasures)

    def _run_sync(self, sync: _Sync) -> None:
        # The list first: on disk without the tombstones it has no effect, but not the other way round.
        if sync.erasures.noted:
            sync_files(self._disk, [self._erasures.path])
        sync_files(self._disk, [block_path(self._directory, number) for number in sorted(sync.numbers)])
        if sync.names_changed:
            self._sync_names(self._directory)

    def _sync_names(self, directory: Path) -> None:
        try:
            self._disk.sync_directory(directory)
        except FileNotFoundError:
            return  # the consumer or the stream was deleted meanwhile
        except OSError as error:
            raise StoreWriteError(
                f"cannot sync the directory: {error.strerror}", path=str(directory)
            ) from error

    def _write_again(self, log: StreamLog, numbers: set[int]) -> None:
        """After a failed sync the system may have dropped the dirty pages and report success from then on
        (fsync reports an error once): the part still in memory is written again."""
        tail = next((block for block in log.block_list()[-1:] if block.number in numbers), None)
        if tail is not None and not self._file_cipher.encrypts:
            tail.written = 0

    def close(self) -> None:
        """Releases the files without writing. Jobs in flight end without effect."""
        self._closed = True
        self._permit.revoke()
        self._erasures.close()
        for number in self._known:
            self._files.forget(block_path(self._directory, number))


def sync_files(disk: Disk, paths: Iterable[Path]) -> None:
    """Syncs the bytes of these files. Safe in any thread. Raises StoreWriteError."""
    for path in paths:
        try:
            # Not created: the path may belong to a new stream or consumer by now.
            fd = disk.open(path, create=False)
            try:
                disk.sync(fd)
            finally:
                disk.close(fd)
        except FileNotFoundError:
            continue  # its block or its directory was deleted meanwhile
        except OSError as error:
            raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error
