"""Checks and repairs a store that no server uses, and reads its messages.

Every file is read by the code that recovery uses: block scans, indexes, frames, metas, snapshots, journals.
Then recovery itself runs on an overlay (see overlay.py), which shows what a server would find, and reports
anything that the checks missed. repair.py decides what a repair changes.

Invariants: check() and messages() modify nothing; repair() deletes nothing; all of them hold the store's
lock.

Rejected: an independent reader (it would agree with itself and not with the server).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import StoreCorruptError, StoreError, StoreFormatError
from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import DEFAULT_BLOCK_SIZE, StoredRecord, StreamLog
from penstock.store.block_reading import block_path, fingerprint, index_path, map_file
from penstock.store.disk import LOCAL_DISK, Disk
from penstock.store.envelope import is_enveloped
from penstock.store.files import (
    CONSUMERS,
    MESSAGES,
    META,
    SPILLED,
    OpenFiles,
    names_in,
    quote_name,
    unpack_meta,
    unquote_name,
    write_atomically,
)
from penstock.store.interface import POSITIONS
from penstock.store.journal import STATE, FileConsumerStore, read_entries, read_state
from penstock.store.keys import StoreKey, open_file_cipher
from penstock.store.overlay import OverlayDisk
from penstock.store.recovery import block_numbers, recover_log
from penstock.store.repair import (
    OPEN_FRAME_MAX,
    BlockRepairer,
    BlockView,
    LostAndFound,
    flip_back,
    read_block,
)

SMALL_FILE_MAX = 16 << 10
"""Size limit of metas and snapshots in which a flipped bit is searched."""

_INDEX_NAME = re.compile(r"([1-9][0-9]*)\.idx")
_ENTRY_HEAD = 12
_SEQ_BITS = 48


REPLICA = (
    "a replica: its messages are in the log and the states of its group (jetstream/_groups), not read here"
)


@dataclass(slots=True)
class Finding:
    """One difference from what was written.

    `path`: the file, relative to the store directory. `offset`: the byte, if there is one. `what`: a
    description. `fault`: False when it may be legitimate. `done`: what a repair did; "" for nothing.
    """

    path: Path
    offset: int | None
    what: str
    fault: bool = True
    done: str = ""


@dataclass(slots=True)
class StreamSummary:
    """A stream as a server would recover it: messages, their bytes (as users see them), first and last
    sequence, blocks, consumers. is_replica: its group has all of these (replica_store.py), in files that are
    not read here."""

    account: str
    name: str
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    blocks: int = 0
    consumers: list[str] = field(default_factory=list)
    is_replica: bool = False


@dataclass(slots=True)
class StoreReport:
    """All findings, and the streams as a server would recover them now."""

    findings: list[Finding] = field(default_factory=list)
    streams: list[StreamSummary] = field(default_factory=list)
    moved_to: Path | None = None

    @property
    def faults(self) -> list[Finding]:
        """The findings that mean damage."""
        return [one for one in self.findings if one.fault]


class StoreChecker:
    """Checks one store directory, locked until close().

    Raises StoreError when there is no store or the key is wrong; StoreLockedError while a server uses it;
    StoreWriteError when the lock cannot be taken.
    """

    def __init__(self, directory: Path, key: StoreKey | None = None, disk: Disk = LOCAL_DISK) -> None:
        self._root = directory
        self._store = directory / "jetstream"
        self._disk = disk
        if not disk.exists(self._store):
            raise StoreError("there is no store in it (no directory `jetstream`)", path=str(directory))
        self._lock = disk.lock(self._store)
        self._overlay = OverlayDisk(disk)
        try:
            # Without a key file nothing is encrypted, and a check must not create one.
            has_key = disk.exists(self._store / "key")
            file_cipher = open_file_cipher(
                self._overlay, self._store, (key or StoreKey()) if has_key else StoreKey()
            )
        except BaseException:
            self._lock.release()
            raise
        self._files = OpenFiles(disk=self._overlay, file_cipher=file_cipher)
        self._file_cipher = file_cipher
        self._report = StoreReport()
        self._lost: LostAndFound | None = None

    def close(self) -> None:
        """Releases the lock."""
        self._files.close()
        self._lock.release()

    # ------------------------------------------------------------------ public operations

    def check(self) -> StoreReport:
        """Reads everything and modifies nothing."""
        return self._examine(None)

    def repair(self, stamp: str) -> StoreReport:
        """Checks, and repairs what it can. `stamp`: name of the directory in `lost+found` for bytes taken
        out. Raises StoreWriteError when a write fails."""
        return self._examine(LostAndFound(self._disk, self._root, stamp))

    def streams(self) -> list[tuple[str, str, Path]]:
        """(account, stream, directory) of all streams. A stream with a damaged meta goes by its directory's
        name."""
        found = []
        for account in names_in(self._disk, self._store):
            at = self._store / account / "streams"
            for entry in names_in(self._disk, at) if self._disk.exists(at) else ():
                if not entry.startswith(".") and self._disk.exists(at / entry / META):
                    found.append((unquote_name(account), self._name_of(at / entry), at / entry))
        return found

    def messages(
        self,
        directory: Path,
        *,
        subject: bytes = b"",
        from_seq: int = 1,
        to_seq: int = 0,
        on_lost: Callable[[str], object],
    ) -> Iterator[StoredRecord]:
        """A stream's messages as a server would read them. `to_seq` 0: to the end. Calls `on_lost` with a
        description of each unreadable message and of each warning of recovery, and for a replica, whose
        messages are elsewhere."""
        if self._is_replica(directory):
            on_lost(f"{directory}: {REPLICA}")
            return

        def lost(number: int, found: list[tuple[int, int, str]]) -> None:
            path = block_path(directory, number)
            for offset, seq, why in found:
                on_lost(f"{path}: message {seq} is lost: at byte {offset}: {why}")

        with _captured_logs(lambda path, text: on_lost(text)):
            log, files = recover_log(
                directory / MESSAGES, self._files, block_size=DEFAULT_BLOCK_SIZE, on_lost=lost
            )
            seq = log.next_seq(max(from_seq, 1), subject)
            while seq and (to_seq == 0 or seq <= to_seq):
                message = log.load(seq)
                if message is not None:
                    yield message
                seq = log.next_seq(seq + 1, subject)
            files.close()
        self._overlay.reset()

    # ------------------------------------------------------------------ the whole store

    def _examine(self, lost: LostAndFound | None) -> StoreReport:
        self._report, self._lost = StoreReport(), lost
        for account, name, directory in self.streams():
            if self._is_newer(directory):
                continue
            self._small_file(directory / META, lambda path: unpack_meta(self._files, path))
            if self._is_replica(directory):
                self._report.streams.append(StreamSummary(account, name, is_replica=True))
                continue
            self._blocks(directory / MESSAGES)
            for consumer in self._consumers(directory):
                self._consumer(consumer)
            self._recover_on_overlay(account, name, directory)
        if lost is not None and self._disk.exists(lost.directory):
            self._report.moved_to = lost.directory
        return self._report

    def _consumers(self, directory: Path) -> list[Path]:
        at = directory / CONSUMERS
        names = names_in(self._disk, at) if self._disk.exists(at) else []
        return [
            at / entry
            for entry in names
            if not entry.startswith(".") and self._disk.exists(at / entry / META)
        ]

    def _is_replica(self, directory: Path) -> bool:
        return self._disk.exists(directory / SPILLED)

    def _is_newer(self, directory: Path) -> bool:
        """Whether the asset has a newer format. Such an asset is reported and otherwise skipped: what looks
        damaged to this version may be intact."""
        try:
            unpack_meta(self._files, directory / META)
        except StoreFormatError as error:
            text = str(error).removeprefix(f"{error.path}: ")
            self._found(directory / META, None, text)
            return True
        except (StoreError, OSError):
            return False  # the checks that follow report it
        return False

    def _name_of(self, directory: Path) -> str:
        try:
            return unpack_meta(self._files, directory / META)[0]
        except (StoreError, OSError):
            return unquote_name(directory.name)

    def _found(
        self, path: Path, offset: int | None, what: str, *, fault: bool = True, done: str = ""
    ) -> Finding:
        finding = Finding(path.relative_to(self._root), offset, what, fault, done)
        self._report.findings.append(finding)
        return finding

    def _recover_on_overlay(self, account: str, name: str, directory: Path) -> None:
        """Runs recovery on an overlay, and adds findings for files it complains about that have none yet."""
        summary = StreamSummary(account, name)
        self._report.streams.append(summary)
        known = {finding.path for finding in self._report.findings}

        def report(path: Path | None, text: str) -> None:
            where = path if path is not None and self._root in path.parents else directory
            if where.relative_to(self._root) not in known:
                self._found(where, None, text)

        with _captured_logs(report):
            try:
                log, files = recover_log(
                    directory / MESSAGES, self._files, block_size=DEFAULT_BLOCK_SIZE, on_lost=_ignore
                )
                summary.messages, summary.bytes = log.messages, log.bytes
                summary.first_seq, summary.last_seq = log.first_seq, log.last_seq
                summary.blocks = len(log.block_list())
                self._gaps(directory / MESSAGES, log)
                files.close()
            except (StoreError, OSError) as error:
                report(_path_of(error), str(error))
            for consumer in self._consumers(directory):
                if consumer.name != quote_name(POSITIONS):
                    summary.consumers.append(self._name_of(consumer))
                try:
                    FileConsumerStore.open(consumer, self._files).load()
                except (StoreError, OSError) as error:
                    report(_path_of(error), str(error))
        self._overlay.reset()

    # ------------------------------------------------------------------ blocks

    def _blocks(self, directory: Path) -> None:
        names = names_in(self._disk, directory)
        numbers = block_numbers(self._overlay, directory) if names else []
        self._overlay.reset()
        for number in numbers:
            self._block(directory, number, is_last=number == numbers[-1])
        present = set(numbers)
        for name in names:
            match = _INDEX_NAME.fullmatch(name)
            if match and int(match[1]) not in present:
                self._missing_block(directory, name, int(match[1]), numbers)
            elif ".blk.cut-" in name:
                what = "bytes that an earlier start cut off this block; nothing reads them"
                self._found(directory / name, None, what, fault=False)

    def _missing_block(self, directory: Path, name: str, number: int, numbers: list[int]) -> None:
        before = max((one for one in numbers if one < number), default=None)
        after = min((one for one in numbers if one > number), default=None)
        low = self._ends(directory, before)[1] + 1 if before is not None else 1
        high = self._ends(directory, after)[0] - 1 if after is not None else 0
        lost = f"sequences {low} to {high}" if high >= low else f"sequences from {low} on"
        what = f"block {number} is missing, but its index exists: its messages among the {lost} are lost"
        finding = self._found(directory / f"{number}.blk", None, what)
        if self._lost is not None:
            self._lost.move(directory / name)
            finding.done = "cannot be restored; its index is in lost+found"

    def _ends(self, directory: Path, number: int) -> tuple[int, int]:
        path = block_path(directory, number)
        try:
            block = read_block(self._file_cipher, path, number, map_file(self._disk, path)).block
        except StoreError:
            return 1, 0
        return block.first_seq, max(block.last_seq, block.last_at_least)

    def _block(self, directory: Path, number: int, *, is_last: bool) -> None:
        path = block_path(directory, number)
        try:
            file = map_file(self._disk, path)
            view = read_block(self._file_cipher, path, number, file)
        except StoreError as error:
            self._found(path, 0, _text_of(error))
            return
        indexed = self._index(directory, number)
        if is_last and indexed:
            what = (
                "the newest block is closed, and no open one follows it; if the server was not killed in the"
            )
            self._found(path, None, f"{what} middle of a write, a file is missing here")
        # A compressed, unencrypted file was closed, whether its open successor exists or not.
        is_open = is_last and not indexed and (not view.enveloped or self._file_cipher.encrypts)
        if view.sound:
            return
        findings = self._report_block(path, view, len(file), is_open=is_open, indexed=indexed)
        if self._lost is not None:
            repairer = BlockRepairer(
                self._disk,
                self._file_cipher,
                path,
                number,
                is_open,
                indexed,
                bytearray(self._disk.read(path)),
            )
            self._repair_block(directory, repairer, findings)

    def _report_block(
        self, path: Path, view: BlockView, size: int, *, is_open: bool, indexed: bool
    ) -> dict[int, Finding]:
        found: dict[int, Finding] = {}
        block = view.block
        if view.frame_why is not None:
            what = f"bad frame ({view.frame_why}); {len(block)} messages before it are intact"
            found[view.frame_end] = self._found(path, view.frame_end, what)
            return found
        where = " of its plain bytes" if view.enveloped else ""
        for offset in block.skipped_offsets:
            what = f"bad record{where} (hash mismatch): {_claimed_identity(view, offset)}"
            found[offset] = self._found(path, offset, what)
        if view.bad is None:
            return found
        offset, why = view.bad
        behind = len(view.plain) - offset
        last = f"the last intact message is {block.last_seq}" if len(block) else "no message before it"
        if is_open:
            what = f"torn end{where}: {behind} bytes are not a record ({why}); {last}"
        elif indexed:
            identity = _claimed_identity(view, offset)
            what = f"bad record{where} ({why}): {identity}; the index finds the messages after it"
        else:
            what = f"bad record{where} ({why}): the {behind} bytes from there on cannot be read; {last}"
        found[offset] = self._found(path, offset, what)
        return found

    def _repair_block(self, directory: Path, repairer: BlockRepairer, findings: dict[int, Finding]) -> None:
        assert self._lost is not None
        before = bytes(repairer.raw)
        repairer.fix()
        fixed = bytes(repairer.raw)
        done, index_fits = repairer.cut(self._lost)
        if bytes(repairer.raw) == before:
            return
        if fixed != before and index_fits:
            self._lost.keep(repairer.path, before)
        write_atomically(self._disk, repairer.path, bytes(repairer.raw))
        index = index_path(directory, repairer.number)
        if self._disk.exists(index) and not self._index_fits(directory, repairer.number):
            self._lost.move(index)
        for offset, text in (repairer.fixed | done).items():
            if offset in findings:
                findings[offset].done = text
            else:
                self._found(repairer.path, offset, "found by the repair before it", done=text)

    # ------------------------------------------------------------------ indexes

    def _index(self, directory: Path, number: int) -> bool:
        """Whether the block has an index that fits. Reports a bad one; a repair moves it aside."""
        path = index_path(directory, number)
        if not self._disk.exists(path):
            return False
        try:
            self._read_index(directory, number)
        except (ValueError, StoreError, OSError) as error:
            offset = error.offset if isinstance(error, StoreCorruptError) else None
            what = f"bad index: {_text_of(error)}; the next start scans the block instead"
            finding = self._found(path, offset or 0, what)
            if self._lost is not None:
                self._lost.move(path)
                finding.done = "moved to lost+found; the next start writes a new one"
            return False
        return True

    def _index_fits(self, directory: Path, number: int) -> bool:
        try:
            self._read_index(directory, number)
        except (ValueError, StoreError, OSError):
            return False
        return True

    def _read_index(self, directory: Path, number: int) -> MessageBlock:
        index = self._file_cipher.unseal(
            self._disk.read(index_path(directory, number)), index_path(directory, number)
        )
        size, tail = fingerprint(self._disk, block_path(directory, number))
        return MessageBlock.from_index(index, number, size, tail)

    def _gaps(self, directory: Path, log: StreamLog) -> None:
        """Reports sequences covered by no block, between blocks whose numbers are not adjacent."""
        before = None
        for block in log.block_list():
            if before is not None and len(block) and block.number > before.number + 1:
                low, high = max(before.last_seq + 1, log.first_seq), block.first_seq - 1
                if low <= high:
                    what = f"no block covers sequences {low} to {high}: they were all removed, or a file is"
                    self._found(
                        block_path(directory, block.number), None, f"{what} missing before it", fault=False
                    )
            before = block

    # ------------------------------------------------------------------ metas, snapshots, journals

    def _small_file(self, path: Path, read: Callable[[Path], object]) -> bool:
        """Whether a meta or snapshot is readable. A repair restores one flipped bit."""
        try:
            read(path)
            return True
        except FileNotFoundError:
            return True
        except (StoreError, OSError) as error:
            finding = self._found(path, getattr(error, "offset", None) or 0, _text_of(error))
        if self._lost is None:
            return False
        before = self._disk.read(path)
        at = self._flip_small(path, before, read)
        if at is None:
            return False
        self._lost.keep(path, before)
        write_atomically(self._disk, path, self._overlay.read(path))
        finding.done = f"byte {at} had one wrong bit, the hash proves it: restored"
        self._overlay.reset()
        return True

    def _flip_small(self, path: Path, before: bytes, read: Callable[[Path], object]) -> int | None:
        if len(before) > (OPEN_FRAME_MAX if is_enveloped(before) else SMALL_FILE_MAX):
            return None
        data = bytearray(before)

        def is_whole() -> bool:
            self._overlay.put(path, bytes(data))
            try:
                read(path)
            except StoreError:
                return False
            return True

        at = flip_back(data, 0, len(data), is_whole)
        if at is None:
            self._overlay.reset()
        return at

    def _consumer(self, directory: Path) -> None:
        if self._is_newer(directory):
            return
        self._small_file(directory / META, lambda path: unpack_meta(self._files, path))
        state = directory / STATE
        whole = self._small_file(state, lambda path: read_state(self._files, path))
        journals = sorted(
            int(name[8:])
            for name in names_in(self._disk, directory)
            if re.fullmatch(r"journal\.[0-9]+", name)
        )
        if not whole:
            if self._lost is not None:
                finding = self._report.findings[-1]
                for path in (state, *(directory / f"journal.{one}" for one in journals)):
                    self._lost.move(path)
                what = "moved to lost+found with its journal"
                finding.done = f"{what}; the consumer begins again at its starting position"
            return
        generation = read_state(self._files, state)[1]
        while generation in journals:
            if not self._journal(directory / f"journal.{generation}", generation):
                self._journals_behind(directory, [one for one in journals if one > generation])
                return
            generation += 1

    def _journals_behind(self, directory: Path, journals: list[int]) -> None:
        for one in journals:
            path = directory / f"journal.{one}"
            finding = self._found(path, 0, "continues a damaged journal: it cannot be used")
            if self._lost is not None:
                self._lost.move(path)
                finding.done = "moved to lost+found"

    def _journal(self, path: Path, generation: int) -> bool:
        """Whether all entries of a journal are intact, possibly after a repair."""
        file = self._disk.read(path)
        try:
            good, end, data = self._entries(path, file, generation)
        except StoreError as error:
            self._found(path, 0, _text_of(error))
            return False
        if end == len(file):
            return True
        what = f"entry {good + 1} is damaged: it and the {len(file) - end} bytes from there on cannot be"
        finding = self._found(path, end, f"{what} used; deliveries and acks in them happen again")
        if self._lost is None:
            return False
        if not is_enveloped(file) and self._repair_entry(path, bytearray(data), end, generation):
            self._lost.keep(path, file)
            finding.done = "one wrong bit, the hash proves it: restored"
            return self._journal(path, generation)
        self._lost.keep(path, file[end:], f".from-{end}")
        write_atomically(self._disk, path, file[:end])
        finding.done = "cut there; the bytes after it are in lost+found"
        return False

    def _entries(self, path: Path, file: bytes, generation: int) -> tuple[int, int, bytes]:
        """Returns the number of intact entries of a journal, the offset in the file at which they end, and
        the plain bytes."""
        if not is_enveloped(file):
            entries, end = read_entries(file, generation)
            return len(entries), end, file
        decoded = self._file_cipher.decode(memoryview(file), path)
        entries, _ = read_entries(bytes(decoded.data[: decoded.good]), generation)
        return len(entries), decoded.file_end, bytes(decoded.data)

    def _repair_entry(self, path: Path, data: bytearray, at: int, generation: int) -> bool:
        size = int.from_bytes(data[at : at + 4], "little")
        end = at + _ENTRY_HEAD + size
        until = end if size <= SMALL_FILE_MAX and end <= len(data) else min(at + _ENTRY_HEAD, len(data))
        if flip_back(data, at, until, lambda: bool(read_entries(bytes(data[at:]), generation)[0])) is None:
            return False
        write_atomically(self._disk, path, bytes(data))
        return True


def _claimed_identity(view: BlockView, offset: int) -> str:
    """The identity in a bad record. Untrusted, but there is no other source."""
    tagged = int.from_bytes(view.plain[offset + 4 : offset + 12], "little")
    if tagged >> _SEQ_BITS:
        return "apparently a tombstone; the messages it removed may be back"
    return f"message {tagged}, if its sequence is intact, is lost"


def _text_of(error: Exception) -> str:
    """An error's text without its path, which the finding has already."""
    path = getattr(error, "path", None)
    return str(error).removeprefix(f"{path}: ")


def _path_of(error: Exception) -> Path | None:
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    return Path(path) if path else None


def _ignore(*_: object) -> None:
    """Lost messages that recovery reports have findings already, record by record."""


class _WarningCollector(logging.Handler):
    def __init__(self, tell: Callable[[Path | None, str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        self._tell(first if isinstance(first, Path) else None, record.getMessage())


@contextmanager
def _captured_logs(tell: Callable[[Path | None, str], object]) -> Iterator[None]:
    """Redirects the store's log messages to `tell`."""
    logger, ear = logging.getLogger("penstock.store"), _WarningCollector(tell)
    before = logger.propagate
    logger.addHandler(ear)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = before
