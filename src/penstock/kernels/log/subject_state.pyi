"""What a log knows of its subjects, and who is told of their messages."""

class SubjectState:
    count: int
    def __init__(self) -> None: ...
    def memory(self) -> int:
        """Bytes held."""

class Follower:
    """Base of what follows a log."""
