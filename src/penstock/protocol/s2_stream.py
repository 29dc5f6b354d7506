"""The S2 stream format: chunks of compressed or plain bytes, each with a checksum.

The writer uses only what readers of S2 and of Snappy frames both support, except for the identifier. The
reader supports all of S2 except blocks with a dictionary. `kernels/log/archive.pyx` has the block codec and
the checksum.

    chunk = type u8 | length u24 | content by type        (little endian)
    0x00: checksum u32 | block     0x01: checksum u32 | plain bytes     0xff: identifier
    0x80..0xfe: skippable          anything else: an error

Rejected: a Snappy package. None reads S2's repeat codes, which the official server writes.
"""

from __future__ import annotations

from penstock.errors import ProtocolError
from penstock.kernels.log.archive import checksum, decode_block, encode_block

IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
IDENTIFIERS = (IDENTIFIER, b"\xff\x06\x00\x00sNaPpY")
FRAGMENT_BYTES = 64 * 1024  # plain bytes in a written chunk
BLOCK_MAX = 4 * 1024 * 1024  # maximum plain bytes in a chunk, from the format
CHUNK_MAX = BLOCK_MAX + BLOCK_MAX // 6 + 64

_HEAD = 4
_COMPRESSED, _PLAIN, _IDENTIFIER, _FIRST_SKIPPED = 0x00, 0x01, 0xFF, 0x80


def encode_chunks(data: bytes, *, compress: bool = True) -> bytes:
    """The chunks of `data`, without the stream identifier. compress: False writes plain chunks only."""
    pieces = range(0, len(data), FRAGMENT_BYTES)
    return b"".join(_chunk(data[at : at + FRAGMENT_BYTES], compress) for at in pieces)


def _chunk(data: bytes, compress: bool) -> bytes:
    kind, block = _PLAIN, data
    if compress:
        block = encode_block(data)
        kind = _COMPRESSED
        if len(block) > len(data) - len(data) // 32:
            kind, block = _PLAIN, data
    body = checksum(data).to_bytes(4, "little") + block
    return bytes((kind,)) + len(body).to_bytes(3, "little") + body


class S2Reader:
    """Decodes a stream, fed in pieces of any size, into plain bytes, one chunk at a time.

    Buffers at most CHUNK_MAX bytes of an incomplete chunk, plus the last `feed`.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False
        self._skipped = 0  # remaining bytes of a skipped chunk

    @property
    def is_empty(self) -> bool:
        """Whether no incomplete chunk is buffered."""
        return not self._buffer and not self._skipped

    @property
    def size(self) -> int:
        """Number of buffered bytes."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Appends input."""
        left_out = min(self._skipped, len(data))
        self._skipped -= left_out
        self._buffer += data[left_out:] if left_out else data

    def read(self) -> bytes | None:
        """The plain bytes of the next complete chunk, b"" for a chunk without data; None = feed more input.

        Raises ProtocolError for a malformed stream or a wrong checksum.
        """
        buffer = self._buffer
        if len(buffer) < _HEAD:
            return None
        kind, length = buffer[0], int.from_bytes(buffer[1:_HEAD], "little")
        if not self._begun and (kind != _IDENTIFIER or length != len(IDENTIFIER) - _HEAD):
            raise ProtocolError("s2: a stream begins with an identifier")
        if kind < _FIRST_SKIPPED and length > CHUNK_MAX:
            raise ProtocolError(f"s2: a chunk of {length} bytes is too large")
        if _FIRST_SKIPPED <= kind < _IDENTIFIER:
            there = min(len(buffer), _HEAD + length)
            self._skipped = _HEAD + length - there
            del buffer[:there]
            return b""
        if kind == _IDENTIFIER and length != len(IDENTIFIER) - _HEAD:
            raise ProtocolError("s2: unknown identifier")
        if len(buffer) < _HEAD + length:
            return None
        chunk = bytes(buffer[: _HEAD + length])
        del buffer[: _HEAD + length]
        return self._plain(kind, chunk)

    def _plain(self, kind: int, chunk: bytes) -> bytes:
        if kind == _IDENTIFIER:
            if chunk not in IDENTIFIERS:
                raise ProtocolError("s2: unknown identifier")
            self._begun = True
            return b""
        if kind not in (_COMPRESSED, _PLAIN) or len(chunk) < _HEAD + 4:
            raise ProtocolError(f"s2: a chunk of type {kind:#04x} and {len(chunk)} bytes is not readable")
        plain = chunk[_HEAD + 4 :]
        if kind == _COMPRESSED:
            try:
                plain = decode_block(plain, BLOCK_MAX)
            except ValueError as error:
                raise ProtocolError(str(error)) from None
        if checksum(plain) != int.from_bytes(chunk[_HEAD : _HEAD + 4], "little"):
            raise ProtocolError("s2: corrupt input, checksum mismatch")
        return plain
