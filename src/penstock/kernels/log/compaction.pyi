"""Takes removed messages out of closed blocks, and small blocks together."""

from penstock.kernels.log.message_block import MessageBlock
from penstock.kernels.log.stream_log import StreamLog

def compact(log: StreamLog, most: int = 1) -> list[tuple[MessageBlock | None, list[int]]]:
    """Rewrites up to `most` closed blocks of which more than half is worth nothing.

    Returns for each the block to put in place of its file (None: there is nothing left of it) and the numbers
    of the blocks whose files may go after that. The open block may have got notes: write it before.
    """

def rewrite_block(log: StreamLog, number: int) -> list[tuple[MessageBlock | None, list[int]]]:
    """Rewrites the closed block of that number, however much of it is live; as compact() returns it.

    Empty when the log has no such block, or it is the open one.
    """
