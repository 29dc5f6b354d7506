"""The kernels' hash table: what tests see of it."""

class NumberMap:
    """From numbers below 2**64 to numbers from 1 up to there."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int) -> int: ...
    def __setitem__(self, key: int, value: int) -> None: ...
    def __delitem__(self, key: int) -> None: ...
    def add(self, key: int, value: int) -> None:
        """Another value for a key."""

    def drop(self, key: int, value: int) -> None:
        """Takes out one value of a key. Raises KeyError when it is not there."""

    def all(self, key: int) -> list[int]:
        """The values of a key."""

    def items(self) -> list[tuple[int, int]]:
        """[(key, value)], in no order."""

    def reserve(self, count: int) -> None:
        """Room for so many entries."""

    @property
    def capacity(self) -> int: ...
