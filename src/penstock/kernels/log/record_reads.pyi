"""Prefetches single records of closed blocks with a thread."""

class Reading:
    """Reads ranges of files into memory.

    files: names, and the ranges of each: an offset and a size, 32 bits, as `struct` packs "=2I".
    Raises OSError for a file that can't be opened.
    """

    def __init__(self, files: list[tuple[bytes, bytes]]) -> None: ...
    def take(self) -> bytes:
        """All ranges, concatenated, with zeros where a file ends early. Reads the ranges that aren't read
        yet. Raises OSError when any range can't be read."""

class BlockReads:
    """Records that a pump has prefetched. For kernels; Python reads only its counters."""

    fetched: int
    """Records read without their blocks so far, without those in flight."""

    def memory(self) -> int:
        """Allocated bytes."""
