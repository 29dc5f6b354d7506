"""Blocks of the S2 format and the checksum of its frames; the frames are in protocol/s2_stream.py."""

def checksum(data: bytes) -> int:
    """The masked CRC-32C that a frame carries."""

def encode_block(data: bytes) -> bytes:
    """A block of 1 to 65536 bytes, readable as Snappy too. Raises ValueError for any other size."""

def decode_block(data: bytes, size_max: int) -> bytes:
    """What a block was made of. Raises ValueError where it is none, or one of more than size_max bytes."""
