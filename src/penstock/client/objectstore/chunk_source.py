"""What an object is put from: bytes, files, paths and iterables, read in blocks.

A block holds whole chunks except at the end. Files are read and blocks hashed in a thread, so that the event
loop sends one block meanwhile. Rejected: a thread call per chunk, which costs more than to send it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from typing import IO, Any, TypeAlias

from penstock.client.message import Payload

# What `ObjectStore.put` takes. Text is the content, encoded as UTF-8; a path is an os.PathLike.
ObjectData: TypeAlias = Payload | os.PathLike[str] | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

BLOCK_BYTES = 1024 * 1024
# Of data in memory, whose blocks are views: each one costs the hashing thread two fights for the interpreter
# lock.
VIEW_BYTES = 4 * 1024 * 1024


def size_of(data: ObjectData) -> int | None:
    """Number of bytes if it is known before reading."""
    if isinstance(data, str):
        return len(data.encode())
    if isinstance(data, bytes | bytearray):
        return len(data)
    if isinstance(data, memoryview):
        return data.nbytes
    return os.stat(data).st_size if isinstance(data, os.PathLike) else None


async def blocks_of(data: ObjectData, chunk_bytes: int) -> AsyncGenerator[memoryview, None]:
    """Yield the data in blocks of whole chunks; the last one may end with a shorter chunk.

    Blocks of bytes are views of them, without a copy; other buffers are copied, as they may change meanwhile.
    Raises TypeError for another type, and what reading a file raises.
    """
    block_bytes = max(BLOCK_BYTES // chunk_bytes, 1) * chunk_bytes
    view_bytes = max(VIEW_BYTES // chunk_bytes, 1) * chunk_bytes
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytearray | memoryview):
        data = bytes(data)
    if isinstance(data, bytes):
        view = memoryview(data)
        for start in range(0, len(view), view_bytes):
            yield view[start : start + view_bytes]
    elif isinstance(data, os.PathLike):
        with await asyncio.to_thread(open, data, "rb") as file:
            async with aclosing(_read(file, block_bytes)) as blocks:
                async for block in blocks:
                    yield memoryview(block)
    elif hasattr(data, "read"):
        async with aclosing(_read(data, block_bytes)) as blocks:
            async for block in blocks:
                yield memoryview(block)
    elif isinstance(data, AsyncIterable):
        async for block in _regrouped(data, block_bytes):
            yield memoryview(block)
    elif isinstance(data, Iterable):
        async for block in _regrouped(_as_async(data), block_bytes):
            yield memoryview(block)
    else:
        raise TypeError(f"an object is put from bytes, text, a path, a file or an iterable, not {type(data)}")


async def _read(file: Any, size: int) -> AsyncGenerator[bytes, None]:
    """A file's content in blocks; a raw file may return less than asked for before its end.

    A thread reads one piece ahead. A read that runs when the generator is closed ends in its thread.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[bytes] = loop.run_in_executor(None, file.read, size)

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal reading
        while piece := await reading:
            reading = loop.run_in_executor(None, file.read, size)
            yield _checked(piece)

    try:
        async for block in _regrouped(pieces(), size):
            yield block
    finally:
        reading.cancel()


async def _as_async(items: Iterable[bytes]) -> AsyncIterator[bytes]:
    for item in items:
        yield item


async def _regrouped(pieces: AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    """Pieces of any sizes, as blocks of `size` bytes."""
    rest = bytearray()
    async for piece in pieces:
        if not rest and len(piece) == size:
            yield bytes(_checked(piece))
            continue
        rest += _checked(piece)
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


def _checked(piece: bytes) -> bytes:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise TypeError(f"an object is put from pieces of bytes, not {type(piece).__name__}")
    return piece
