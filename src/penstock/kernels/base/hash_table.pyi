"""The kernels' hash table, for tests."""

class NumberMap:
    """Maps numbers below 2**64 to nonzero numbers below 2**64."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int) -> int: ...
    def __setitem__(self, key: int, value: int) -> None: ...
    def __delitem__(self, key: int) -> None: ...
    def add(self, key: int, value: int) -> None:
        """Adds another value for a key."""

    def drop(self, key: int, value: int) -> None:
        """Removes one value of a key. Raises KeyError when it is not there."""

    def all(self, key: int) -> list[int]:
        """The values of a key."""

    def items(self) -> list[tuple[int, int]]:
        """[(key, value)], in no order."""

    def reserve(self, count: int) -> None:
        """Makes room for that many entries."""

    @property
    def capacity(self) -> int: ...
