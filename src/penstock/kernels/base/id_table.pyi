"""The kernels' hash table of ids, for tests."""

class IdSet:
    """Ids, numbered from 0 on, each with a hash of 32 bits."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add(self, h: int) -> int:
        """Adds an entry with this hash; returns its id."""

    def drop(self, id: int) -> None:
        """Removes an entry. Raises KeyError when it is not there."""

    def shrink(self) -> None:
        """Frees cells if the table has far more than it needs."""

    def all(self, h: int) -> list[int]:
        """The ids with this hash, sorted."""

    @property
    def unmoved(self) -> int:
        """Cells of the old array that are still to be looked at; 0 when the table is not growing."""

    @property
    def memory(self) -> int:
        """Bytes of the arrays."""
