"""What an S2 block means, said plainly."""

from __future__ import annotations

CASTAGNOLI = 0x82F63B78


def decode(block: bytes) -> bytes:
    """What a well-formed block was made of."""
    size, at, shift = 0, 0, 0
    while True:
        size |= (block[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if block[at - 1] < 0x80:
            break
    out, offset = bytearray(), 0
    while at < len(block):
        tag, value = block[at] & 3, block[at] >> 2
        at += 1
        if tag == 0:
            extra = max(0, value - 59)
            length = (int.from_bytes(block[at : at + extra], "little") if extra else value) + 1
            at += extra
            out += block[at : at + length]
            at += length
            continue
        if tag == 1:
            length, low = value & 7, block[at]
            near = (value >> 3) << 8 | low
            at += 1
            if near:
                offset = near
            elif length >= 5:
                extra = length - 4
                length = int.from_bytes(block[at : at + extra], "little") + (4, 256, 65536)[extra - 1]
                at += extra
            length += 4
        else:
            extra = 2 if tag == 2 else 4
            offset, length = int.from_bytes(block[at : at + extra], "little"), value + 1
            at += extra
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def checksum(data: bytes) -> int:
    """CRC-32C, masked as frames have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CASTAGNOLI if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
