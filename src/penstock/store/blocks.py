"""The files of one stream's blocks: writes what is new in its log, gives closed blocks back.

`<number>.blk` holds a block's records and is only appended to (but for secure removals, which put a note of
the same size over a record); `<number>.idx` is what recovery needs of a closed block. An index may be
missing: recovery then reads the block. It is never taken from a block whose file does not tell the same:
power loss leaves holes in files, and what is behind one is found by the index alone. Encrypted, a block's
file is appended to by frames (see envelope.py); compressed, it is written anew when it is closed; either way
a secure removal writes it anew too, and zeros over the old one.

Ordering: bytes are written front to back, so that a file never has a hole; a block's file is removed only
after the notes that make it superfluous were written, and the last block that is left was synced. A rewritten
block replaces its file only after all later ones were synced: they hold the messages that what it left out
made way for, and tell their sequences. With `sync: always` that holds for indexes and removed files too.

What write() promises it does itself. Indexes, compression and rewritten blocks are work for the background:
one piece a stream at a time, and while one is under way nobody else touches the files it is about.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from penstock import faults
from penstock.errors import StoreCorruptError, StoreError, StoreWriteError
from penstock.kernels.log.compaction import compact, rewrite_block
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog
from penstock.store.disk import Disk, RecordReads
from penstock.store.envelope import HEAD, AppendedFile, is_enveloped
from penstock.store.files import OpenFiles, remove_file, sync_directory, write_atomically

logger = logging.getLogger("penstock.store")

COMPACTIONS_A_WRITE = 2
"""Blocks rewritten after a write at most. One fills while records of a block's size are appended, so that two
keep up, and a write is held up by some milliseconds only."""

CLOSING_MAX = 8
"""Closed blocks that wait to be settled, before a write() waits for them."""

SECTOR = 4096
"""What is read at once of a file that can't be read as a whole."""

REFUSED_MAX = 64
"""Sectors the disk refuses before the file counts as unreadable: each may take it seconds."""

_TAIL = struct.Struct("<Q")

_FILE_HEAD_BYTES = 8  # tell whether a file is enveloped


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


def read_what_can_be(disk: Disk, path: Path) -> memoryview:
    """A file's bytes piece by piece: zeros where the disk refuses. Raises StoreCorruptError when it refuses
    everything, or there is no such file."""
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
    """Size and last 8 bytes of a block's file: what its index knows it by. Raises OSError."""
    size = disk.size(path)
    tail = disk.read_at(path, max(size - 8, 0), 8)
    return size, _TAIL.unpack(tail.ljust(8, b"\0"))[0]


def tells_all(number: int, data: memoryview) -> bool:
    """Do a closed block's bytes tell without its index what the block holds?"""
    block = MessageBlock(number, 1)
    block.closed = True
    bad = block.scan(data, copy=False)
    block.let_go()
    return bad is None and not block.passed_over


def write_index(
    files: OpenFiles, directory: Path, number: int, index: bytes, *, after: Sequence[Path] = ()
) -> None:
    """Writes a closed block's exported index, tied to its file, once the files `after` are on the disk. A
    disk that refuses costs the next recovery time, nothing else."""
    path = index_path(directory, number)
    try:
        sync_files(files.disk, after)
        size, tail = fingerprint(files.disk, block_path(directory, number))
        files.replace(path, MessageBlock.tie_index(index, size, tail), sync=False)
    except (StoreWriteError, OSError) as error:
        logger.warning("%s: left without index: %s", path, error)


class BlockFiles:
    """Writer and reader of one stream's block files. compress: closed blocks are compressed from now on."""

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self.compress = False
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._vault = files.vault
        self._unsynced: set[int] = set()
        self._was_synced = False  # all of the stream was on the disk when the last write began
        self._in_order = False  # each file of this write is synced before the next one is written
        self._syncing: set[int] = set()
        self._names_changed = False
        self._known: set[int] = set()
        self._patches: list[tuple[int, int, bytes]] = []
        self._rewrites: list[tuple[MessageBlock | None, list[int]]] = []
        self._holed: set[int] = set()  # whose files only an index can read: they are rewritten
        self._closing: deque[MessageBlock] = deque()
        self._dropped: list[int] = []
        self._dropped_unwritten: list[int] = []  # the notes that they are gone are still to be written
        self._busy = 0  # number of the block that work in the background is about
        self._removing: list[int] = []  # ... or numbers of those whose files it removes
        self._failed = False  # the last such work; write() tries again
        self._tidying = self._closed = False
        self._compactions_left = 0
        self._appended: dict[int, AppendedFile] = {}  # encrypted, of blocks that may get more
        # The files of closed blocks that were seen to be neither encrypted nor compressed, as os.fsencode()
        # names them. (Were one here that no longer is: what is read is no record, and the block is loaded.)
        self._plain: dict[int, bytes] = {}
        # Of the block that was written last, nearly always the next one too: making and hashing a Path took
        # half the time of a small write.
        self._written_number = -1
        self._written_path = directory

    # ------------------------------------------------------------------ reading

    def load(self, number: int, size: int) -> memoryview:
        """The bytes of a closed block. What can't be read or decrypted is zeros, and what is missing too: the
        log then says which messages are lost. Raises StoreCorruptError when there is no such file."""
        path = block_path(self._directory, number)
        try:
            file = map_file(self._disk, path)
        except StoreCorruptError:
            file = read_what_can_be(self._disk, path)
        if is_enveloped(file):
            decoded = self._vault.decode(file, path)
            if decoded.why is not None:
                logger.error("%s: bad frame at byte %d (%s)", path, decoded.file_end, decoded.why)
            file = memoryview(decoded.data)
        if len(file) < size:
            logger.error("%s: %d bytes are missing at its end", path, size - len(file))
            file = memoryview(bytes(file) + bytes(size - len(file)))
        return file

    def read_pieces(self, wanted: list[tuple[int, bytes]]) -> RecordReads | None:
        """Some bytes of closed blocks, by number, for who needs few of each; see disk.PIECE. None where the
        blocks have to be loaded: a file is encrypted or compressed, or the disk refuses, and load() says
        what."""
        plain = self._plain
        try:
            files = [(plain.get(number) or self._plain_path(number), pieces) for number, pieces in wanted]
            return self._disk.read_pieces(files)
        except OSError:
            return None

    def _plain_path(self, number: int) -> bytes:
        """The name of a block's file. Raises OSError when it can't be read as it is."""
        path = block_path(self._directory, number)
        if is_enveloped(self._disk.read_at(path, 0, _FILE_HEAD_BYTES)):
            raise OSError(errno.EINVAL, "encrypted or compressed", str(path))
        name = self._plain[number] = os.fsencode(path)
        return name

    def adopt(self, number: int) -> None:
        """A block that recovery found a file of."""
        self._known.add(number)
        # Who wrote it may have been killed before a sync.
        self._unsynced.add(number)
        self._names_changed = True

    def rewrite(self, number: int) -> None:
        """A closed block whose file only its index can read is to be rewritten with the next write()."""
        self._holed.add(number)

    def resume(self, number: int, file: AppendedFile) -> None:
        """The encrypted open block that recovery found."""
        self._appended[number] = file

    # ------------------------------------------------------------------ writing

    def write(self, log: StreamLog) -> None:
        """Hands all that is new to the operating system, as interface.StreamStore says.

        Raises StoreWriteError.
        """
        self._was_synced = not self._unsynced and not self._syncing
        self._in_order = log.flush_notes() and self._was_synced
        try:
            self._write_new(log)
        except StoreWriteError:
            if not self._make_room(log):
                raise
            self._write_new(log)
        log.all_written()
        self._failed = self._in_order = False
        self._patches += log.take_patches()
        if self._patches:
            # What is half written over when the machine dies is gone by the note of its removal alone.
            self.sync()
        self._closing.extend(log.take_closed())
        self._dropped += self._dropped_unwritten
        self._dropped_unwritten.clear()
        self._tidy(log)
        if len(self._closing) > CLOSING_MAX:
            self._files.background.drain()  # it can't keep up, and what isn't settled stays in memory

    def _write_new(self, log: StreamLog) -> None:
        """Power loss must not keep the note that a message made way for a newer one, and take the newer one,
        whose bytes are in an earlier file. Where all that was written before is on the disk, as with
        `sync: always`, the files of one write go there one after the other; else power loss takes back what
        came since the last sync anyway, and a sync with each block would hold up everybody."""
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
            if self._vault.encrypts:
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

    def _make_room(self, log: StreamLog) -> bool:
        """The disk is full, and blocks wait to be removed until the note that they are gone was written.

        The oldest go now, up to the first file that stays: a newer one may hold the only note of what was
        removed from it, before this write. The newest that was written stays: it still tells the last
        sequence, and what of it was removed comes back if the process ends before the note is written; nobody
        was told that it went. What went for messages that aren't written stays too: those are refused, and
        what they replaced was acked.
        """
        self._next_rewrite(log)
        self._dropped_unwritten += log.take_dropped()
        dropped = sorted(self._dropped + self._dropped_unwritten)
        newest = max((n for n in dropped if n in self._known), default=0)
        upto = min(self._staying(log) | {newest})
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

    def _staying(self, log: StreamLog) -> set[int]:
        """Blocks whose files have to stay while the log can't be written."""
        live = {block.number for block in log.block_list()} & self._known
        replaced = {number for _, gone in self._rewrites for number in gone}
        busy = {self._busy, *self._removing} - {0}
        return live | replaced | busy | self._syncing | log.outdone()

    # ------------------------------------------------------------------ work that follows

    def _tidy(self, log: StreamLog) -> None:
        """Everything that follows on writing, as far as no work in the background is in its way."""
        self._tidying = True
        self._compactions_left = COMPACTIONS_A_WRITE
        try:
            if self._patches:
                self._apply_patches(log)
            while not self._busy and not self._failed and self._begin_work(log):
                pass
        finally:
            self._tidying = False

    def _done(self, log: StreamLog) -> None:
        """Work in the background is done: goes on with the next."""
        self._plain.pop(self._busy, None)
        self._busy = 0
        if self._tidying or self._closed:
            return
        try:
            self._tidy(log)
        except (StoreError, OSError) as error:
            logger.warning("%s: tidying up is put off: %s", self._directory, error)
            self._failed = True  # the next write() tries again, and tells

    def _begin_work(self, log: StreamLog) -> bool:
        """Hands over the next piece of work. False when there is none.

        A removal must not reach the disk in an index, a rewritten block or a removed file before its note:
        the message may have made way for one that is not written yet, and would be gone without it after a
        crash. So work begins only while all of the log is written; else the next write() begins it.
        """
        if not log.is_written:
            return False
        if self._closing:
            block = self._closing.popleft()
            if block.number in self._known and block.resident and not block.replaces:
                self._settle(log, block)
            return True
        self._dropped += log.take_dropped()
        if self._dropped and any(number not in self._syncing for number in self._dropped):
            self._remove(log)
            return True
        if not self._rewrites and self._holed:
            self._rewrites += rewrite_block(log, self._holed.pop())
        if not self._rewrites and self._compactions_left:
            self._rewrites += compact(log, 1)
            self._compactions_left -= 1
        if not self._rewrites:
            return False
        self._write_new(log)
        made = self._next_rewrite(log)
        if made is not None:
            self._replace(log, made)
        return True

    def _next_rewrite(self, log: StreamLog) -> MessageBlock | None:
        """The first rewritten block that is still in the log; files of others, which left it since, may go.
        In order: what one rewrite left out of a block can rest on the one before being on disk."""
        while self._rewrites:
            made, gone = self._rewrites[0]
            if made is not None and made.replaces and made in log.block_list():
                return made
            del self._rewrites[0]
            if made is not None and made.replaces and self._rewrites:
                # Rewritten again before it came to disk: its files may go when the later one is there.
                self._rewrites[0][1].extend(gone)
            else:
                self._dropped += gone
        return None

    def _settle(self, log: StreamLog, block: MessageBlock) -> None:
        """Compresses a closed block, or puts its frames together, and writes its index."""
        path = block_path(self._directory, block.number)
        many_frames = block.number in self._appended and self._disk.size(path) > block.size * 5 // 4
        self._appended.pop(block.number, None)
        compress = self.compress
        data = bytes(block) if compress or many_frames else None
        index = block.export_index()
        before = self._under_way_after(block.number)

        def work() -> None:
            if data is not None:
                write_atomically(self._disk, path, self._vault.encode(data, path, compress=compress))
            write_index(self._files, self._directory, block.number, index, after=before)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if error is not None:
                logger.warning("%s: left as it was written: %s", path, error)
                write_index(self._files, self._directory, block.number, index, after=before)
            elif data is not None:
                self._files.forget(path)
                self._unsynced.discard(block.number)
            if block.number in self._known:
                log.settle(block)
            self._done(log)

        self._busy = block.number
        self._files.background.run(work, done)

    def _replace(self, log: StreamLog, made: MessageBlock) -> None:
        """Writes a rewritten block over its old file. What a full disk interrupts is tried again: until then
        the block stays in memory.

        The old index stays until the new one replaces it: the old file may not be readable without. It fits
        the new file only when that has the same size and the same last record, and then all other records are
        the same as well.
        """
        path = block_path(self._directory, made.number)
        before = self._paths_after(made.number, self._unsynced | self._syncing)
        data, index_body, compress = bytes(made), made.export_index(), self.compress
        whole = compress or self._vault.encrypts
        self._appended.pop(made.number, None)

        def work() -> None:
            sync_files(self._disk, before)
            stored = self._vault.encode(data, path, compress=compress) if whole else data
            write_atomically(self._disk, path, stored)
            write_index(self._files, self._directory, made.number, index_body)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if error is not None:
                logger.error("%s: can not be rewritten: %s", path, error)
                self._failed = True
            else:
                self._files.forget(path)
                self._unsynced.discard(made.number)
                made.written = made.size
                made.replaces = False
                if made.number in self._known:
                    log.settle(made)
                self._dropped += self._rewrites.pop(0)[1]
            self._done(log)

        self._busy = made.number
        self._files.background.run(work, done)

    def _under_way_after(self, number: int) -> list[Path]:
        """The files that have to be on the disk before anything there says what was removed from a block:
        they hold the messages that the removed made way for. Work in the background overtakes the sync that
        they wait for.

        Only where everything written before them is on the disk, as with `sync: always`. Else power loss
        takes back what came since the last sync anyway, and a sync for each block would hold up everybody.
        """
        numbers = self._syncing | self._unsynced if self._was_synced else self._syncing
        return self._paths_after(number, numbers)

    def _paths_after(self, number: int, numbers: set[int]) -> list[Path]:
        return [block_path(self._directory, one) for one in sorted(numbers) if one > number]

    def _remove(self, log: StreamLog) -> None:
        """Removes files of blocks that are gone from the log; a later one that says at least which sequences
        they had must not be the next to vanish."""
        numbers = [number for number in self._dropped if number not in self._syncing]
        self._dropped = [number for number in self._dropped if number in self._syncing]
        # It stays unsynced for a sync that begins meanwhile, which may be done before this work is.
        witness = [block_path(self._directory, number) for number in self._witness(log, max(numbers))]
        for number in numbers:
            self._forget(number)
        before = dict.fromkeys([*witness, *self._under_way_after(min(numbers))])

        def work() -> None:
            sync_files(self._disk, before)
            self._unlink(numbers)

        def done(_: None, error: StoreError | OSError | None) -> None:
            if error is not None:
                # The notes of what it held may be dropped only after it: nothing else goes until it went.
                logger.warning("left behind: %s", error)
                self._dropped = numbers + self._dropped
                self._known.update(n for n in numbers if self._disk.exists(block_path(self._directory, n)))
                self._failed = True
            self._names_changed = True
            self._removing = []
            self._done(log)

        self._busy, self._removing = numbers[0], numbers
        self._files.background.run(work, done)

    def _witness(self, log: StreamLog, number: int) -> set[int]:
        """The block to sync before those up to `number` may go; none when a later one is on the disk."""
        later = [block for block in log.block_list() if block.number > number]
        speaking = [block.number for block in later if len(block)] or [block.number for block in later[-1:]]
        # A closed one is synced once; the open one is written to again.
        return set(speaking[:1]) if (self._unsynced | self._syncing).issuperset(speaking) else set()

    def _forget(self, number: int) -> None:
        self._files.forget(block_path(self._directory, number))
        self._known.discard(number)
        self._plain.pop(number, None)
        self._holed.discard(number)
        self._unsynced.discard(number)
        self._appended.pop(number, None)

    def _unlink(self, numbers: list[int]) -> None:
        for number in numbers:
            path = block_path(self._directory, number)
            try:
                self._disk.unlink(index_path(self._directory, number))
                self._disk.unlink(path)
            except OSError as error:
                raise StoreWriteError(f"cannot remove the file: {error.strerror}", path=str(path)) from error

    # ------------------------------------------------------------------ secure removals

    def _apply_patches(self, log: StreamLog) -> None:
        """Puts notes over the records that are to be erased, except where work is under way."""
        rewritten = {made.number for made, _ in self._rewrites if made is not None}
        waiting, self._patches = self._patches, []
        by_block: dict[int, list[tuple[int, bytes]]] = {}
        for number, offset, data in waiting:
            if number == self._busy or number in self._syncing:
                self._patches.append((number, offset, data))
            elif number in self._known and number not in rewritten:
                by_block.setdefault(number, []).append((offset, data))
        try:
            while by_block:
                number = next(iter(by_block))
                self._patch(number, by_block[number])
                del by_block[number]
        finally:
            self._patches += [(number, *patch) for number, patches in by_block.items() for patch in patches]

    def _patch(self, number: int, patches: list[tuple[int, bytes]]) -> None:
        """Of one block. One that can't be read is left as it is: the notes of the removals are elsewhere, and
        whoever reads it is told what of it is lost."""
        if number in self._holed:
            return
        path, index = block_path(self._directory, number), index_path(self._directory, number)
        has_index = self._disk.exists(index)
        try:
            if has_index and not tells_all(number, self.load(number, 0)):
                self._holed.add(number)  # what replaces it has none of the records that are to be erased
                return
            is_whole = is_enveloped(self._disk.read_at(path, 0, _FILE_HEAD_BYTES))
            plain = self._vault.decode(map_file(self._disk, path), path).data if is_whole else None
        except (OSError, StoreCorruptError) as error:
            logger.error(
                "%s: cannot be read, what was to be erased in it may be there still: %s", path, error
            )
            return
        # The index counts the message; without one recovery reads the block, and finds the note. Were it back
        # after a power loss, the subject would be counted as long as the block is there.
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
        """Writes the file anew and zeros over the old one, which the name then no longer leads to."""
        for offset, data in patches:
            plain[offset : offset + len(data)] = data
        compress = self.compress and number not in self._appended
        stored = self._vault.encode(plain, path, compress=compress)
        old = self._disk.open(path)
        try:
            size = self._disk.size(path)
            self._put_anew(path, number, stored, len(plain))
            at = 0
            while at < size:
                at += self._disk.write(old, bytes(min(size - at, 1 << 20)), at)
            self._disk.sync(old)
        except OSError as error:
            logger.warning("%s: what was erased may still be on the disk: %s", path, error.strerror)
        finally:
            self._disk.close(old)
        self._unsynced.discard(number)

    def _put_anew(self, path: Path, number: int, stored: bytes, length: int) -> None:
        """Replaces an enveloped file, which may be appended to. Raises StoreWriteError; it may have been
        replaced all the same, when only the sync of its name failed, and what is appended then goes there."""
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
        """Everything written is on the disk. Raises StoreWriteError."""
        self._files.background.drain()
        self._sync_now()

    def _sync_now(self) -> None:
        taken = self._take_unsynced()
        try:
            self._sync_taken(*taken)
        except StoreWriteError:
            self._give_back(*taken)
            raise

    def start_sync(
        self,
        log: StreamLog,
        done: Callable[[StoreWriteError | None], object],
        *,
        also: Sequence[Path] = (),
        names: Sequence[Path] = (),
        settle: Callable[[StoreWriteError | None], object] = lambda error: None,
    ) -> None:
        """The same in the background, with other files and directories; then calls `settle`, then `done`.

        `done` is called whatever the bookkeeping before it raises: who waits for it holds acks back.
        """
        numbers, names_changed = self._take_unsynced()
        self._syncing |= numbers

        def work() -> None:
            sync_files(self._disk, also)
            self._sync_taken(numbers, names_changed)
            for directory in filter(self._disk.exists, names):  # (a consumer may be gone by now)
                sync_directory(self._disk, directory)

        def note_end(failure: StoreWriteError | None) -> None:
            self._syncing -= numbers
            if failure is not None:
                self._give_back(numbers, names_changed)
                self._write_again(log, numbers)

        def finish(_: None, error: StoreError | OSError | None) -> None:
            failure = None if error is None else StoreWriteError(str(error))
            for step in (note_end, settle):
                faults.contain(step, self._bookkeeping_failed, failure)
            done(failure)
            if (self._patches or self._dropped) and not self._busy:
                self._done(log)

        self._files.background.run(work, finish)

    def _bookkeeping_failed(self, error: Exception, *_: object) -> None:
        faults.note(f"end of a sync of {self._directory}", error)

    def _take_unsynced(self) -> tuple[set[int], bool]:
        taken = self._unsynced, self._names_changed
        self._unsynced, self._names_changed = set(), False
        return taken

    def _give_back(self, numbers: set[int], names_changed: bool) -> None:
        self._unsynced |= numbers
        self._names_changed |= names_changed

    def _sync_taken(self, numbers: set[int], names_changed: bool) -> None:
        sync_files(self._disk, [block_path(self._directory, number) for number in sorted(numbers)])
        if names_changed:
            sync_directory(self._disk, self._directory)

    def _write_again(self, log: StreamLog, numbers: set[int]) -> None:
        """After a failed sync the system may have thrown away what it couldn't write, and say no more about
        it: what is still in memory is written once more."""
        tail = next((block for block in log.block_list()[-1:] if block.number in numbers), None)
        if tail is not None and not self._vault.encrypts:
            tail.written = 0

    def close(self) -> None:
        """Lets the files go; nothing is written."""
        self._closed = True
        for number in self._known:
            self._files.forget(block_path(self._directory, number))


def sync_files(disk: Disk, paths: Iterable[Path]) -> None:
    """The bytes of these files are on the disk. Safe in any thread. Raises StoreWriteError."""
    for path in paths:
        try:
            fd = disk.open(path)
            try:
                disk.sync(fd)
            finally:
                disk.close(fd)
        except FileNotFoundError:
            continue  # its directory was removed meanwhile
        except OSError as error:
            raise StoreWriteError(f"cannot sync: {error.strerror}", path=str(path)) from error
