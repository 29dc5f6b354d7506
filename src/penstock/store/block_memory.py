"""How much memory the closed blocks of replicated streams may take, before they are written to files.

See replica_store.py, which writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.store.executor import DiskExecutor

if TYPE_CHECKING:
    from penstock.kernels.log.message_block import MessageBlock
    from penstock.store.replica_store import ReplicaStreamStore

MEMORY_MAX = 128 << 20
"""Bytes of closed blocks that all replicated streams of a server have in memory alone."""

WRITING_MAX = 64 << 20
"""Bytes of blocks being written, which are in memory, too. Above it the event loop waits for the executor."""

RETRY_BYTES = 16 << 20
"""After a write failed, the next one is tried when so many more bytes are in memory."""


class BlockMemory:
    """Which closed blocks are in memory alone, of all replicated streams of a server, oldest first.

    limit: bytes above which the oldest are written to files. executor: runs the writes.
    """

    def __init__(self, executor: DiskExecutor, limit: int = MEMORY_MAX) -> None:
        self._executor = executor
        self._limit = self._bound = limit
        self._blocks: dict[MessageBlock, ReplicaStreamStore] = {}
        self._bytes = 0
        self._writing = 0

    def add(self, block: MessageBlock, store: ReplicaStreamStore) -> None:
        """Adds the newest block."""
        self._blocks[block] = store
        self._bytes += block.size

    def discard(self, block: MessageBlock) -> None:
        """Removes a block that leaves memory, or that is written by now."""
        if self._blocks.pop(block, None) is not None:
            self._bytes -= block.size

    def reduce(self) -> None:
        """Has the oldest blocks written until the others are within the limit."""
        while self._bytes > self._bound and self._blocks:
            block = next(iter(self._blocks))
            store = self._blocks[block]
            self.discard(block)
            self._writing += block.size
            store.spill(block)
        while self._writing > WRITING_MAX and self._executor.complete_one(self):
            pass

    def write_ended(self, block: MessageBlock) -> None:
        """Whether or not it succeeded."""
        self._writing -= block.size

    def write_failed(self, block: MessageBlock, store: ReplicaStreamStore) -> None:
        """The block stays in memory. The log of the groups is on the same disk: when this one is full, no
        group takes more, so that memory does not grow without end."""
        self.add(block, store)
        self._bound = self._bytes + RETRY_BYTES

    def write_succeeded(self) -> None:
        """The disk takes blocks again, if it did not."""
        self._bound = self._limit

    def run(
        self, work: Callable[[], None], done: Callable[[None, StoreError | OSError | None], None]
    ) -> None:
        """Runs work on files, now or in the background."""
        self._executor.run(work, done, self)
