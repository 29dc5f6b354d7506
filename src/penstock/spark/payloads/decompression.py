"""Decompresses payloads, each on its own: gzip, Zstandard, LZ4 frames, S2 and Snappy streams.

Invariant: one element per payload, in order. A payload that is not compressed as said, is cut off, has bytes
left over, or is larger than the limit when decompressed stays as it is and is reported.

pyarrow has Zstandard and LZ4, Python has gzip, and penstock's backups have S2, so nothing else is installed.
Rejected: a limit on the sum of a batch (one large payload would fail its neighbours).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa

from penstock.errors import ConfigError, ProtocolError

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00": "s2",
}
"""First bytes of each format. No JSON text begins like this: 28 is a bracket, but B5 then is no UTF-8."""
_MAGIC_BYTES = 4
_GZIP_WRAPPER = 31  # zlib's code for a gzip header with the largest window

Plain = tuple[pa.BinaryArray, list[int]]


class Decompressor:
    """Decompresses binary arrays.

    name: a value of option `compression` but none. bytes_max: largest payload after decompression.
    """

    def __init__(self, name: str, bytes_max: int) -> None:
        self.name = name
        self.bytes_max = bytes_max
        if name == "s2":
            _s2_reader()

    def __call__(self, raw: pa.BinaryArray) -> Plain:
        """Return the plain payloads, and the indices of those that can't be decompressed.

        Raises ConfigError if the batch has more than an array of binaries can hold.
        """
        plain, spoiled, total = [], list[int](), 0
        for i, payload in enumerate(raw.to_pylist()):
            name = self.name if self.name != "auto" else detect(payload)
            content = payload
            if name is not None and payload:
                try:
                    content = _READERS[name](payload, self.bytes_max)
                except (ValueError, OSError, zlib.error, ProtocolError, pa.ArrowException):
                    spoiled.append(i)
            total += len(content)
            plain.append(content)
        if total >= 1 << 31:
            raise ConfigError(
                f"{len(plain)} payloads have {total} bytes when decompressed, too many for a batch: lower "
                "the options 'batchRows' and 'batchBytes'"
            )
        return pa.array(plain, pa.binary()), spoiled


def detect(payload: bytes) -> str | None:
    """The format that a payload's first bytes tell; None for none."""
    head = payload[:_MAGIC_BYTES]
    return MAGIC.get(head) or MAGIC.get(head[:2])


def _gunzip(payload: bytes, bytes_max: int) -> bytes:
    parts, left, room = [], payload, bytes_max + 1
    while left:  # a gzip file may have several members
        reader = zlib.decompressobj(_GZIP_WRAPPER)
        part = reader.decompress(left, room)
        room -= len(part)
        if room <= 0:
            raise ValueError(f"more than {bytes_max} bytes")
        if not reader.eof:
            raise ValueError("cut off")
        parts.append(part)
        left = reader.unused_data
    return b"".join(parts)


def _framed(codec: str) -> Callable[[bytes, int], bytes]:
    def read(payload: bytes, bytes_max: int) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(payload), codec) as stream:
            content: bytes = stream.read(bytes_max + 1)
        if len(content) > bytes_max:
            raise ValueError(f"more than {bytes_max} bytes")
        return content

    return read


def _unpack_s2(payload: bytes, bytes_max: int) -> bytes:
    reader = _s2_reader()()
    reader.feed(payload)
    parts, room = [], bytes_max
    while (part := reader.read()) is not None:
        room -= len(part)
        if room < 0:
            raise ValueError(f"more than {bytes_max} bytes")
        parts.append(part)
    if not reader.is_empty:
        raise ValueError("cut off")
    return b"".join(parts)


def _s2_reader() -> type:
    try:
        from penstock.protocol.s2_stream import S2Reader
    except ImportError:
        raise ConfigError(
            "option 'compression' is s2, whose compiled module is not in the archive for executors: install "
            "penstock-nats on them"
        ) from None
    return S2Reader


_READERS: dict[str, Callable[[bytes, int], bytes]] = {
    "gzip": _gunzip,
    "zstd": _framed("zstd"),
    "lz4": _framed("lz4"),
    "s2": _unpack_s2,
}
