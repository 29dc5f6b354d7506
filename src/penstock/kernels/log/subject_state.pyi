"""Per-subject state of a stream; used by the streamlog kernel only (see subject_state.pxd)."""

class SubjectState:
    count: int
    def __init__(self) -> None: ...
    def memory(self) -> int:
        """Bytes held."""
