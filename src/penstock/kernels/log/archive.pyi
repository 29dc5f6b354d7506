"""Stream archives: the entries of messages, and S2 blocks with their checksums."""

from penstock.kernels.log.stream_log import StreamLog

def pack_messages(log: StreamLog, seq: int, last_seq: int, enough: int) -> tuple[bytes, int]:
    """Entries of the live messages seq..last_seq, until they have `enough` bytes.

    Returns them and the sequence to go on with, 0 when there are no more.
    """

ENTRY_CUT: int
"""The next entry is not there as a whole."""
ENTRY_MORE: int
"""It took as many entries as it should."""
ENTRY_LAST: int
"""It took the entry that ends the archive."""

def unpack_messages(
    log: StreamLog, data: bytes | bytearray, at: int, size_max: int, most: int
) -> tuple[int, int, int]:
    """Appends the messages of the entries that data[at:] holds as a whole, `most` of them.

    size_max: bytes of header and payload. Returns how far it got, how many it took and what it stopped at.
    Raises ValueError with what is wrong; the messages before stay.
    """

def checksum(data: bytes) -> int:
    """The masked CRC-32C that a frame carries."""

def encode_block(data: bytes) -> bytes:
    """A block of 1 to 65536 bytes, readable as Snappy too. Raises ValueError for any other size."""

def decode_block(data: bytes, size_max: int) -> bytes:
    """What a block was made of. Raises ValueError where it is none, or one of more than size_max bytes."""
