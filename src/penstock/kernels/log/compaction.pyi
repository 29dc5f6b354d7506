"""Compaction: drops removed messages from closed blocks, and merges small blocks."""

from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog

def compact(log: StreamLog, most: int = 1) -> list[tuple[MessageBlock | None, list[int]]]:
    """Rewrites up to `most` closed blocks of which more than half is unused.

    Returns for each the block that replaces its file (None: nothing is left of it) and the numbers
    of the blocks whose files may be deleted after that. Write the open block first: it may have
    new tombstones.
    """

def rewrite_block(log: StreamLog, number: int) -> list[tuple[MessageBlock | None, list[int]]]:
    """Rewrites the closed block of that number, however much of it is live; returns the same as compact().

    Empty when the log has no such block, or it is the open one.
    """
