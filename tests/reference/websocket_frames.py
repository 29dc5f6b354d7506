"""Plain WebSocket frames, frame by frame (RFC 6455, section 5.2)."""

from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """mask: of four bytes, b"" = none. wide: bytes of the length, where it is not the shortest."""

    opcode: int
    payload: bytes = b""
    fin: bool = True
    rsv: int = 0
    mask: bytes = b""
    wide: int = 0

    def head(self) -> bytes:
        size = len(self.payload)
        wide = self.wide or (0 if size < 126 else 2 if size < 1 << 16 else 8)
        short = {0: size, 2: 126, 8: 127}[wide]
        first = bytes([self.fin << 7 | self.rsv << 4 | self.opcode, bool(self.mask) << 7 | short])
        return first + (size.to_bytes(wide, "big") if wide else b"") + self.mask

    def encode(self) -> bytes:
        key = self.mask or bytes(4)
        return self.head() + bytes(byte ^ key[at % 4] for at, byte in enumerate(self.payload))

    @property
    def is_shortest(self) -> bool:
        size = len(self.payload)
        return self.wide in (0, 0 if size < 126 else 2 if size < 1 << 16 else 8)


def split(frames: list[Frame], masked: bool) -> tuple[bytes, bytes]:
    """(the payloads of plain frames, the bytes of all others)."""
    plain, others, in_message = b"", b"", False
    for frame in frames:
        whole = frame.opcode == 2 and frame.fin and not frame.rsv and frame.is_shortest
        if whole and bool(frame.mask) == masked and not in_message:
            plain += frame.payload
        else:
            others += frame.encode()
            if frame.opcode < 8:
                in_message = not frame.fin
    return plain, others
