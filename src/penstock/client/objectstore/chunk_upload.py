"""Storing the chunks of one object, in order, whatever happens to the connection.

Each chunk has a message id. Chunks without an ack are sent again on the next connection, and the server drops
those that it has, so that a lost connection neither loses nor repeats a chunk, nor changes their order.

With fast ingest the server acks several chunks at once and ends the batch at the first one that is missing.
Then, as after a lost connection, the chunks without an ack are stored by single publishes; the message ids
hold for both. Rejected: beginning another batch (a batch that ended has a reason, which may come again).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.client.client_session import FLUSH_BYTES
from penstock.client.publisher import PendingAck, Publisher
from penstock.client.publishing import encode_publish_headers
from penstock.client.tracing import with_context
from penstock.errors import (
    BatchEndedError,
    ClientError,
    JetStreamApiError,
    JetStreamError,
    PublishFailedError,
    PublishNotAckedError,
)
from penstock.protocol import headers as names

if TYPE_CHECKING:
    from penstock.client.fastingest import FastIngest
    from penstock.client.jetstream import JetStream

_MSG_ID = names.MSG_ID.encode()
# Bytes in flight: enough for a round trip on a fast network, and a bound of the memory of one put.
IN_FLIGHT_BYTES = 8 * 1024 * 1024
FLOW_ACKS = 2


def window_of(chunk_bytes: int) -> int:
    """Number of chunks in flight."""
    return min(max(IN_FLIGHT_BYTES // chunk_bytes, 2), 1024)


class ChunkUpload(ABC):
    """Stores chunks under one subject. Use `finish`, or `abandon` after an error."""

    def __init__(self, js: JetStream, subject: str, nuid: str, chunk_bytes: int) -> None:
        self._js = js
        self._subject = subject
        self._nuid = nuid
        self._window = window_of(chunk_bytes)
        self.count = 0

    def _id(self, number: int) -> str:
        return f"{self._nuid}-{number}"

    @abstractmethod
    async def add(self, chunk: memoryview) -> None:
        """Store a chunk; waits only while too many are in flight. Raises why an earlier one failed."""

    @abstractmethod
    async def finish(self) -> None:
        """Wait until all chunks are stored. Raises why one was not."""

    @abstractmethod
    async def abandon(self) -> None:
        """Wait until no chunk is in flight, stored or not. Raises nothing."""


class _ChunkPublisher(Publisher):
    """Publishes views of bytes, without a copy of each."""

    async def publish_chunk(self, subject: bytes, msg_id: str, chunk: memoryview) -> None:
        """`publish`, but that it yields to the event loop only while the socket is full."""
        session = self._session
        if len(self._waiting) >= self._limit or session.connection is None:
            await self._wait_for_room()
        pending = PendingAck(subject, self._header(msg_id), chunk, session.loop.time())
        reply = b"%b%d" % (self._prefix_bytes, next(self._numbers))
        self._waiting[reply] = pending
        try:
            session.send(subject, reply, pending.header, chunk)
        except BaseException:
            del self._waiting[reply]
            raise
        connection = session.connection
        if session.out.size >= FLUSH_BYTES or (connection is not None and connection.paused):
            await session.flush_output()

    def _header(self, msg_id: str) -> bytes:
        tracing = self._session.tracing
        if tracing is None:
            return b"%b%b: %b\r\n\r\n" % (names.VERSION_LINE, _MSG_ID, msg_id.encode())
        return encode_publish_headers(with_context(tracing, {"msg_id": msg_id}))


class PlainUpload(ChunkUpload):
    """Single publishes with a window."""

    def __init__(self, js: JetStream, subject: str, nuid: str, chunk_bytes: int, *, stored: int = 0) -> None:
        super().__init__(js, subject, nuid, chunk_bytes)
        self.count = stored
        self._publisher: _ChunkPublisher | None = None
        self._encoded = js.session.encode_subject(subject)

    async def add(self, chunk: memoryview) -> None:
        publisher = self._publisher
        if publisher is None:
            js = self._js
            publisher = _ChunkPublisher(
                js.session, window=self._window, timeout=js.timeout, why_leaderless=js.why_leaderless
            )
            self._publisher = publisher
            await publisher.__aenter__()
        self.count += 1
        await publisher.publish_chunk(self._encoded, self._id(self.count), chunk)
        if publisher.failed:
            await self.finish()

    async def finish(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            try:
                await publisher.__aexit__(None, None, None)
            except PublishFailedError as error:
                raise (error.__cause__ or error) from error

    async def abandon(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with suppress(TimeoutError, ClientError, JetStreamError):
                async with asyncio.timeout(self._js.timeout):
                    await publisher.flush()
            await publisher.__aexit__(ClientError, ClientError("abandoned"), None)


class FastUpload(ChunkUpload):
    """A fast batch, and single publishes for what it leaves."""

    def __init__(self, js: JetStream, subject: str, nuid: str, chunk_bytes: int) -> None:
        super().__init__(js, subject, nuid, chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._batch: FastIngest | None = None
        self._unacked: deque[memoryview] = deque()
        self._plain: PlainUpload | None = None

    async def add(self, chunk: memoryview) -> None:
        self.count += 1
        if self._plain is not None:
            await self._plain.add(chunk)
            return
        self._unacked.append(chunk)
        try:
            batch = self._batch or await self._begin()
            await batch.add(payload=chunk, msg_id=self._id(self.count))
        except (BatchEndedError, PublishNotAckedError, JetStreamApiError):
            await self._go_on_singly()
        else:
            self._forget(batch.acked)

    async def _begin(self) -> FastIngest:
        flow = max(self._window // FLOW_ACKS, 1)
        self._batch = self._js.fast_ingest(self._subject, flow=flow, outstanding_acks=FLOW_ACKS)
        return await self._batch.__aenter__()

    def _forget(self, acked: int) -> None:
        while self.count - len(self._unacked) < acked:
            self._unacked.popleft()

    async def _go_on_singly(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._forget(batch.acked)
            batch.abort()
        stored = self.count - len(self._unacked)
        plain = PlainUpload(self._js, self._subject, self._nuid, self._chunk_bytes, stored=stored)
        self._plain = plain
        while self._unacked:
            await plain.add(self._unacked.popleft())

    async def finish(self) -> None:
        if self._batch is not None:
            try:
                await self._batch.commit_eob()
            except (BatchEndedError, PublishNotAckedError, JetStreamApiError):
                await self._go_on_singly()
        if self._plain is not None:
            await self._plain.finish()

    async def abandon(self) -> None:
        if self._batch is not None and self._batch.sent:
            # The final ack says that the server has stored what it will store.
            with suppress(TimeoutError, ClientError, JetStreamError):
                async with asyncio.timeout(self._js.timeout):
                    await self._batch.commit_eob()
            self._batch.abort()
        if self._plain is not None:
            await self._plain.abandon()
