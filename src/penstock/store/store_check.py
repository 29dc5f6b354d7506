"""Examines and repairs a store that no server uses, and reads its messages.

Every file is read by what recovery reads it with: block scans, indexes, frames, metas, snapshots, journals.
Then recovery itself is run on an overlay (see overlay.py), which tells what a server would find, and whether
something strikes it that nothing here has seen. What a repair changes, repair.py decides.

Invariants: check() and messages() change nothing; repair() deletes nothing; both hold the store's lock.
Rejected: a reader of its own (it would agree with itself and not with the server).
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
from penstock.store.blocks import block_path, fingerprint, index_path, map_file
from penstock.store.disk import LOCAL_DISK, Disk
from penstock.store.envelope import is_enveloped
from penstock.store.files import (
    META,
    OpenFiles,
    names_in,
    quote_name,
    unpack_meta,
    unquote_name,
    write_atomically,
)
from penstock.store.interface import POSITIONS
from penstock.store.journal import STATE, FileConsumerStore, read_entries, read_state
from penstock.store.keys import StoreKey, open_vault
from penstock.store.overlay import OverlayDisk
from penstock.store.recovery import block_numbers, recover_log
from penstock.store.repair import (
    OPEN_FRAME_MAX,
    BlockRepairer,
    BlockView,
    LostAndFound,
    flip_back,
    look,
)

SMALL_FILE_MAX = 16 << 10
"""Bytes of a meta or snapshot in which a flipped bit is looked for."""

_INDEX_NAME = re.compile(r"([1-9][0-9]*)\.idx")
_ENTRY_HEAD = 12
_SEQ_BITS = 48


@dataclass(slots=True)
class Finding:
    """One thing that is not as it was written.

    path: the file, below the store directory. offset: the byte of it, when there is one. what: in words.
    fault: False for what may be as it should. done: what a repair did about it; "": nothing.
    """

    path: Path
    offset: int | None
    what: str
    fault: bool = True
    done: str = ""


@dataclass(slots=True)
class StreamSummary:
    """What a server would make of a stream: messages, their bytes (as users see them), first and last
    sequence, blocks, consumers."""

    account: str
    name: str
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    blocks: int = 0
    consumers: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StoreReport:
    """All findings, and the streams as a server would find them now."""

    findings: list[Finding] = field(default_factory=list)
    streams: list[StreamSummary] = field(default_factory=list)
    moved_to: Path | None = None

    @property
    def faults(self) -> list[Finding]:
        """The findings that mean damage."""
        return [one for one in self.findings if one.fault]


class StoreChecker:
    """One store directory, held by its lock until close().

    Raises StoreError where there is no store, the key is not the right one; StoreLockedError while a server
    uses it; StoreWriteError when the lock can't be taken.
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
            # Without a key file nothing is encrypted, and reading must not begin with it.
            has_key = disk.exists(self._store / "key")
            vault = open_vault(self._overlay, self._store, (key or StoreKey()) if has_key else StoreKey())
        except BaseException:
            self._lock.release()
            raise
        self._files = OpenFiles(disk=self._overlay, vault=vault)
        self._vault = vault
        self._report = StoreReport()
        self._lost: LostAndFound | None = None

    def close(self) -> None:
        """Gives the lock back."""
        self._files.close()
        self._lock.release()

    # ------------------------------------------------------------------ what users ask for

    def check(self) -> StoreReport:
        """Reads everything and changes nothing."""
        return self._examine(None)

    def repair(self, stamp: str) -> StoreReport:
        """The same, and puts right what can be. stamp: name of the folder below `lost+found` that takes what
        leaves its place. Raises StoreWriteError when the disk refuses."""
        return self._examine(LostAndFound(self._disk, self._root, stamp))

    def streams(self) -> list[tuple[str, str, Path]]:
        """(account, stream, directory) of all streams; one whose meta is damaged goes by its directory."""
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
        """A stream's messages as a server would read them. to_seq 0: to the end. on_lost hears in words of
        those that can't be read, and of what recovery says."""

        def lost(number: int, offset: int, seq: int, why: str) -> None:
            on_lost(f"{block_path(directory, number)}: message {seq} is lost: at byte {offset}: {why}")

        with _heard(lambda path, text: on_lost(text)):
            log, files = recover_log(
                directory / "msgs", self._files, block_size=DEFAULT_BLOCK_SIZE, on_lost=lost
            )
            seq = log.next_seq(max(from_seq, 1), subject)
            while seq and (to_seq == 0 or seq <= to_seq):
                message = log.load(seq)
                if message is not None:
                    yield message
                seq = log.next_seq(seq + 1, subject)
            files.close()
        self._overlay.reset()

    # ------------------------------------------------------------------ all of it

    def _examine(self, lost: LostAndFound | None) -> StoreReport:
        self._report, self._lost = StoreReport(), lost
        for account, name, directory in self.streams():
            if self._is_newer(directory):
                continue
            self._small_file(directory / META, lambda path: unpack_meta(self._files, path))
            self._blocks(directory / "msgs")
            for consumer in self._consumers(directory):
                self._consumer(consumer)
            self._as_a_server(account, name, directory)
        if lost is not None and self._disk.exists(lost.directory):
            self._report.moved_to = lost.directory
        return self._report

    def _consumers(self, directory: Path) -> list[Path]:
        at = directory / "consumers"
        names = names_in(self._disk, at) if self._disk.exists(at) else []
        return [
            at / entry
            for entry in names
            if not entry.startswith(".") and self._disk.exists(at / entry / META)
        ]

    def _is_newer(self, directory: Path) -> bool:
        """Is the asset of a format that this version does not know? It is reported and left as it is: what
        looks damaged to this version may be whole to the one that wrote it."""
        try:
            unpack_meta(self._files, directory / META)
        except StoreFormatError as error:
            text = str(error).removeprefix(f"{error.path}: ")
            self._found(directory / META, None, text)
            return True
        except (StoreError, OSError):
            return False  # whoever looks at it closer finds out
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

    def _as_a_server(self, account: str, name: str, directory: Path) -> None:
        """Runs recovery on an overlay; what it says of files nothing was found in is a finding too."""
        summary = StreamSummary(account, name)
        self._report.streams.append(summary)
        known = {finding.path for finding in self._report.findings}

        def told(path: Path | None, text: str) -> None:
            where = path if path is not None and self._root in path.parents else directory
            if where.relative_to(self._root) not in known:
                self._found(where, None, text)

        with _heard(told):
            try:
                log, files = recover_log(
                    directory / "msgs", self._files, block_size=DEFAULT_BLOCK_SIZE, on_lost=_ignore
                )
                summary.messages, summary.bytes = log.messages, log.bytes
                summary.first_seq, summary.last_seq = log.first_seq, log.last_seq
                summary.blocks = len(log.block_list())
                self._gaps(directory / "msgs", log)
                files.close()
            except (StoreError, OSError) as error:
                told(_path_of(error), str(error))
            for consumer in self._consumers(directory):
                if consumer.name != quote_name(POSITIONS):
                    summary.consumers.append(self._name_of(consumer))
                try:
                    FileConsumerStore.open(consumer, self._files).load()
                except (StoreError, OSError) as error:
                    told(_path_of(error), str(error))
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
                what = "what an earlier start cut off this block; nothing reads it"
                self._found(directory / name, None, what, fault=False)

    def _missing_block(self, directory: Path, name: str, number: int, numbers: list[int]) -> None:
        before = max((one for one in numbers if one < number), default=None)
        after = min((one for one in numbers if one > number), default=None)
        low = self._ends(directory, before)[1] + 1 if before is not None else 1
        high = self._ends(directory, after)[0] - 1 if after is not None else 0
        lost = f"sequences {low} to {high}" if high >= low else f"sequences from {low} on"
        what = f"block {number} is missing, its index is there: what it held of the {lost} is lost"
        finding = self._found(directory / f"{number}.blk", None, what)
        if self._lost is not None:
            self._lost.move(directory / name)
            finding.done = "can't be brought back; its index is in lost+found"

    def _ends(self, directory: Path, number: int) -> tuple[int, int]:
        path = block_path(directory, number)
        try:
            block = look(self._vault, path, number, map_file(self._disk, path)).block
        except StoreError:
            return 1, 0
        return block.first_seq, max(block.last_seq, block.last_at_least)

    def _block(self, directory: Path, number: int, *, is_last: bool) -> None:
        path = block_path(directory, number)
        try:
            file = map_file(self._disk, path)
            view = look(self._vault, path, number, file)
        except StoreError as error:
            self._found(path, 0, _why(error))
            return
        indexed = self._index(directory, number)
        if is_last and indexed:
            what = (
                "the newest block is closed, and no open one follows it; if the server was not killed in the"
            )
            self._found(path, None, f"{what} middle of a write, a file is missing here")
        # Compressed and not encrypted: it was closed, whether the open one is there or not.
        is_open = is_last and not indexed and (not view.enveloped or self._vault.encrypts)
        if view.sound:
            return
        findings = self._tell_block(path, view, len(file), is_open=is_open, indexed=indexed)
        if self._lost is not None:
            mender = BlockRepairer(
                self._disk, self._vault, path, number, is_open, indexed, bytearray(self._disk.read(path))
            )
            self._mend(directory, mender, findings)

    def _tell_block(
        self, path: Path, view: BlockView, size: int, *, is_open: bool, indexed: bool
    ) -> dict[int, Finding]:
        found: dict[int, Finding] = {}
        block = view.block
        if view.frame_why is not None:
            what = f"bad frame ({view.frame_why}); {len(block)} messages before it are whole"
            found[view.frame_end] = self._found(path, view.frame_end, what)
            return found
        where = " of its plain bytes" if view.enveloped else ""
        for offset in block.passed_over:
            what = f"bad record{where} (its hash does not fit its bytes): {_said(view, offset)}"
            found[offset] = self._found(path, offset, what)
        if view.bad is None:
            return found
        offset, why = view.bad
        behind = len(view.plain) - offset
        last = f"the last whole message is {block.last_seq}" if len(block) else "no message before it"
        if is_open:
            what = f"torn end{where}: {behind} bytes are no record ({why}); {last}"
        elif indexed:
            what = (
                f"bad record{where} ({why}): {_said(view, offset)}; what is behind it is found by the index"
            )
        else:
            what = f"bad record{where} ({why}): the {behind} bytes from there on can't be read; {last}"
        found[offset] = self._found(path, offset, what)
        return found

    def _mend(self, directory: Path, mender: BlockRepairer, findings: dict[int, Finding]) -> None:
        assert self._lost is not None
        before = bytes(mender.raw)
        mender.fix()
        fixed = bytes(mender.raw)
        done, index_fits = mender.cut(self._lost)
        if bytes(mender.raw) == before:
            return
        if fixed != before and index_fits:
            self._lost.keep(mender.path, before)
        write_atomically(self._disk, mender.path, bytes(mender.raw))
        index = index_path(directory, mender.number)
        if self._disk.exists(index) and not self._index_fits(directory, mender.number):
            self._lost.move(index)
        for offset, text in (mender.fixed | done).items():
            if offset in findings:
                findings[offset].done = text
            else:
                self._found(mender.path, offset, "came to light by the repair before it", done=text)

    # ------------------------------------------------------------------ indexes

    def _index(self, directory: Path, number: int) -> bool:
        """Is there an index that fits its block? A bad one is told, and moved aside by a repair."""
        path = index_path(directory, number)
        if not self._disk.exists(path):
            return False
        try:
            self._read_index(directory, number)
        except (ValueError, StoreError, OSError) as error:
            offset = error.offset if isinstance(error, StoreCorruptError) else None
            what = f"bad index: {_why(error)}; the block tells the same, and the next start reads that"
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
        index = self._vault.unseal(
            self._disk.read(index_path(directory, number)), index_path(directory, number)
        )
        size, tail = fingerprint(self._disk, block_path(directory, number))
        return MessageBlock.from_index(index, number, size, tail)

    def _gaps(self, directory: Path, log: StreamLog) -> None:
        """Sequences that no block tells of, between two blocks that are not neighbours by number."""
        before = None
        for block in log.block_list():
            if before is not None and len(block) and block.number > before.number + 1:
                low, high = max(before.last_seq + 1, log.first_seq), block.first_seq - 1
                if low <= high:
                    what = f"no block tells of sequences {low} to {high}: they were all removed, or a file is"
                    self._found(
                        block_path(directory, block.number), None, f"{what} missing before it", fault=False
                    )
            before = block

    # ------------------------------------------------------------------ metas, snapshots, journals

    def _small_file(self, path: Path, read: Callable[[Path], object]) -> bool:
        """Can a meta or snapshot be read? A repair puts one wrong bit right."""
        try:
            read(path)
            return True
        except FileNotFoundError:
            return True
        except (StoreError, OSError) as error:
            finding = self._found(path, getattr(error, "offset", None) or 0, _why(error))
        if self._lost is None:
            return False
        before = self._disk.read(path)
        at = self._flip_small(path, before, read)
        if at is None:
            return False
        self._lost.keep(path, before)
        write_atomically(self._disk, path, self._overlay.read(path))
        finding.done = f"byte {at} had one wrong bit, the hash proves it: put right"
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
                finding.done = f"{what}; the consumer begins again where it was made to begin"
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
            finding = self._found(path, 0, "goes on after a journal that is not whole: it can't be used")
            if self._lost is not None:
                self._lost.move(path)
                finding.done = "moved to lost+found"

    def _journal(self, path: Path, generation: int) -> bool:
        """Are all entries of a journal whole (again)?"""
        file = self._disk.read(path)
        try:
            good, end, data = self._entries(path, file, generation)
        except StoreError as error:
            self._found(path, 0, _why(error))
            return False
        if end == len(file):
            return True
        what = f"entry {good + 1} is not whole: it and what is behind it ({len(file) - end} bytes) can't be"
        finding = self._found(path, end, f"{what} used; deliveries and acks in it happen again")
        if self._lost is None:
            return False
        if not is_enveloped(file) and self._mend_entry(path, bytearray(data), end, generation):
            self._lost.keep(path, file)
            finding.done = "one wrong bit, the hash proves it: put right"
            return self._journal(path, generation)
        self._lost.keep(path, file[end:], f".from-{end}")
        write_atomically(self._disk, path, file[:end])
        finding.done = "cut there; what was behind is in lost+found"
        return False

    def _entries(self, path: Path, file: bytes, generation: int) -> tuple[int, int, bytes]:
        """Whole entries of a journal, where they end in the file, and the plain bytes."""
        if not is_enveloped(file):
            entries, end = read_entries(file, generation)
            return len(entries), end, file
        decoded = self._vault.decode(memoryview(file), path)
        entries, _ = read_entries(bytes(decoded.data[: decoded.good]), generation)
        return len(entries), decoded.file_end, bytes(decoded.data)

    def _mend_entry(self, path: Path, data: bytearray, at: int, generation: int) -> bool:
        size = int.from_bytes(data[at : at + 4], "little")
        end = at + _ENTRY_HEAD + size
        until = end if size <= SMALL_FILE_MAX and end <= len(data) else min(at + _ENTRY_HEAD, len(data))
        if flip_back(data, at, until, lambda: bool(read_entries(bytes(data[at:]), generation)[0])) is None:
            return False
        write_atomically(self._disk, path, bytes(data))
        return True


def _said(view: BlockView, offset: int) -> str:
    """What a bad record says it is; its bytes can't be trusted, but nothing tells more."""
    tagged = int.from_bytes(view.plain[offset + 4 : offset + 12], "little")
    if tagged >> _SEQ_BITS:
        return "a note of removals, it seems; what it removed may be back"
    return f"message {tagged}, by what it says, is lost"


def _why(error: Exception) -> str:
    """An error's text without the path in front, which the finding has."""
    path = getattr(error, "path", None)
    return str(error).removeprefix(f"{path}: ")


def _path_of(error: Exception) -> Path | None:
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    return Path(path) if path else None


def _ignore(*_: object) -> None:
    """What recovery tells of lost messages was found before, record by record."""


class _WarningCollector(logging.Handler):
    def __init__(self, tell: Callable[[Path | None, str], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        self._tell(first if isinstance(first, Path) else None, record.getMessage())


@contextmanager
def _heard(tell: Callable[[Path | None, str], object]) -> Iterator[None]:
    """What the store logs meanwhile goes to `tell` alone."""
    logger, ear = logging.getLogger("penstock.store"), _WarningCollector(tell)
    before = logger.propagate
    logger.addHandler(ear)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(ear)
        logger.propagate = before
