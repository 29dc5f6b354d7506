"""Stream archives: the entries of messages, and S2 blocks with their checksums."""

from penstock.kernels.log.stream_log import StreamLog

def pack_messages(log: StreamLog, seq: int, last_seq: int, enough: int) -> tuple[bytes, int]:
    """Packs entries of the live messages seq..last_seq, until they have `enough` bytes.

    Returns them and the sequence at which to continue, 0 when there are no more.
    """

ENTRY_CUT: int
"""The next entry is incomplete."""
ENTRY_MORE: int
"""It processed the requested number of entries."""
ENTRY_LAST: int
"""It processed the entry that ends the archive."""

def unpack_messages(
    log: StreamLog, data: bytes | bytearray, at: int, size_max: int, most: int
) -> tuple[int, int, int]:
    """Appends the messages of the complete entries in data[at:], up to `most` of them.

    size_max: bytes of header and payload. Returns the offset it reached, the number of messages and why it
    stopped. Raises ValueError for an invalid entry; earlier messages stay.
    """

def checksum(data: bytes) -> int:
    """The masked CRC-32C that a frame carries."""

def encode_block(data: bytes) -> bytes:
    """A block of 1 to 65536 bytes, readable as Snappy too. Raises ValueError for any other size."""

def decode_block(data: bytes, size_max: int) -> bytes:
    """Decompresses a block. Raises ValueError for an invalid one, or one of more than size_max bytes."""
