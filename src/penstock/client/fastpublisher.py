"""The windowed publisher over fast ingest (ADR-50): the same use, flow acks in place of an ack a publish.

    async with js.publisher(fast=True) as publisher:
        for order in orders:
            await publisher.publish("orders.new", order)
    # here every message is stored, or PublishFailedError told which were not

Theory of operation: publishes go into a fast batch that allows gaps, so that one lost or refused message ends
nothing. A flow ack settles every publish before it. A flush (leaving the block, too) commits the batch, whose
pub ack settles the rest; the next publish begins another batch. So does awaiting a single publish: nothing
else would make the server ack it by itself.

Invariants: `_waiting` is in the order of batch sequences; every publish is settled once. What was lost is
told as a failure, and so is the message before it when the server doesn't say whether it came: as not acked.
The stream sequence of single messages is not told by flow acks: those acks have `seq` 0, the batch, and the
place in it as `count`.
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
    """A publish under way in a fast batch. Awaiting it commits the batch."""

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
        """The ack (`batch`, and the place in it as `count`); raises why there is none."""
        if self._ack is not None:
            return self._ack
        if self._error is None:
            raise asyncio.InvalidStateError("the publish is not acked yet; await it")
        return super().result()

    def __await__(self) -> Generator[Any, None, PubAck]:
        while not self.done():
            yield from self._publisher.flush().__await__()
        return self.result()

    def acked(self, ack: PubAck) -> None:
        """It is stored; for the publisher."""
        self._ack = ack


class FastPublisher(PublishStats):
    """Made by `JetStream.publisher(fast=True)`; use it in `async with`.

    acked and failed count what is done; `pending` what is under way.
    """

    def __init__(self, session: ClientSession, *, window: int, timeout: float) -> None:
        super().__init__(session, window, timeout)
        self._flow = min(max(1, window // OUTSTANDING_ACKS), FLOW_MAX)
        self._batch: FastIngest | None = None
        self._waiting: deque[FastPendingAck] = deque()
        # What was said of a message before publish() had an entry for it: (first, end, error).
        self._early: list[tuple[int, int, Exception]] = []
        self._turn = asyncio.Lock()  # batches begin and end one at a time
        self._entered = False
        self._left = False

    @property
    def pending(self) -> int:
        """Publishes that wait for their ack."""
        return len(self._waiting)

    async def publish(
        self, subject: str, payload: Payload = b"", **options: Unpack[PublishOptions]
    ) -> FastPendingAck:
        """Publishes; waits only for flow control, the socket or the connection.

        options as for `Publisher.publish`. Raises InvalidSubjectError, MaxPayloadError, NoStreamError,
        ConnectionClosedError, and BatchNotEnabledError where the stream takes no fast batches.
        """
        if not self._entered or self._left:
            raise MisuseError("a publisher works inside of `async with js.publisher(fast=True) as publisher`")
        async with self._turn:
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
        """Returns when nothing is under way any more; failures are told at the exit, or by `PendingAck`."""
        async with self._turn:
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
        """The batch is over, with its pub ack or without: everything under way is settled."""
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
            self._settle(waiting.popleft(), batch_id)

    def _settle(self, pending: FastPendingAck, batch_id: str) -> None:
        if not pending.done():
            self.acked += 1
            pending.acked(PubAck(batch=batch_id, count=pending.seq))

    def _on_gap(self, last_seq: int, seq: int) -> None:
        # Servers differ in whether the first of these came; what is settled already is not asked again.
        text = f"messages {last_seq} to {seq - 1} of a batch got lost on their way, or all but the first"
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
        self._left = True
        if self._batch is not None:
            self._end(None, ClientError("the publisher was left before"))
