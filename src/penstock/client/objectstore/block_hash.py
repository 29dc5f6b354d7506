"""SHA-256 of a stream of chunks, computed in a thread beside the event loop.

Hashing takes about as long as sending or receiving, and releases the interpreter lock. Each thread call takes
all that was added during the one before: a call costs as much as hashing some 50 KB, and its end waits for
the interpreter lock. One call runs at a time. `add` waits for it when PENDING_BYTES_MAX wait for the next
one, which bounds the memory.
"""

from __future__ import annotations

import asyncio
import hashlib

# Below this size a call costs as much as the hashing.
CALL_BYTES_MIN = 256 * 1024
PENDING_BYTES_MAX = 8 * 1024 * 1024


class BlockHash:
    """A SHA-256 digest of everything added. Use `finish`, then `digest`; after an error only `finish`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.digest = hashlib.sha256()
        self._loop = loop
        self._chunks: list[bytes | memoryview] = []
        self._size = 0
        self._running: asyncio.Future[None] | None = None

    async def add(self, chunk: bytes | memoryview) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size < CALL_BYTES_MIN:
            return
        running = self._running
        if running is None or running.done() or self._size >= PENDING_BYTES_MAX:
            await self._wait()
            self._start()

    def _start(self) -> None:
        chunks, self._chunks, self._size = self._chunks, [], 0
        self._running = self._loop.run_in_executor(None, self._update, chunks)

    def _update(self, chunks: list[bytes | memoryview]) -> None:
        for chunk in chunks:
            self.digest.update(chunk)

    async def _wait(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running

    async def finish(self) -> None:
        """Complete the digest."""
        await self._wait()
        if self._size >= CALL_BYTES_MIN:
            self._start()
            await self._wait()
        self._update(self._chunks)
        self._chunks, self._size = [], 0
