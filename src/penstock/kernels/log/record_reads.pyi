"""Single records of closed blocks, read ahead by a thread."""

class Reading:
    """Reads pieces of files into memory.

    files: names, and the pieces wanted of each: an offset and a size, 32 bits, as `struct` packs "=2I".
    Raises OSError for a file that can't be opened.
    """

    def __init__(self, files: list[tuple[bytes, bytes]]) -> None: ...
    def take(self) -> bytes:
        """All pieces, one behind the other, zeros where a file ends too early. Reads what isn't read yet.
        Raises OSError for what can't be read, whichever piece it was."""

class BlockReads:
    """Records that a pump has read ahead. For kernels; Python looks at what it costs."""

    fetched: int
    """Records read without their blocks so far, without those in flight."""

    def memory(self) -> int:
        """Bytes held."""
