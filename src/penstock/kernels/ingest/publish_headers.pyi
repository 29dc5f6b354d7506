"""Header blocks of publishes, and the message ids of a stream's dedupe window."""

class MessageIds:
    """The `Nats-Msg-Id` values of a stream's dedupe window, and their sequences.

    window_ns -- how long an id counts; 0: no ids are stored.
    last_id -- of the last message stored; b"" when it had none.
    """

    def __init__(self, window_ns: int) -> None: ...
    @property
    def last_id(self) -> bytes: ...
    def note_last(self, msg_id: bytes) -> None:
        """Sets last_id: a message was stored."""

    @property
    def window_ns(self) -> int: ...
    @property
    def memory(self) -> int:
        """Allocated bytes."""

    def __len__(self) -> int: ...
    def items(self) -> list[tuple[bytes, int, int]]:
        """[(id, sequence, ts)] of the entries, oldest first, with those that expired and were not
        dropped."""

    def find(self, msg_id: bytes, now: int) -> int:
        """The sequence stored under the id within the window before `now` (ns), or 0."""

    def add(self, msg_id: bytes, seq: int, ts: int) -> None:
        """Adds an id with the sequence `seq`, stored at `ts` (ns), which must not be earlier than the
        previous one.

        A known id keeps its sequence.
        """

    def dump(self) -> tuple[list[tuple[bytes, int, int]], bytes, int]:
        """The state, for load()."""

    def dump_rest(self) -> tuple[bytes, int]:
        """The state but for the entries."""

    def load(self, items: list[tuple[bytes, int, int]], last_id: bytes, forgotten: int) -> None:
        """Takes over the state that dump() returned of another object; this one is new."""

    @property
    def ends(self) -> tuple[int, int]:
        """The places of the oldest entry and behind the newest one. A place denotes the same entry until that
        is dropped; entries are in the order of their sequences."""

    def seq_at(self, place: int) -> int | None:
        """The sequence of the entry at a place between the ends; None when it was dropped."""

    def read(self, place: int, end: int, end_seq: int, most: int) -> tuple[bytes, int, int] | None:
        """Entries from a place on, below `end` and with sequences below `end_seq`, until they have `most`
        bytes: (bytes for add_packed, the place behind them, their number). None when some were dropped."""

    def add_packed(self, packed: bytes, offset: int, from_seq: int, most: int) -> int:
        """Adds what read() returned of another object, from an offset on, about `most` bytes of it, but
        nothing below `from_seq`. Returns the offset behind what was added. Raises ValueError for other
        bytes."""

    def prune(self, now: int, most: int = ...) -> int:
        """Forgets ids older than the window. Drops up to `most` of those, and returns how many; the next
        calls drop the rest."""

    def resize(self, window_ns: int, now: int) -> None:
        """Changes the window; forgets ids older than the new one, and drops up to 8,192 of those."""

    def next_deadline(self) -> int | None:
        """When (ns) to call prune(), somewhat after the oldest id expires; None without ids."""
