class BlockReads:
    """Records that a pump has read ahead. For kernels; Python looks at what it costs."""

    fetched: int
    """Records read without their blocks so far, those that are still on their way not counted."""

    def memory(self) -> int:
        """Bytes held."""
