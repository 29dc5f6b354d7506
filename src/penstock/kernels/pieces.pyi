class Pieces:
    """Records that a pump has read ahead. For kernels; Python looks at what it costs."""

    fetched: int
    """Records read without their blocks so far."""

    def memory(self) -> int:
        """Bytes held."""

def read_pieces(fd: int, pieces: bytes) -> bytes:
    """Pieces of a file, one behind the other; zeros where it ends too early.

    pieces: an offset and a size each, 32 bits, as `struct` packs "=2I". Raises OSError.
    """
