"""The framing between servers for replicated groups.

    frame   length u32 | kind u8 | XXH64 u64 of kind and payload | payload       (integers little-endian)

`length` is that of the payload. TCP's checksum misses about one damaged segment in 65536; the log's own
checksum is made only after a frame was taken apart, so each frame has one.

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


class ReplicationFrame(NamedTuple):
    """A received frame."""

    kind: ReplicationKind
    payload: bytes


_KINDS = frozenset(ReplicationKind)


def frame_bytes(kind: ReplicationKind, payload: bytes) -> bytes:
    """A frame. The payload has at most PAYLOAD_BYTES_MAX bytes."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, f"a frame of {len(payload)} bytes"
    return _HEAD.pack(len(payload), kind, _digest(kind, payload)) + payload


def _digest(kind: int, payload: bytes) -> int:
    return xxh64_digest(payload, kind)


class ReplicationParser:
    """Reads frames from a stream of bytes. payload_max: of one frame; `widen` sets another."""

    def __init__(self, payload_max: int = GREETING_BYTES_MAX) -> None:
        self._payload_max = payload_max
        self._data = bytearray()
        self._at = 0
        self._error = ""

    def widen(self) -> None:
        """The peer is known: frames may have their full size."""
        self._payload_max = PAYLOAD_BYTES_MAX

    def feed(self, data: bytes | memoryview) -> None:
        """Takes bytes of the stream."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def read(self) -> ReplicationFrame | None:
        """The next frame; None = more bytes are needed. Raises ProtocolError, and then again each time."""
        if self._error:
            raise ProtocolError(self._error)
        if len(self._data) - self._at < _HEAD.size:
            return None
        length, kind, digest = _HEAD.unpack_from(self._data, self._at)
        if kind not in _KINDS:
            self._fail(f"a replication frame of kind {kind}, which this version does not know")
        if length > self._payload_max:
            self._fail(f"a replication frame of {length} bytes; the limit is {self._payload_max}")
        begin = self._at + _HEAD.size
        if len(self._data) < begin + length:
            return None
        with memoryview(self._data) as view:
            payload = bytes(view[begin : begin + length])
        if digest != _digest(kind, payload):
            self._fail(f"a replication frame of {length} bytes has a wrong checksum")
        self._at = begin + length
        return ReplicationFrame(ReplicationKind(kind), payload)

    def _fail(self, text: str) -> None:
        self._error = text
        self._data.clear()
        self._at = 0
        raise ProtocolError(text)
