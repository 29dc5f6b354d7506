"""Per-subject state of a log, and the followers notified of its messages."""

class SubjectState:
    count: int
    def __init__(self) -> None: ...
    def memory(self) -> int:
        """Bytes held."""

class Follower:
    """Base of what follows a log."""
