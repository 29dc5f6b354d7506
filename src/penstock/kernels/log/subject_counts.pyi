"""The subjects that a filter matches in a log, with their counts, as they were at one moment."""

from penstock.kernels.log.stream_log import StreamLog

class SubjectCounts:
    """Taken when it is made; what happens to the log afterwards changes nothing."""

    def __init__(self, log: StreamLog, filter: bytes) -> None: ...
    def __len__(self) -> int:
        """How many subjects."""

    def sort(self, work: int) -> int:
        """Goes on putting them in order, for about so many comparisons; returns how many of them it did not
        need. They are in order when that is more than 0."""

    def rows(self, start: int, stop: int) -> list[tuple[bytes, int]]:
        """Subjects and counts of a part. Before they are in order: each of them is at some place."""
