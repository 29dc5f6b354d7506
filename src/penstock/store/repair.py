"""Repairs damaged files of a store, as far as their hashes prove the original bytes.

A flipped bit is restored when flipping it back makes the hash of a record, frame, entry or small file fit
again (a wrong guess fits once in 2^64). Anything else is cut out or cut off, as recovery does at each start,
so that the rest forms a clean store; the bytes taken out are preserved in `lost+found`.

Invariants: no byte leaves the store directory; a file is replaced as a whole or not at all; nothing is
invented: configurations that cannot be proven stay as they are.

Rejected: more than one flipped bit (each further bit multiplies the guesses by the number of bits).
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
"""Bytes hashed at most in search of one flipped bit, about a second: covers records up to 16 KiB."""

OPEN_FRAME_MAX = 4096
"""Size limit of encrypted frames and files in which a flipped bit is searched."""

_LENGTH = struct.Struct("<I")
_LENGTH_BITS = 0x7FFFFFFF
_FRAME_HEAD = 8


class LostAndFound:
    """Preserves bytes taken out of files, in `<store>/lost+found/<time>/` under their original paths."""

    def __init__(self, disk: Disk, store: Path, stamp: str) -> None:
        self._disk = disk
        self._store = store
        self.directory = store / "lost+found" / stamp

    def _target(self, path: Path, suffix: str) -> Path:
        target = self.directory / path.relative_to(self._store)
        make_directory(self._disk, target.parent)
        target = target.with_name(target.name + suffix)
        number = 1
        while self._disk.exists(target):
            number += 1
            target = target.with_name(f"{path.name}{suffix}.{number}")
        return target

    def keep(self, path: Path, data: bytes, suffix: str = "") -> None:
        """Preserves a copy of bytes before they are taken out of a file. Raises StoreWriteError."""
        write_atomically(self._disk, self._target(path, suffix), data)

    def move(self, path: Path) -> None:
        """Moves a whole file. Raises StoreWriteError, OSError."""
        self._disk.rename(path, self._target(path, ""))
        sync_directory(self._disk, path.parent)


def flip_back(data: bytearray, low: int, high: int, is_whole: Callable[[], bool]) -> int | None:
    """Flips each bit of the range [low, high) in turn until is_whole(). Returns the byte's offset; None, with
    `data` unchanged, when no single bit helps."""
    for at in range(low, high):
        for bit in range(8):
            data[at] ^= 1 << bit
            if is_whole():
                return at
            data[at] ^= 1 << bit
    return None


def flip_back_record(data: bytearray, offset: int) -> int | None:
    """flip_back() for the record at an offset of a block's plain bytes."""
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
    """A block's file as recovery reads it.

    `plain`: the records' bytes. `good`: plain bytes before the first bad frame, which begins at `frame_end`
    of the file (`frame_why` None: no bad frame). `block`: the scanned block; `bad`: the result of scan().
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
        """Whether every byte is as it was written."""
        return self.frame_why is None and self.bad is None and not self.block.skipped_offsets


def read_block(file_cipher: FileCipher, path: Path, number: int, file: memoryview | bytearray) -> BlockView:
    """Reads a block's file. Raises StoreError when it is encrypted and no key is configured,
    StoreCorruptError when its format is unknown."""
    plain, frame_end, why = file, len(file), None
    enveloped = is_enveloped(memoryview(file))
    good = len(file)
    if enveloped:
        decoded = file_cipher.decode(memoryview(file), path)
        plain, good, frame_end, why = decoded.data, decoded.good, decoded.file_end, decoded.why
    block = MessageBlock(number, 1)
    # Scan a copy, so that no buffer export prevents resizing `plain` during a repair.
    bad = block.scan(bytes(plain) if isinstance(plain, bytearray) else plain, copy=False)
    block.release_borrowed()
    return BlockView(plain, enveloped, good, frame_end, why, block, bad)


@dataclass(slots=True)
class BlockRepairer:
    """Repairs one block's file. `is_open`: it is the last block, with nothing written behind it. `indexed`:
    its index fits, so that a server finds the messages behind damage that ends a scan."""

    disk: Disk
    file_cipher: FileCipher
    path: Path
    number: int
    is_open: bool
    indexed: bool
    raw: bytearray
    fixed: dict[int, str] = field(default_factory=dict)
    kept_whole: bool = True

    def view(self) -> BlockView:
        """Reads the file's bytes in their current state."""
        return read_block(self.file_cipher, self.path, self.number, self.raw)

    def fix(self) -> None:
        """Restores everything that one flipped bit per record or frame explains."""
        given_up: set[int] = set()
        while True:
            if not is_enveloped(memoryview(self.raw)) and self._fix_head():
                continue
            view = self.view()
            if view.frame_why is not None:
                if self._fix_frame(view):
                    continue
                return
            wrong = [*view.block.skipped_offsets, *((view.bad[0],) if view.bad else ())]
            offset = next((one for one in wrong if one not in given_up), None)
            if offset is None:
                return
            given_up.add(offset)
            plain = bytearray(view.plain) if view.enveloped else self.raw
            at = flip_back_record(plain, offset)
            if at is not None:
                self.fixed[offset] = f"byte {at} had one wrong bit, the hash proves it: restored"
                if view.enveloped:
                    self._encode(plain)

    def _encode(self, plain: bytes | bytearray) -> None:
        compress = not self.file_cipher.encrypts
        self.raw = bytearray(self.file_cipher.encode(plain, self.path, compress=compress))

    def _fix_head(self) -> bool:
        """Restores a flipped bit in the magic: the file may have been an envelope."""
        if len(self.raw) <= HEAD.size:
            return False
        at = flip_back(self.raw, 0, 8, lambda: is_enveloped(memoryview(self.raw)))
        if at is not None:
            self.fixed[0] = f"byte {at} had one wrong bit: restored"
        return at is not None

    def _fix_frame(self, view: BlockView) -> bool:
        start = view.frame_end
        behind = start + _FRAME_HEAD
        if behind > len(self.raw):
            return False
        frames = self.file_cipher.resume(bytes(self.raw[: HEAD.size]), self.path)
        if not frames.encrypts:
            return False  # without encryption, only the records inside have hashes

        def is_whole() -> bool:
            return frames.is_whole(memoryview(self.raw), start, view.good)

        size = _LENGTH.unpack_from(self.raw, start)[0]
        end = behind + size if size <= min(OPEN_FRAME_MAX, len(self.raw) - behind) else behind
        at = flip_back(self.raw, start, end, is_whole)
        if at is not None:
            self.fixed[start] = f"byte {at} had one wrong bit, the cipher proves it: restored"
        return at is not None

    def cut(self, lost: LostAndFound) -> tuple[dict[int, str], bool]:
        """Takes out what cannot be restored. Returns the actions by offset, and whether the index still fits.

        Leaves damage that ends the scan of a closed block when its index fits: a server finds the records
        behind it through the index, and a cut would lose them.
        """
        view = self.view()
        if view.sound:
            return {}, True
        if view.frame_why is not None:
            if not self.is_open:
                return {}, True
            lost.keep(self.path, bytes(self.raw[view.frame_end :]), f".from-{view.frame_end}")
            del self.raw[view.frame_end :]
            return {view.frame_end: "cut there; the bytes after it are in lost+found"}, True
        if view.bad is not None and not self.is_open and self.indexed:
            return {}, True
        plain, done = bytearray(view.plain), {}
        lost.keep(self.path, bytes(self.raw))
        if view.bad is not None:
            del plain[view.bad[0] :]
            done[view.bad[0]] = "cut there; the original file is in lost+found"
        for offset in reversed(view.block.skipped_offsets):
            del plain[offset : _end_of_bad(plain, offset)]
            done[offset] = "taken out; the original file is in lost+found"
        if view.enveloped:
            self._encode(plain)
        else:
            self.raw = plain
        return done, False


def _end_of_bad(data: bytearray, at: int) -> int:
    """Offset of the next good record behind a bad one, following the lengths."""
    while not isinstance(RecordReader(bytes(data), at).next(), tuple):
        at += _LENGTH.unpack_from(data, at)[0] & _LENGTH_BITS
    return at
