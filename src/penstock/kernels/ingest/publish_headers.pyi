"""Header blocks of publishes, and the message ids of a stream's dedupe window."""

class MessageIds:
    """The `Nats-Msg-Id` values a stream stored lately, and under which sequence.

    window_ns -- how long an id is remembered; 0 remembers none.
    last_id -- of the last message stored; b"" when it had none.
    """

    last_id: bytes
    def __init__(self, window_ns: int) -> None: ...
    @property
    def window_ns(self) -> int: ...
    @property
    def memory(self) -> int:
        """Bytes held."""

    def __len__(self) -> int: ...
    def find(self, msg_id: bytes, now: int) -> int:
        """The sequence stored under the id within the window before `now` (ns), or 0."""

    def add(self, msg_id: bytes, seq: int, ts: int) -> None:
        """Remembers that `seq` was stored under the id at `ts` (ns), no earlier than the one before.

        An id that is known stays what it is.
        """

    def prune(self, now: int) -> int:
        """Forgets what is older than the window."""

    def resize(self, window_ns: int, now: int) -> None:
        """Another window from now on; what a shorter one excludes is forgotten."""

    def next_deadline(self) -> int | None:
        """When (ns) prune() has something to do (a little later than it could); None when never."""
