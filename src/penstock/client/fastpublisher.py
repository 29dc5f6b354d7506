"""A windowed publisher over fast ingest (ADR-50), with flow acks instead of per-message acks.

    async with js.publisher(fast=True) as publisher:
        for order in orders:
            await publisher.publish("orders.new", order)
    # here every message is stored; otherwise PublishFailedError lists those that are not

Theory of operation: publishes go into a fast batch that allows gaps, so that a lost or rejected message does
not end it. A flow ack completes every publish before it. A flush, also at the end of the block, commits the
batch; its pub ack completes the rest, and the next publish begins another batch. Awaiting a single publish
flushes too, because the server does not ack single messages of a batch.

Invariants: `_waiting` is ordered by batch sequence; every publish completes once. A lost message fails as not
acked, as does the message before a gap if the server does not report whether it arrived. Flow acks do not
carry stream sequences: the acks of single messages have `seq` 0, the batch id, and the batch sequence as
`count`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.fastingest import FastIngest
from penstock.client.message import Payload
from penstock.client.publisher import PendingAck, PublishStats
from penstock.client.publishing import PublishOptions
from penstock.errors import (
    BatchEndedError,
    ClientError,
    JetStreamApiError,
    MisuseError,
    PublishNotAckedError,
)
from penstock.protocol.api import PubAck
from penstock.protocol.batch import FLOW_MAX

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

OUTSTANDING_ACKS = 2


class FastPendingAck(PendingAck):
    """A publish in flight in a fast batch. Awaiting it commits the batch."""

    __slots__ = ("_ack", "_publisher", "seq")

    def __init__(self, publisher: FastPublisher, subject: str, seq: int) -> None:
        super().__init__(subject.encode("utf-8", "surrogateescape"), b"", b"", 0.0)
        self._publisher = publisher
        self._ack: PubAck | None = None
        self.seq = seq

    def done(self) -> bool:
        """Whether it was acked or failed."""
        return self._ack is not None or self._error is not None

    def result(self) -> PubAck:
        """The ack (`batch`, and the batch sequence as `count`). Raises the error if it failed."""
        if self._ack is not None:
            return self._ack
        if self._error is None:
            raise asyncio.InvalidStateError("the publish is not acked yet; await it")
        return super().result()

    def __await__(self) -> Generator[Any, None, PubAck]:
        while not self.done():
            yield from self._publisher.flush().__await__()
        return self.result()

    def complete_with(self, ack: PubAck) -> None:
        """Complete with an ack; internal."""
        self._ack = ack


class FastPublisher(PublishStats):
    """Created by `JetStream.publisher(fast=True)`. Use it in `async with`.

    acked, failed: completed publishes. pending: publishes in flight.
    """

    def __init__(self, session: ClientSession, *, window: int, timeout: float) -> None:
        super().__init__(session, window, timeout)
        self._flow = min(max(1, window // OUTSTANDING_ACKS), FLOW_MAX)
        self._batch: FastIngest | None = None
        self._waiting: deque[FastPendingAck] = deque()
        # Failures that arrived before publish() had appended the entry: (first, end, error).
        self._early: list[tuple[int, int, Exception]] = []
        self._batch_lock = asyncio.Lock()  # batches begin and end one at a time
        self._entered = False
        self._exited = False

    @property
    def pending(self) -> int:
        """Publishes that wait for their ack."""
        return len(self._waiting)

    async def publish(
        self, subject: str, payload: Payload = b"", **options: Unpack[PublishOptions]
    ) -> FastPendingAck:
        """Publish; waits only for flow control, the socket or the connection.

        options: as for `Publisher.publish`. Raises InvalidSubjectError, MaxPayloadError, NoStreamError,
        ConnectionClosedError, and BatchNotEnabledError if the stream does not allow fast batches.
        """
        if not self._entered or self._exited:
            raise MisuseError("a publisher works inside of `async with js.publisher(fast=True) as publisher`")
        async with self._batch_lock:
            self._early.clear()
            while True:
                batch = self._batch if self._batch is not None else await self._begin()
                try:
                    added = await batch.add(subject, payload, **options)
                    break
                except BatchEndedError as ended:
                    self._end(ended.ack, None)  # this message was not sent: it goes into the next batch
                except (PublishNotAckedError, JetStreamApiError) as refused:
                    self._end(None, refused)
                    raise
            pending = FastPendingAck(self, subject, added.batch_sequence)
            self._waiting.append(pending)
            for first, end, error in list(self._early):
                self._fail_range(first, end, error)
            self._on_ack(batch.acked)
            return pending

    async def flush(self) -> None:
        """Wait until nothing is in flight. Failures are raised at exit, or by awaiting a `PendingAck`."""
        async with self._batch_lock:
            batch = self._batch
            if batch is None:
                return
            if not batch.sent:
                self._end(None, None)
                return
            try:
                self._end(await batch.commit_eob(), None)
            except BatchEndedError as error:
                self._end(error.ack, None)
            except ClientError as error:
                self._end(None, error)

    # --- batches -------------------------------------------------------------------------------

    async def _begin(self) -> FastIngest:
        batch = FastIngest(
            self._session, None, gap="ok", flow=self._flow, outstanding_acks=OUTSTANDING_ACKS,
            timeout=self._timeout_s, batch_id=None, on_gap=self._on_gap, on_error=self._on_error,
            on_ack=self._on_ack,
        )  # fmt: skip
        await batch.__aenter__()
        self._batch = batch
        return batch

    def _end(self, ack: PubAck | None, error: Exception | None) -> None:
        """End the batch, with or without its pub ack, and complete every publish in flight."""
        batch = self._batch
        assert batch is not None
        if ack is not None and ack.batch:
            self._on_ack(ack.count)
        self._batch = None
        batch.abort()
        while self._waiting:
            pending = self._waiting.popleft()
            text = f"no ack for the publish on {pending.subject_text!r}"
            self._fail(pending, PublishNotAckedError(f"{text}: {error or 'its batch ended'}"))

    def _on_ack(self, acked: int) -> None:
        batch_id = self._batch.id if self._batch is not None else ""
        waiting = self._waiting
        while waiting and waiting[0].seq <= acked:
            self._complete(waiting.popleft(), batch_id)

    def _complete(self, pending: FastPendingAck, batch_id: str) -> None:
        if not pending.done():
            self.acked += 1
            pending.complete_with(PubAck(batch=batch_id, count=pending.seq))

    def _on_gap(self, last_seq: int, seq: int) -> None:
        # Servers differ in whether the first of these arrived. Completed publishes are not changed.
        text = f"messages {last_seq} to {seq - 1} of a batch were lost in transit, or all but the first"
        self._fail_range(last_seq, seq, PublishNotAckedError(text))

    def _on_error(self, seq: int, error: JetStreamApiError) -> None:
        self._fail_range(seq, seq + 1, error)

    def _fail_range(self, first: int, end: int, error: Exception) -> None:
        for pending in self._waiting:
            if first <= pending.seq < end:
                self._fail(pending, error)
        if not self._waiting or self._waiting[-1].seq < end - 1:
            self._early.append((first, end, error))

    def _fail(self, pending: PendingAck, error: Exception) -> None:
        if not pending.done():
            super()._fail(pending, error)

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> FastPublisher:
        self._session.check_open()
        if self._entered:
            raise MisuseError("this publisher is in use already; make another by js.publisher(fast=True)")
        self._entered = True
        return self

    def _stop(self) -> None:
        self._exited = True
        if self._batch is not None:
            self._end(None, ClientError("the publisher was left before"))
