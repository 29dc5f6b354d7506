"""One block of a stream as the store sees it."""

from penstock.kernels.log.records import Buffer

class MessageBlock:
    """Bytes and entries of one block. Supports the buffer protocol: memoryview(block) has its bytes."""

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

        Without `copy` the block refers to `data`. Returns None, or (offset, why) of the first bad record
        that no good one follows; the block has all records before it, except those in skipped_offsets.
        """

    @property
    def skipped_offsets(self) -> list[int]:
        """Offsets of bad records between good ones."""

    @property
    def torn_batches(self) -> list[tuple[int, int, list[int]]]:
        """(first, last, sequences of the records with holes) of scanned batches of which a power loss kept
        bytes back."""

    def release_borrowed(self) -> None:
        """Releases the bytes that scan() got without `copy`; the log loads them again."""

    def export_index(self) -> bytearray:
        """What from_index() needs of a closed and resident block, once tie_index() has completed it.

        The index omits removed messages. Export it only when the tombstones of their removals are written:
        otherwise a crash could remove messages without a stored tombstone or successor.
        """

    @staticmethod
    def tie_index(index: bytearray, file_size: int, file_tail: int) -> None:
        """Completes an exported index in place, for a file of that size and with those last 8 bytes (little
        endian), which identify the file. It may be tied to another file later."""

    @staticmethod
    def from_index(index: bytes, number: int, file_size: int, file_tail: int) -> MessageBlock:
        """The closed block that an index describes, given the size and last 8 bytes of its file.
        Raises ValueError when the index is damaged or belongs to another file."""
