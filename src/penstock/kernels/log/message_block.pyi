"""One block of a stream as the store sees it."""

from penstock.kernels.log.records import Buffer

class MessageBlock:
    """Bytes and entries of one block. Supports the buffer protocol: memoryview(block) is what it holds."""

    number: int
    first_seq: int
    last_seq: int
    live: int
    live_bytes: int
    first_ts: int
    last_ts: int
    size: int
    written: int
    closed: bool
    replaces: bool
    floor: int
    last_at_least: int
    def __init__(self, number: int, first_seq: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def resident(self) -> bool:
        """Are its bytes in memory?"""

    def scan(self, data: Buffer, copy: bool = True) -> tuple[int, str] | None:
        """Fills a new block from a file's bytes, each record checked against its hash.

        Without `copy` the block keeps using `data`. Returns None, or (offset, why) of the first bad record
        that no good one follows; what is before it is in the block, but for passed_over.
        """

    @property
    def passed_over(self) -> list[int]:
        """Offsets of bad records between good ones."""

    def let_go(self) -> None:
        """Lets the bytes scan() was given without `copy` go; the log loads them again."""

    def export_index(self, file_size: int = 0, file_tail: int = 0) -> bytes:
        """What from_index() needs; the block must be closed and resident. It is tied to the file by its size
        and its last 8 bytes (little endian).

        It leaves out messages that are removed. Take it only while the notes of their removals are written:
        a crash would otherwise remove messages for which no note and no successor was stored.
        """

    @staticmethod
    def tie_index(index: bytes, file_size: int, file_tail: int) -> bytes:
        """The same index for a file of that size and with those last 8 bytes."""

    @staticmethod
    def from_index(index: bytes, number: int, file_size: int, file_tail: int) -> MessageBlock:
        """The closed block an index tells of; size and last 8 bytes are those of its file.
        Raises ValueError when the index is damaged or speaks of other bytes."""
