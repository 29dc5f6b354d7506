"""Memory of the kernels: what tests see of it."""

def capacity_after(capacity: int, count: int, width: int, first: int) -> int:
    """The capacity of an array that grows for `count` items of `width` bytes; 0: no memory is as large."""

class NumberQueue:
    """Numbers below 2**64, first in, first out; the kernels' ring for Python."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> int: ...
    def push(self, number: int) -> None:
        """Adds one behind the others."""

    def pop(self) -> int:
        """Takes the oldest one. Raises IndexError when there is none."""

    def clear(self) -> None: ...
    @property
    def capacity(self) -> int: ...

def lines_in_use() -> int:
    """Pieces of up to four lines that are taken and not given back."""

def chunks_in_use() -> int:
    """Chunks of 64 KiB that those lie in."""
