"""Reading an object: its chunks in order, checked against its size and digest.

An ordered consumer delivers the chunks, so a read survives lost connections. Chunks of clients that read from
sockets have different sizes; a read of a range therefore asks for the sizes first, which come as headers.
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.client.jsmsg import JsMsg
from penstock.client.keyvalue.key_writes import bucket_not_found
from penstock.client.marked import MarkedConsume, marked_consume
from penstock.client.objectstore.block_hash import BlockHash
from penstock.client.objectstore.chunk_source import BLOCK_BYTES
from penstock.client.objectstore.chunk_upload import window_of
from penstock.client.objectstore.object_info import CHUNK_BYTES, ObjectInfo, is_digest
from penstock.client.objectstore.store_errors import object_changed
from penstock.errors import (
    MisuseError,
    ObjectCorruptError,
    ObjectNotFoundError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from penstock.protocol import headers as names
from penstock.protocol.api import DeliverPolicy

if TYPE_CHECKING:
    from penstock.client.objectstore.object_store import ObjectStore

# Called with the bytes read or sent so far, and the total if it is known.
Progress = Callable[[int, int | None], object]
SIZES_MAX = 2000  # headers in flight while a range looks for its first chunk


class ObjectReader:
    """Created by `ObjectStore.open`. Use it in `async with`; iterate it, or use `read` or `write_to`, once.

    The digest of a whole object is checked after its last chunk was returned.
    """

    def __init__(
        self, store: ObjectStore, name: str, offset: int, length: int | None, progress: Progress | None
    ) -> None:
        if offset < 0 or (length is not None and length < 0):
            raise MisuseError(f"offset is {offset} and length {length}; neither may be negative")
        self._store = store
        self._name = name
        self._offset = offset
        self._length = length
        self._progress = progress
        self._info: ObjectInfo | None = None
        self._consume: MarkedConsume | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    @property
    def info(self) -> ObjectInfo:
        """The object that is read; of a link, where it leads. Raises MisuseError outside of the block."""
        if self._info is None:
            raise MisuseError("a reader works inside of `async with store.open(name) as reader`")
        return self._info

    async def __aenter__(self) -> ObjectReader:
        """Find the object. Raises ObjectNotFoundError, ObjectLinkError, BucketNotFoundError."""
        if self._chunks is not None:
            raise MisuseError("this reader is in use already; make another by store.open()")
        self._store, self._info = await self._store.resolve(self._name)
        self._chunks = self._read_chunks(self._info)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._consume is not None:
            await self._consume.__aexit__()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The chunks.

        Raises ObjectChangedError if the object is replaced or deleted meanwhile, ObjectCorruptError if what
        is stored does not have its size or digest, RequestTimeoutError if chunks stop coming.
        """
        if self._chunks is None:
            raise MisuseError("a reader works inside of `async with store.open(name) as reader`")
        return self._chunks

    async def read(self) -> bytes:
        """Everything. Raises what iterating raises."""
        # One copy into memory that grows in place; joining a list of all chunks needs twice the memory.
        buffer = io.BytesIO()
        async for chunk in self:
            buffer.write(chunk)
        return buffer.getvalue()

    async def write_to(self, target: os.PathLike[str] | IO[bytes]) -> int:
        """Write everything to a file or path, and return the number of bytes.

        A path gets the content only if it is complete: it is written beside it and renamed. Raises what
        iterating and writing raise.
        """
        if not isinstance(target, os.PathLike):
            return await self._write(target)
        path = Path(target)
        handle, name = await asyncio.to_thread(tempfile.mkstemp, dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                size = await self._write(file)
            await asyncio.to_thread(os.replace, name, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise
        return size

    async def _write(self, file: IO[bytes]) -> int:
        size, pending = 0, bytearray()
        async for chunk in self:
            pending += chunk
            if len(pending) >= BLOCK_BYTES:
                await asyncio.to_thread(file.write, pending)
                size += len(pending)
                pending = bytearray()
        await asyncio.to_thread(file.write, pending)
        return size + len(pending)

    # --- chunks --------------------------------------------------------------------------------

    async def _read_chunks(self, info: ObjectInfo) -> AsyncIterator[bytes]:
        if not 0 <= self._offset <= info.size:
            raise MisuseError(f"offset is {self._offset}; {self._what} has {info.size} bytes")
        left = info.size - self._offset
        left = left if self._length is None else min(left, self._length)
        total = left
        is_whole = left == info.size
        if not left:
            return
        first_seq, skip = (0, 0) if not self._offset else await self._first_of_range(info)
        digest = BlockHash(self._store.js.session.loop) if is_whole else None
        self._consume = consume = self._start(info, first_seq, window_of(info.max_chunk_size or CHUNK_BYTES))
        try:
            while left:
                chunk = (await self._next(consume, info)).data
                if digest is not None:
                    await digest.add(chunk)
                if len(chunk) > skip + left and is_whole:
                    raise self._corrupt(f"its chunks have more than its {info.size} bytes")
                part = chunk if not skip and len(chunk) <= left else chunk[skip : skip + left]
                skip = max(skip - len(chunk), 0)
                left -= len(part)
                if self._progress is not None:
                    self._progress(total - left, total)
                if part:
                    yield part
        finally:
            if digest is not None:
                await digest.finish()
        if digest is not None and not is_digest(info.digest, digest.digest):
            raise self._corrupt(f"its content does not have the digest {info.digest}")

    @property
    def _what(self) -> str:
        return f"object {self.info.name!r} of store {self._store.bucket!r}"

    def _corrupt(self, why: str) -> ObjectCorruptError:
        text = f"{self._what}: {why}; put it again"
        return ObjectCorruptError(text, bucket=self._store.bucket, name=self.info.name)

    def _start(
        self, info: ObjectInfo, first_seq: int, window: int, *, sizes_only: bool = False
    ) -> MarkedConsume:
        settings: dict[str, object] = {
            "filter_subject": self._store.chunk_subject(info.nuid),
            "headers_only": sizes_only,
        }
        if first_seq:
            settings |= {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": first_seq}
        return marked_consume(self._store.stream, settings, max_messages=window)

    async def _first_of_range(self, info: ObjectInfo) -> tuple[int, int]:
        """Sequence of the chunk that the offset is in, and the bytes of it before the offset."""
        consume = self._start(info, 0, SIZES_MAX, sizes_only=True)
        try:
            before = 0
            while True:
                msg = await self._next(consume, info)
                size = int(names.value_of(msg.raw[3] or b"", names.MSG_SIZE) or b"0")
                if before + size > self._offset:
                    return msg.seq, self._offset - before
                before += size
        finally:
            await consume.__aexit__()

    async def _next(self, consume: MarkedConsume, info: ObjectInfo) -> JsMsg:
        """The next chunk. Asks what became of the object when none comes."""
        timeout_s = self._store.js.timeout
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    msg = await consume.__anext__()
            except StreamNotFoundError as error:
                raise bucket_not_found(self._store.bucket) from error
            except TimeoutError as error:
                await self._check_unchanged(info)
                if consume.is_reading:
                    text = f"{self._what}: no chunk came within {timeout_s:g} s"
                    raise RequestTimeoutError(text, timeout_s=timeout_s) from error
            else:
                if not MarkedConsume.is_mark(msg):
                    return msg
                await self._check_unchanged(info)
                if not await self._has_all_chunks(info):
                    raise self._corrupt(f"chunks of its {info.chunks} are missing")

    async def _has_all_chunks(self, info: ObjectInfo) -> bool:
        """Whether the stream's leader has all chunks. In a cluster of official servers the consumer may be at
        a replica that lags: it says that it has delivered all, and delivers the others when it has them."""
        subject = self._store.chunk_subject(info.nuid)
        stream = await self._store.stream.info(subjects_filter=subject)
        return stream.state.subjects.get(subject, 0) >= info.chunks

    async def _check_unchanged(self, info: ObjectInfo) -> None:
        changed = object_changed(self._store.bucket, info.name)
        try:
            now = await self._store.info(info.name)
        except ObjectNotFoundError as error:
            raise changed from error
        if now.nuid != info.nuid:
            raise changed
