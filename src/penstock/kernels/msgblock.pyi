"""One block of a stream as the store sees it."""

from penstock.kernels.records import Buffer

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

    def export_index(self) -> bytes:
        """What from_index() needs; the block must be closed and resident."""

    def tail_hash(self) -> int:
        """The hash of its last record, 0 when it has none."""

    @staticmethod
    def from_index(index: bytes, number: int, size: int, tail_hash: int) -> MessageBlock:
        """The closed block an index tells of. `size` and `tail_hash` (the last 8 bytes, little endian) come
        from the block's file. Raises ValueError when the index is damaged or speaks of other bytes.
        """
