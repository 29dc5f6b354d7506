"""Python interface of the records of message blocks; records.pxd describes the layout."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

# kind (0 message, 1 removed, 2 floor, 3 replaces, 4 batch), sequence, timestamp in ns, subject, header block,
# payload
RecordTuple: TypeAlias = tuple[int, int, int, bytes, bytes, bytes]

def xxh64_digest(data: Buffer, seed: int = 0) -> int:
    """XXH64 of `data`."""

class StreamedHash:
    """XXH64 (seed 0) of bytes that come in parts."""

    def update(self, data: Buffer) -> None:
        """Takes more bytes. Releases the GIL meanwhile."""

    def digest(self) -> int:
        """The hash of all bytes so far; more may follow."""

def size_of(subject_len: int, header_len: int, payload_len: int) -> int:
    """Bytes of the record of such a message; 0 when it is too large for one."""

def encode(seq: int, ts: int, subject: bytes, header: bytes, payload: bytes, kind: int = 0) -> bytes:
    """One record. `ts` is ns since epoch; an empty `header` takes no room.

    Raises ValueError when it does not fit: a sequence of 2**48 or more, a subject above 65535 bytes,
    2 GiB or more in all.
    """

class Corrupt:
    """The byte offset at which a reader stopped, and the reason."""

    offset: int
    why: str
    def __init__(self, offset: int, why: str) -> None: ...

class RecordReader:
    """Reads records one after the other, each checked against its hash."""

    offset: int
    def __init__(self, data: Buffer, offset: int = 0) -> None: ...
    def next(self) -> RecordTuple | Corrupt | None:
        """The next record; None at the end; Corrupt for invalid bytes (the reader stays there)."""
