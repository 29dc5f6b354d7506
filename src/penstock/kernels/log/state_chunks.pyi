"""Chunks of a replicated stream's state: the live messages of a range of sequences as bytes."""

from penstock.kernels.log.stream_log import StreamLog

def count_live(log: StreamLog, first: int, last: int) -> int:
    """How many messages with the sequences first..last are live. The work grows with the sequences."""

class StateReader:
    """Reads the chunks of a log as it is now, also while it changes. chunk_seqs: the sequences that each
    covers.

    seq: the position: the first sequence of a chunk, or one in the middle. last_seq: of the log when the
    reader was made. kept_bytes: of messages that were removed since. is_lost: all were removed at once, so
    that the rest cannot be read.
    """

    seq: int
    last_seq: int
    kept_bytes: int
    is_lost: bool
    def __init__(self, log: StreamLog, chunk_seqs: int) -> None: ...
    @property
    def chunk_end(self) -> int:
        """The last sequence of the chunk at the position."""

    def count(self) -> int:
        """Messages from the position to the end of its chunk."""

    def skip(self) -> None:
        """Moves the position behind its chunk."""

    def read(self, enough: int) -> tuple[bytes, bool]:
        """Reads on in the chunk at the position, until it has `enough` bytes. Returns them, and whether they
        end the chunk: then the position is behind it."""

    def close(self) -> None:
        """Stops following the log."""

def unpack_chunk(log: StreamLog, chunk: bytes, at: int, enough: int) -> int:
    """Appends the messages of a chunk from offset `at` on, until it has taken `enough` bytes; skips the
    sequences between them. Returns the offset that it reached.

    Raises ValueError for bytes that are no chunk, and for a message that cannot follow the last one; earlier
    ones stay.
    """
