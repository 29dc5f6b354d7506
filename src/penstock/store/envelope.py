"""The file format of encrypted and compressed files.

head    magic 8 bytes | version u8 | cipher u8 | 6 zero bytes | salt 16 bytes
frames  stored length u32 | length u32, top bit: compressed | stored bytes

A frame is a section of the plain bytes, compressed (zstandard), then encrypted: nonce 12 | AEAD. Each file
has its own key, derived from the store's key and the file's salt. Each frame has a random nonce, and its
position (file, offset in the plain bytes, both lengths) is authenticated, so frames can be neither modified
nor moved. A file is appended to by appending frames: a crash leaves complete frames and a torn last one, as
with records in a plain file.

Invariants: a plain file never begins with the magic (as a record's length it would exceed the largest block);
an incompletely written frame is continued with the same bytes, so that no nonce is used twice.

Rejected: a stream cipher by file offset (rewriting a range, after a crash or a removal, reuses its key
stream, and nothing detects modified bytes).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.errors import StoreCorruptError, StoreError

if TYPE_CHECKING:
    from penstock.store.files import OpenFiles

MAGIC = b"PENSFILE"
CIPHERS = {"chacha": 1, "aes": 2}
FRAME_BYTES = 256 * 1024
"""Plain bytes per frame when a file is written as a whole: the cost of one flipped bit in a compressed
file."""

HEAD = struct.Struct("<8sBB6x16s")
_FRAME = struct.Struct("<II")
_POSITION = struct.Struct("<QII")
_COMPRESSED = 1 << 31
_NONCE_BYTES, _TAG_BYTES = 12, 16
_PATH_PARTS = 4


def is_enveloped(data: bytes | memoryview) -> bool:
    """Whether a file that begins with these bytes has this format."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def _authenticated_path(path: Path) -> bytes:
    """The authenticated part of a file's path: account or stream, kind, asset and file."""
    return "/".join(path.parts[-_PATH_PARTS:]).encode("utf-8", "surrogateescape")


class EnvelopeFrames:
    """Encodes and decodes the frames of one file. `aead`: the cipher; None: no encryption."""

    def __init__(self, aead: Any, path: Path) -> None:
        self._aead: Any = aead
        self._path_bytes = _authenticated_path(path)

    @property
    def encrypts(self) -> bool:
        """Whether the frames are encrypted."""
        return self._aead is not None

    def seal(self, data: bytes | memoryview, at: int, *, compress: bool = False) -> bytes:
        """Encodes a frame of plain bytes that begin at offset `at` of the plain file."""
        length = len(data)
        if compress:
            import zstandard

            smaller = zstandard.ZstdCompressor(level=1, write_content_size=True).compress(data)
            if len(smaller) < length:
                data, length = smaller, length | _COMPRESSED
        if self._aead is None:
            return _FRAME.pack(len(data), length) + bytes(data)
        stored = len(data) + _NONCE_BYTES + _TAG_BYTES
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._aead.encrypt(nonce, data, self._path_bytes + _POSITION.pack(at, stored, length))
        return _FRAME.pack(stored, length) + nonce + bytes(sealed)

    def open(self, stored: memoryview, at: int, length: int) -> bytes | memoryview:
        """Decodes a frame. Raises ValueError when it was modified."""
        data: bytes | memoryview = stored
        if self._aead is not None:
            from cryptography.exceptions import InvalidTag

            identity = self._path_bytes + _POSITION.pack(at, len(stored), length)
            try:
                data = self._aead.decrypt(bytes(stored[:_NONCE_BYTES]), stored[_NONCE_BYTES:], identity)
            except InvalidTag:
                raise ValueError("it does not decrypt: its bytes changed") from None
        if length & _COMPRESSED:
            import zstandard

            try:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=length & ~_COMPRESSED)
            except zstandard.ZstdError as error:
                raise ValueError(f"it does not decompress: {error}") from None
        if len(data) != length & ~_COMPRESSED:
            raise ValueError(f"it holds {len(data)} bytes instead of {length & ~_COMPRESSED}")
        return data

    def is_whole(self, file: memoryview, at: int, plain_at: int) -> bool:
        """Whether an intact frame begins at `at` of the file, for plain offset `plain_at`."""
        behind = at + _FRAME.size
        if behind > len(file):
            return False
        stored, length = _FRAME.unpack_from(file, at)
        if behind + stored > len(file):
            return False
        try:
            self.open(file[behind : behind + stored], plain_at, length)
        except ValueError:
            return False
        return True


class FileCipher:
    """Encrypts and compresses a store's files; without a key it does not encrypt.

    `key`: the store's key, 32 bytes. `cipher`: for newly written files, "chacha" or "aes"; files of either
    cipher can be read.
    """

    def __init__(self, key: bytes = b"", cipher: str = "chacha") -> None:
        self._key = key
        self._cipher = CIPHERS[cipher]

    @property
    def encrypts(self) -> bool:
        """Whether the store has a key."""
        return bool(self._key)

    def begin(self, path: Path) -> tuple[bytes, EnvelopeFrames]:
        """Head and frame encoder of a new file."""
        salt = os.urandom(16)
        cipher = self._cipher if self._key else 0
        return HEAD.pack(MAGIC, 1, cipher, salt), EnvelopeFrames(self._aead(cipher, salt), path)

    def resume(self, head: bytes | memoryview, path: Path) -> EnvelopeFrames:
        """The frame codec of an existing file. Raises StoreError without its key, StoreCorruptError for an
        unknown format."""
        magic, version, cipher, salt = HEAD.unpack_from(head)
        if magic != MAGIC or version != 1 or cipher not in (0, *CIPHERS.values()):
            raise StoreCorruptError(f"it has an unknown format ({version}, {cipher})", path=str(path))
        if cipher and not self._key:
            raise StoreError(
                "it is encrypted; name the key (`jetstream { key: ... }`) it was written with", path=str(path)
            )
        return EnvelopeFrames(self._aead(cipher, salt), path)

    def _aead(self, cipher: int, salt: bytes) -> Any:
        if cipher == 0:
            return None
        import hashlib

        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

        key = hashlib.blake2b(salt, key=self._key, digest_size=32, person=b"penstock file").digest()
        return AESGCM(key) if cipher == CIPHERS["aes"] else ChaCha20Poly1305(key)

    def encode(self, data: bytes | bytearray | memoryview, path: Path, *, compress: bool = False) -> bytes:
        """Encodes a whole file."""
        head, frames = self.begin(path)
        parts = [head]
        with memoryview(data) as view:
            for at in range(0, len(view), FRAME_BYTES):
                parts.append(frames.seal(view[at : at + FRAME_BYTES], at, compress=compress))
        return b"".join(parts)

    def seal(self, data: bytes | bytearray, path: Path) -> bytes | bytearray:
        """Encodes a small file for writing; returns the same object when the store has no key."""
        return self.encode(data, path) if self._key else data

    def unseal(self, data: bytes, path: Path) -> bytes:
        """Decodes a small file. Raises StoreCorruptError, StoreError without the key."""
        if not is_enveloped(data):
            return data
        decoded = self.decode(memoryview(data), path)
        if decoded.why is not None:
            raise StoreCorruptError(decoded.why, path=str(path), offset=decoded.file_end)
        return bytes(decoded.data)

    def decode(self, file: memoryview, path: Path) -> Decoded:
        """Decodes all frames of a file, with zeros for bad frames. Raises what resume() raises."""
        out = Decoded(bytearray(), 0, 0, None)
        if len(file) < HEAD.size:
            out.why = "the bytes end inside the head" if len(file) else None
            return out
        frames = self.resume(file[: HEAD.size], path)
        at = out.file_end = HEAD.size
        while at < len(file):
            behind = at + _FRAME.size
            stored, length = _FRAME.unpack_from(file, at) if behind <= len(file) else (len(file), 0)
            if behind + stored > len(file):
                out.why = out.why or "the bytes end inside the frame"
                break
            try:
                out.data += frames.open(file[behind : behind + stored], len(out.data), length)
            except ValueError as error:
                out.why = out.why or str(error)
                if length & ~_COMPRESSED > FRAME_BYTES:
                    break  # larger than any frame we write: the length itself is damaged
                out.data += bytes(length & ~_COMPRESSED)
            at = behind + stored
            if out.why is None:
                out.good, out.file_end = len(out.data), at
        return out


class Decoded(Struct):
    """A decoded file. `data`: the plain bytes. `good`: plain bytes before the first bad frame. `file_end`:
    offset in the file at which the good frames end. `why`: the fault of the first bad frame, or None."""

    data: bytearray
    good: int
    file_end: int
    why: str | None


class AppendedFile:
    """An encrypted file that grows by one frame per write. `size`: bytes in the file; `length`: plain bytes
    in them.

    Invariant: the next append continues a partially written frame with the same bytes.
    """

    def __init__(
        self, files: OpenFiles, path: Path, *, size: int = 0, length: int = 0, head: bytes = b""
    ) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._length = length
        self._pending = b""
        self._covers = 0
        if head:
            self._frames = files.file_cipher.resume(head, path)
        else:
            self._pending, self._frames = files.file_cipher.begin(path)

    def append(self, data: memoryview | bytes) -> int:
        """Appends plain bytes and returns how many of them are in the file now: those of the frame begun
        earlier, if any, otherwise all. After an error, the next call must start with the same bytes.

        Raises StoreWriteError.
        """
        if not self._covers:
            self._pending += self._frames.seal(data, self._length)
            self._covers = len(data)
        while self._pending:
            count = self._files.write(self._path, self._pending, self._size)
            self._size += count
            self._pending = self._pending[count:]
        covered, self._covers = self._covers, 0
        self._length += covered
        return covered
