"""The framing between servers for replicated groups.

    frame   length u32 | kind u8 | XXH64 u64 of kind and payload | payload       (integers little-endian)

`length` is that of the payload. TCP's checksum misses about one damaged segment in 65536; the log's own
checksum is made only after a frame was taken apart, so each frame has one.

Frames of consensus can have megabytes, and all that replicates waits while they are copied. So a sender
writes head and payload without joining them, and the parser collects a payload in memory that it uses again
for the next one.

Invariant: a parser that found an error reads nothing more.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.kernels.log.records import xxh64_digest
from penstock.replication.group_port import PROPOSAL_BYTES_MAX

_HEAD = struct.Struct("<IBQ")
PAYLOAD_BYTES_MAX = PROPOSAL_BYTES_MAX + (1 << 20)
"""One command of the largest size, and what is around it. Frames with several are far smaller."""
GREETING_BYTES_MAX = 64 * 1024
"""Before the greeting a peer may send frames of so many bytes only."""


class ReplicationKind(IntEnum):
    """What a frame has. GREETING: the first of each side. REFUSAL: why the sender closes. MESSAGES: of
    consensus. MAIL: of owners."""

    GREETING = 1
    REFUSAL = 2
    MESSAGES = 3
    MAIL = 4


BUFFER_BYTES_MAX = 4 << 20
"""Memory that a parser keeps for the next payload."""


class ReplicationFrame(NamedTuple):
    """A received frame. payload: valid until the parser is used again."""

    kind: ReplicationKind
    payload: memoryview


_KINDS = frozenset(ReplicationKind)


def frame_head(kind: ReplicationKind, payload: bytes) -> bytes:
    """What precedes a payload in its frame. The payload has at most PAYLOAD_BYTES_MAX bytes."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, f"a frame of {len(payload)} bytes"
    return _HEAD.pack(len(payload), kind, xxh64_digest(payload, kind))


def frame_bytes(kind: ReplicationKind, payload: bytes) -> bytes:
    """A whole frame."""
    return frame_head(kind, payload) + payload


class ReplicationParser:
    """Reads frames from a stream of bytes. payload_max: of one frame; `widen` sets another."""

    def __init__(self, payload_max: int = GREETING_BYTES_MAX) -> None:
        self._payload_max = payload_max
        self._input = memoryview(b"")
        self._at = 0  # in it
        self._head = b""
        self._frame: tuple[ReplicationKind, int, int] | None = None  # kind, length and digest of the payload
        self._buffer = bytearray()
        self._filled = 0  # of the payload
        self._error = ""

    def widen(self) -> None:
        """The peer is known: frames may have their full size."""
        self._payload_max = PAYLOAD_BYTES_MAX

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes of the stream, which must stay as they are until read() returns None."""
        if self._at < len(self._input):
            data = bytes(self._input[self._at :]) + data
        self._input, self._at = memoryview(data), 0

    def read(self) -> ReplicationFrame | None:
        """The next frame; None = more bytes are needed. Raises ProtocolError, and then again each time."""
        if self._error:
            raise ProtocolError(self._error)
        if self._frame is None and not self._read_head():
            return None
        assert self._frame is not None
        kind, length, digest = self._frame
        payload = self._payload_of(length)
        if payload is None:
            return None
        if digest != xxh64_digest(payload, kind):
            self._fail(f"a replication frame of {length} bytes has a wrong checksum")
        self._frame, self._head = None, b""
        return ReplicationFrame(kind, payload)

    def _read_head(self) -> bool:
        """Completes the head of a frame. Returns False when bytes are missing."""
        self._head += bytes(self._take(_HEAD.size - len(self._head)))
        if len(self._head) < _HEAD.size:
            return False
        length, kind, digest = _HEAD.unpack(self._head)
        if kind not in _KINDS:
            self._fail(f"a replication frame of kind {kind}, which this version does not know")
        if length > self._payload_max:
            self._fail(f"a replication frame of {length} bytes; the limit is {self._payload_max}")
        self._frame, self._filled = (ReplicationKind(kind), length, digest), 0
        return True

    def _payload_of(self, length: int) -> memoryview | None:
        """The payload, from the input itself when that has all of it; None while bytes are missing."""
        if not self._filled and len(self._input) - self._at >= length:
            return self._take(length)
        if not self._filled and not BUFFER_BYTES_MAX >= len(self._buffer) >= length:
            self._buffer = bytearray(length)
        part = self._take(length - self._filled)
        self._buffer[self._filled : self._filled + len(part)] = part
        self._filled += len(part)
        return memoryview(self._buffer)[:length] if self._filled == length else None

    def _take(self, count: int) -> memoryview:
        """Up to so many bytes of the input."""
        taken = self._input[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def _fail(self, text: str) -> None:
        self._error = text
        self._input, self._at, self._buffer = memoryview(b""), 0, bytearray()
        raise ProtocolError(text)
