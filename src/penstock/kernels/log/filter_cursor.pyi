from penstock.kernels.log.stream_log import StreamLog

class FilterCursor:
    """The next messages of a consumer's filters. On its own it follows nothing: it looks when it is asked."""

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
        """Other bounds than the usual ones: sequences of a run that follows and of one that is looked for;
        messages looked at before others get their turn, and in vain before merging begins; bytes of all
        heaps."""

    def peek(self, position: int) -> int | None:
        """The first live match at or behind `position`, which never goes back; 0 when there is none, None
        while it has not looked everywhere."""

    def num_from(self, seq: int) -> int:
        """Live matches at or behind `seq`."""

    def memory(self) -> int:
        """Bytes held."""

def heaps_memory() -> int:
    """Bytes of all heaps there are."""
