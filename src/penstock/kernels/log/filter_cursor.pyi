from penstock.kernels.log.stream_log import StreamLog

class FilterCursor:
    """The next messages of a consumer's filters. By itself it follows nothing: it searches when called."""

    def __init__(self, log: StreamLog, filters: list[bytes]) -> None: ...
    @property
    def filters(self) -> list[bytes]: ...
    @property
    def following(self) -> bool: ...
    @property
    def searching(self) -> bool: ...
    def set_bounds(
        self,
        *,
        run_max: int = 1024,
        run_fill: int = 1024,
        look_once: int = 65536,
        patience: int = 2048,
        heaps_max: int = 67108864,
    ) -> None:
        """Changes the bounds: sequences of a following run and of a searched one; messages examined before
        others are served, and without a match before merging begins; bytes of all heaps."""

    def peek(self, position: int) -> int | None:
        """The first live match at or after `position`, which never decreases; 0 when there is none, None
        while the search is not finished."""

    def num_from(self, seq: int) -> int:
        """Live matches at or after `seq`."""

    def memory(self) -> int:
        """Allocated bytes."""

def heaps_memory() -> int:
    """Bytes of all heaps of the process."""
