"""Memory in whole cache lines."""

def lines_in_use() -> int:
    """Pieces of up to four lines that are taken and not given back."""

def chunks_in_use() -> int:
    """Chunks of 64 KiB that those lie in."""
