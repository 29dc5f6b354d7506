"""Per-subject state of a log, and the followers notified of its messages."""

class SubjectState:
    count: int
    def __init__(self) -> None: ...
    def memory(self) -> int:
        """Allocated bytes."""

class Follower:
    """Base class of followers of a log."""
