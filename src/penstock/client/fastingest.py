"""Fast ingest (ADR-50): a batch of any size, with flow control by the server instead of per-message acks.

    async with js.fast_ingest("sensors.a", gap="ok") as batch:
        for reading in readings:
            await batch.add(payload=reading)
        ack = await batch.commit_eob()

With gap="fail" the stored messages are exactly the first `ack.count` ones, in order; a lost or rejected
message ends the batch. With gap="ok" lost and rejected messages are reported (`on_gap`, `on_error`) and the
batch continues.

protocol/flow.py decides how many messages may be in flight. Each batch has its own inbox and unsubscribes
from it when it ends. A ping is sent when answers are late, when nothing was sent for a while (the server
abandons a batch after ten seconds of silence), and after a reconnect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from penstock.client.client_session import FLUSH_BYTES
from penstock.client.connection_listener import ConnectionListener
from penstock.client.message import Immutable, Payload, RawMessage, encode_payload, frozen_payload
from penstock.client.payloads import Payloads, runs_of
from penstock.client.publishing import PublishOptions, encode_publish_headers
from penstock.client.requests import is_no_responders, new_nuid
from penstock.errors import (
    BatchEndedError,
    ClientError,
    ConnectionClosedError,
    JetStreamApiError,
    MaxPayloadError,
    MisuseError,
    NoStreamError,
    PublishNotAckedError,
)
from penstock.protocol.api import DecodeError, PubAck
from penstock.protocol.batch import (
    BatchGap,
    BatchRefused,
    FlowAck,
    Operation,
    batch_exception,
    check_batch_id,
    parse_answer,
    reply_end,
    reply_prefix,
)
from penstock.protocol.flow import FlowWindow

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

log = logging.getLogger("penstock.client")

FLOW = 100
OUTSTANDING_ACKS = 2
KEEP_ALIVE_S = 3.0  # the server abandons a batch after ten seconds of silence


class FastPubAck(NamedTuple):
    """batch_sequence: of the added message. ack_sequence: the highest acked one; with gap="fail" everything
    up to it is stored."""

    batch_sequence: int
    ack_sequence: int


class FastIngest(ConnectionListener):
    """Created by `JetStream.fast_ingest`. Use it in `async with` and end it with `commit` or `commit_eob`."""

    def __init__(
        self,
        session: ClientSession,
        subject: str | None,
        *,
        gap: Literal["fail", "ok"],
        flow: int,
        outstanding_acks: int,
        timeout: float,
        batch_id: str | None,
        on_gap: Callable[[int, int], object] | None,
        on_error: Callable[[int, JetStreamApiError], object] | None,
        on_ack: Callable[[int], object] | None = None,
    ) -> None:
        if gap not in ("fail", "ok"):
            raise MisuseError(f'gap is {gap!r}; it may be "fail" or "ok"')
        if timeout <= 0:
            raise MisuseError(f"timeout is {timeout}; it must be above 0 s")
        self.id = check_batch_id(batch_id) if batch_id is not None else new_nuid()
        self._session = session
        self._subject = subject
        self._flow = FlowWindow(flow, outstanding_acks, gap_ok=gap == "ok")
        self._timeout_s = timeout
        self._on_gap = on_gap
        self._on_error = on_error
        self._on_ack = on_ack
        inbox = f"{session.options.inbox_prefix}.{new_nuid()}"
        self._inbox = f"{inbox}.{self.id}.>"
        self._prefix = reply_prefix(inbox, self.id, flow, gap_ok=gap == "ok")
        self._first_subject = b""
        self._subscription: Subscription | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._sent_at = 0.0
        self._error: Exception | None = None
        self._commit: tuple[bytes, bytes, bytes, Operation] | None = None
        self._done = False

    @property
    def acked(self) -> int:
        """The highest acked batch sequence."""
        return self._flow.acked

    @property
    def sent(self) -> int:
        """The highest batch sequence sent."""
        return self._flow.sent

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Gaps the server reported, as (batch sequence before the gap, batch sequence after it)."""
        return [(gap.last_seq, gap.seq) for gap in self._flow.gaps]

    # --- adding --------------------------------------------------------------------------------

    async def add(
        self, subject: str | None = None, payload: Payload = b"", **options: Unpack[PublishOptions]
    ) -> FastPubAck:
        """Publish one message of the batch; waits only for flow control.

        subject: default the batch's subject. options: as for `JetStream.publish`.

        Raises BatchEndedError if the server ended the batch, the JetStreamApiError that rejects the first
        message (BatchNotEnabledError, ...), NoStreamError, PublishNotAckedError if answers are missing,
        InvalidSubjectError, MaxPayloadError (no batch sequence is used), ConnectionClosedError.
        """
        encoded = self._encoded(subject)
        header = encode_publish_headers(options) if options else b""
        body = payload if type(payload) is bytes else frozen_payload(payload)
        self._check_size(len(header) + len(body))
        if not self._flow.room or self._session.connection is None:
            await self._until_room()
        seq = self._flow.take()
        self._begin(encoded)
        operation = Operation.START if seq == 1 else Operation.APPEND
        is_large = self._send(encoded, header, body, seq, operation)
        if seq == 1:
            await self._until_room()
        elif is_large or self._session.out.size >= FLUSH_BYTES:
            await self._session.flush_output()
        return FastPubAck(seq, self._flow.acked)

    async def add_many(self, payloads: Iterable[bytes] | Any, subject: str | None = None) -> FastPubAck:
        """Publish many payloads to one subject, encoded in compiled code.

        payloads: an iterable of bytes, or an Arrow array or chunked array of binary or string type (without
        nulls). Raises what `add` raises; messages before a payload that is too large are sent.
        """
        encoded = self._encoded(subject)
        for run in runs_of(payloads):
            await self._add_run(encoded, run)
        return FastPubAck(self._flow.sent, self._flow.acked)

    async def _add_run(self, subject: bytes, payloads: Payloads) -> None:
        session = self._session
        at = 0
        while at < len(payloads):
            if self._flow.sent == 0:
                await self.add(subject.decode(), payloads[at])
                at += 1
                continue
            if not self._flow.room or session.connection is None:
                await self._until_room()
            count = min(self._flow.room, len(payloads) - at)
            wrote = payloads.encode(
                session.out, subject, self._prefix, self._flow.sent + 1, at, count, session.max_payload
            )
            if wrote:
                self._flow.take(wrote)
                self._sent_at = session.loop.time()
                at += wrote
                session.schedule_flush()
            elif session.out.size < FLUSH_BYTES:
                raise MaxPayloadError(len(payloads[at]), session.max_payload)
            if session.out.size >= FLUSH_BYTES:
                await session.flush_output()

    # --- the end -------------------------------------------------------------------------------

    async def commit(
        self, subject: str | None = None, payload: Payload = b"", **options: Unpack[PublishOptions]
    ) -> PubAck:
        """Store one last message and end the batch.

        Returns the pub ack: `seq` of the last message in the stream, `batch`, and the `count` of stored
        messages. Raises what `add` raises, and PublishNotAckedError if it is unknown whether the commit
        arrived.
        """
        header = encode_publish_headers(options) if options else b""
        body = payload if type(payload) is bytes else encode_payload(payload)
        self._check_size(len(header) + len(body))
        return await self._end(self._encoded(subject), header, body, Operation.COMMIT)

    async def commit_eob(self) -> PubAck:
        """End the batch without another message. Raises what `commit` raises, MisuseError if it is empty."""
        if not self._flow.sent:
            raise MisuseError("nothing was added: a batch that ends without a last message needs another one")
        return await self._end(self._first_subject, b"", b"", Operation.EOB)

    async def _end(self, subject: bytes, header: bytes, body: bytes, operation: Operation) -> PubAck:
        if self._flow.sent:
            await self._until_room()
        self._begin(subject)
        self._commit = (subject, header, body, operation)
        self._send(subject, header, body, self._flow.take(), operation)
        while self._flow.final is None:
            self._raise_if_ended(committing=True)
            await self._wait()
        ack = self._flow.final
        asked = self._flow.sent if operation is Operation.COMMIT else self._flow.sent - 1
        self._leave()
        if ack.error is not None and not ack.batch:
            raise batch_exception(ack.error, subject.decode("utf-8", "replace"))
        if self._flow.is_ending or ack.error is not None or (ack.count < asked and not self._flow.gaps):
            raise self._ended(ack)
        return ack

    def abort(self) -> None:
        """Abandon the batch. Messages that the server has stored remain stored."""
        self._leave()

    async def __aenter__(self) -> FastIngest:
        if self._subscription is not None or self._done:
            raise MisuseError("this batch is in use already; make another by js.fast_ingest()")
        self._subscription = self._session.subscribe(self._inbox, receive=self._on_answer)
        self._session.listen(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Abort if the block raised. Raises MisuseError if it was neither committed nor aborted."""
        forgotten = kind is None and not self._done and self._flow.sent > 0
        self._leave()
        if forgotten:
            raise MisuseError("the batch was neither committed nor aborted; what was acked is stored")

    def _leave(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._session.unlisten(self)
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)
            self._subscription = None

    # --- waiting -------------------------------------------------------------------------------

    def _encoded(self, subject: str | None) -> bytes:
        name = subject if subject is not None else self._subject
        if name is None:
            raise MisuseError("say a subject, here or for the whole batch: js.fast_ingest(subject)")
        return self._session.subjects.get(name) or self._session.encode_subject(name)

    def _check_size(self, size: int) -> None:
        if size > self._session.max_payload:
            raise MaxPayloadError(size, self._session.max_payload)

    def _begin(self, subject: bytes) -> None:
        if self._subscription is None:
            raise MisuseError("a batch works inside of `async with js.fast_ingest() as batch`")
        if not self._first_subject:
            self._first_subject = subject
            self._heard_at = self._session.loop.time()
            self._schedule()

    def _send(self, subject: bytes, header: bytes, body: Immutable, seq: int, operation: Operation) -> bool:
        self._sent_at = self._session.loop.time()
        return self._session.send(subject, self._prefix + reply_end(seq, operation), header, body)

    async def _until_room(self) -> None:
        while True:
            self._raise_if_ended()
            if self._flow.room and self._session.connection is not None:
                return
            await self._wait()

    async def _wait(self) -> None:
        if self._waiter is None:
            self._waiter = self._session.loop.create_future()
        await asyncio.shield(self._waiter)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def _raise_if_ended(self, *, committing: bool = False) -> None:
        if self._error is not None:
            raise self._error
        self._session.check_open()
        if self._done:
            raise MisuseError("the batch has ended; make another by js.fast_ingest()")
        if self._subscription is None:
            raise MisuseError("a batch works inside of `async with js.fast_ingest() as batch`")
        final = self._flow.final
        if final is not None and not committing:
            self._leave()
            if final.error is not None and not final.batch:
                raise batch_exception(final.error, self._first_subject.decode("utf-8", "replace"))
            raise self._ended(final)

    def _ended(self, ack: PubAck) -> BatchEndedError:
        gaps = f"; messages were lost behind {self._flow.gaps[0].last_seq}" if self._flow.gaps else ""
        error = ack.error or self._flow.refused
        refused = f": {error.description}" if error is not None else ""
        text = (
            f"the server ended batch {self.id} after {ack.count} of {self._flow.sent} messages{gaps}{refused}"
        )
        return BatchEndedError(text, acked=ack.count, ack=ack)

    # --- answers -------------------------------------------------------------------------------

    def _on_answer(self, raw: RawMessage) -> None:
        self._heard_at = self._session.loop.time()
        if raw[3] is not None and is_no_responders(raw):
            self._error = NoStreamError(self._first_subject.decode("utf-8", "replace"))
            self._wake()
            return
        try:
            answer = parse_answer(raw[4])
        except DecodeError as error:
            log.warning("batch %s: an answer that is none: %s", self.id, error)
            return
        acked = self._flow.acked
        self._flow.on_answer(answer)
        if isinstance(answer, FlowAck):
            if self._flow.acked > acked:
                self._notify(self._on_ack, self._flow.acked)
        elif isinstance(answer, BatchGap):
            self._notify(self._on_gap, answer.last_seq, answer.seq)
        elif isinstance(answer, BatchRefused):
            subject = self._first_subject.decode("utf-8", "replace")
            self._notify(self._on_error, answer.seq, batch_exception(answer.error, subject))
        if self._commit is not None and not self._flow.is_over and self._flow.lost_commit(raw[1], answer):
            self._send_commit()
        self._wake()

    def _notify(self, callback: Callable[..., object] | None, *arguments: object) -> None:
        if callback is not None:
            try:
                callback(*arguments)
            except Exception:
                log.exception("batch %s: a callback raised", self.id)

    def _send_commit(self) -> None:
        """Send the commit again as a new message, after it was lost in a gap that does not end the batch."""
        assert self._commit is not None
        subject, header, body, operation = self._commit
        self._send(subject, header, body, self._flow.take(), operation)

    # --- pings ---------------------------------------------------------------------------------

    def _schedule(self) -> None:
        pause = min(self._timeout_s / 3, KEEP_ALIVE_S)
        self._timer = self._session.loop.call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        """Ping if answers are late or the batch is idle; fail the batch after the timeout."""
        session = self._session
        now = session.loop.time()
        waits = self._waiter is not None
        if waits and now - self._heard_at >= self._timeout_s and session.connection is not None:
            text = f"batch {self.id}: no answer within {self._timeout_s:g} s; {self._flow.acked} of"
            self._error = PublishNotAckedError(f"{text} {self._flow.sent} messages are acked")
            self._wake()
            return
        if waits or now - self._sent_at >= KEEP_ALIVE_S:
            self._ping()
        self._schedule()

    def _ping(self) -> None:
        if self._session.connection is None or self._flow.is_over or not self._flow.sent:
            return
        reply = self._prefix + reply_end(self._flow.sent, Operation.PING)
        try:
            self._session.send(self._first_subject, reply, b"", b"")
        except ClientError as error:
            log.warning("batch %s: no ping: %s", self.id, error)

    # --- connection events -----------------------------------------------------------------------

    def on_reconnected(self) -> None:
        """Ping: the server then reports whether messages in flight were lost."""
        self._heard_at = self._session.loop.time()
        self._ping()
        self._wake()

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """Fail the batch if its subject is denied."""
        if subject == self._first_subject.decode("utf-8", "replace"):
            self._error = error
            self._wake()

    def on_client_closed(self, error: Exception | None) -> None:
        """Fail the batch: no further answers can arrive."""
        self._error = ConnectionClosedError(f"the client closed: {error}" if error else "the client closed")
        self._wake()
