"""The messages of a stream as entries of a stream archive, and back into a log."""

from penstock.kernels.streamlog import StreamLog

def pack_messages(log: StreamLog, seq: int, last_seq: int, enough: int) -> tuple[bytes, int]:
    """Entries of the live messages seq..last_seq, until they have `enough` bytes.

    Returns them and the sequence to go on with, 0 when there are no more.
    """

def unpack_messages(log: StreamLog, data: bytes, at: int, size_max: int) -> tuple[int, bool]:
    """Appends the messages of the entries that data[at:] holds as a whole.

    size_max: bytes of header and payload. Returns how far it got and whether the entry was there that ends
    the archive. Raises ValueError with what is wrong; the messages before stay.
    """
