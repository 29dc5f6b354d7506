"""Puts damaged files of a store right, as far as their own hashes prove what was there.

What is proven is put back: a record, frame, entry or small file of which one flipped bit makes the hash fit
again was that one (a wrong guess fits once in 2^64). Anything else is cut out or off, as recovery does at
each start, so that what is whole counts as a clean store; the bytes that leave are kept in `lost+found`.

Invariants: no byte leaves the store directory; a file is replaced as a whole or not at all; nothing is made
up: configurations that can't be proven stay as they are.
Rejected: more than one flipped bit (every further one multiplies the guesses by the bits there are).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.records import RecordReader
from penstock.store.disk import Disk
from penstock.store.envelope import HEAD, FileCipher, is_enveloped
from penstock.store.files import make_directory, sync_directory, write_atomically

GUESS_BYTES_MAX = 1 << 31
"""Bytes hashed for one flipped bit at most, about a second: it is looked for in records up to 16 KiB."""

OPEN_FRAME_MAX = 4096
"""Bytes of an encrypted frame or file in which a flipped bit is looked for."""

_LENGTH = struct.Struct("<I")
_LENGTH_BITS = 0x7FFFFFFF
_FRAME_HEAD = 8


class LostAndFound:
    """Where bytes go that leave their files: `<store>/lost+found/<time>/` with the paths they had."""

    def __init__(self, disk: Disk, store: Path, stamp: str) -> None:
        self._disk = disk
        self._store = store
        self.directory = store / "lost+found" / stamp

    def _place(self, path: Path, suffix: str) -> Path:
        place = self.directory / path.relative_to(self._store)
        make_directory(self._disk, place.parent)
        place = place.with_name(place.name + suffix)
        number = 1
        while self._disk.exists(place):
            number += 1
            place = place.with_name(f"{path.name}{suffix}.{number}")
        return place

    def keep(self, path: Path, data: bytes, suffix: str = "") -> None:
        """A copy of bytes that are about to leave a file. Raises StoreWriteError."""
        write_atomically(self._disk, self._place(path, suffix), data)

    def move(self, path: Path) -> None:
        """The file itself. Raises StoreWriteError, OSError."""
        self._disk.rename(path, self._place(path, ""))
        sync_directory(self._disk, path.parent)


def flip_back(data: bytearray, low: int, high: int, is_whole: Callable[[], bool]) -> int | None:
    """Flips each bit of a range until the bytes are whole; where that was. None, and all is as before."""
    for at in range(low, high):
        for bit in range(8):
            data[at] ^= 1 << bit
            if is_whole():
                return at
            data[at] ^= 1 << bit
    return None


def flip_back_record(data: bytearray, offset: int) -> int | None:
    """The same for the record at an offset of a block's plain bytes."""
    left = len(data) - offset
    if left < _LENGTH.size:
        return None

    def is_whole() -> bool:
        return isinstance(RecordReader(data, offset).next(), tuple)

    size = _LENGTH.unpack_from(data, offset)[0] & _LENGTH_BITS
    found = flip_back(data, offset, offset + _LENGTH.size, is_whole)
    if found is not None or size > left or 8 * size * size > GUESS_BYTES_MAX:
        return found
    return flip_back(data, offset + _LENGTH.size, offset + size, is_whole)


@dataclass(slots=True)
class BlockView:
    """A block's file as recovery's reader sees it.

    plain: the records' bytes. good: how many of them come before the first bad frame, which begins at
    `frame_end` of the file (frame_why None: there is none). block: what scan() made of them; bad: its answer.
    """

    plain: memoryview | bytearray
    enveloped: bool
    good: int
    frame_end: int
    frame_why: str | None
    block: MessageBlock
    bad: tuple[int, str] | None

    @property
    def sound(self) -> bool:
        """Is every byte as it was written?"""
        return self.frame_why is None and self.bad is None and not self.block.passed_over


def look(vault: FileCipher, path: Path, number: int, file: memoryview | bytearray) -> BlockView:
    """Reads a block's file. Raises StoreError when it is encrypted and there is no key, StoreCorruptError
    when its format is unknown."""
    plain, frame_end, why = file, len(file), None
    enveloped = is_enveloped(memoryview(file))
    good = len(file)
    if enveloped:
        decoded = vault.decode(memoryview(file), path)
        plain, good, frame_end, why = decoded.data, decoded.good, decoded.file_end, decoded.why
    block = MessageBlock(number, 1)
    # A copy, so that nothing holds on to bytes that are changed next.
    bad = block.scan(bytes(plain) if isinstance(plain, bytearray) else plain, copy=False)
    block.let_go()
    return BlockView(plain, enveloped, good, frame_end, why, block, bad)


@dataclass(slots=True)
class BlockRepairer:
    """One block's file in repair. is_open: nothing was written behind it. indexed: its index fits, so that
    a server finds the messages behind a damage that ends a scan."""

    disk: Disk
    vault: FileCipher
    path: Path
    number: int
    is_open: bool
    indexed: bool
    raw: bytearray
    fixed: dict[int, str] = field(default_factory=dict)
    kept_whole: bool = True

    def view(self) -> BlockView:
        """As it is now."""
        return look(self.vault, self.path, self.number, self.raw)

    def fix(self) -> None:
        """Puts right what one flipped bit explains."""
        given_up: set[int] = set()
        while True:
            if not is_enveloped(memoryview(self.raw)) and self._fix_head():
                continue
            view = self.view()
            if view.frame_why is not None:
                if self._fix_frame(view):
                    continue
                return
            wrong = [*view.block.passed_over, *((view.bad[0],) if view.bad else ())]
            offset = next((one for one in wrong if one not in given_up), None)
            if offset is None:
                return
            given_up.add(offset)
            plain = bytearray(view.plain) if view.enveloped else self.raw
            at = flip_back_record(plain, offset)
            if at is not None:
                self.fixed[offset] = f"byte {at} had one wrong bit, the hash proves it: put right"
                if view.enveloped:
                    self._encode(plain)

    def _encode(self, plain: bytes | bytearray) -> None:
        compress = not self.vault.encrypts
        self.raw = bytearray(self.vault.encode(plain, self.path, compress=compress))

    def _fix_head(self) -> bool:
        """The file's first bytes may have been those of an envelope."""
        if len(self.raw) <= HEAD.size:
            return False
        at = flip_back(self.raw, 0, 8, lambda: is_enveloped(memoryview(self.raw)))
        if at is not None:
            self.fixed[0] = f"byte {at} had one wrong bit: put right"
        return at is not None

    def _fix_frame(self, view: BlockView) -> bool:
        start = view.frame_end
        behind = start + _FRAME_HEAD
        if behind > len(self.raw):
            return False
        frames = self.vault.resume(bytes(self.raw[: HEAD.size]), self.path)
        if not frames.encrypts:
            return False  # nothing but the records in it have hashes

        def is_whole() -> bool:
            return frames.is_whole(memoryview(self.raw), start, view.good)

        size = _LENGTH.unpack_from(self.raw, start)[0]
        end = behind + size if size <= min(OPEN_FRAME_MAX, len(self.raw) - behind) else behind
        at = flip_back(self.raw, start, end, is_whole)
        if at is not None:
            self.fixed[start] = f"byte {at} had one wrong bit, the cipher proves it: put right"
        return at is not None

    def cut(self, lost: LostAndFound) -> tuple[dict[int, str], bool]:
        """Takes out what can't be put right. (what was done by offset, may the index be used still).

        A damage that ends the scan of a closed block stays when its index fits: a server finds what is behind
        it, and a cut would lose that.
        """
        view = self.view()
        if view.sound:
            return {}, True
        if view.frame_why is not None:
            if not self.is_open:
                return {}, True
            lost.keep(self.path, bytes(self.raw[view.frame_end :]), f".from-{view.frame_end}")
            del self.raw[view.frame_end :]
            return {view.frame_end: "cut there; what was behind is in lost+found"}, True
        if view.bad is not None and not self.is_open and self.indexed:
            return {}, True
        plain, done = bytearray(view.plain), {}
        lost.keep(self.path, bytes(self.raw))
        if view.bad is not None:
            del plain[view.bad[0] :]
            done[view.bad[0]] = "cut there; the file as it was is in lost+found"
        for offset in reversed(view.block.passed_over):
            del plain[offset : _end_of_bad(plain, offset)]
            done[offset] = "taken out; the file as it was is in lost+found"
        if view.enveloped:
            self._encode(plain)
        else:
            self.raw = plain
        return done, False


def _end_of_bad(data: bytearray, at: int) -> int:
    """Where the next good record begins behind a bad one, by their lengths."""
    while not isinstance(RecordReader(bytes(data), at).next(), tuple):
        at += _LENGTH.unpack_from(data, at)[0] & _LENGTH_BITS
    return at
