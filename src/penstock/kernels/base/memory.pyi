"""Memory of the kernels, for tests."""

def capacity_after(capacity: int, count: int, width: int, first: int) -> int:
    """The capacity of an array that grows for `count` items of `width` bytes; 0: its size would overflow."""

class NumberQueue:
    """Numbers below 2**64, first in, first out; the kernels' ring for Python."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> int: ...
    def push(self, number: int) -> None:
        """Appends a number."""

    def pop(self) -> int:
        """Removes and returns the oldest number. Raises IndexError when the queue is empty."""

    def clear(self) -> None: ...
    @property
    def capacity(self) -> int: ...

def blocks_in_use() -> int:
    """Allocated blocks of up to four lines."""

def chunks_in_use() -> int:
    """Chunks of 64 KiB that contain those blocks."""
