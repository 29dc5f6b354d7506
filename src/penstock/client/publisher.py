"""Windowed publisher for streams: many publishes in flight, each with its own ack.

    async with js.publisher(window=4000) as publisher:
        for order in orders:
            await publisher.publish("orders.new", order)      # waits only when the window is full
    # here every message is stored; otherwise PublishFailedError lists those that are not

Theory of operation: one inbox subscription receives all acks; a counter in the reply subject identifies the
publish. A publish completes by its ack, its timeout, or the loss of the connection, except that publishes
with a msg_id are sent again on the next connection: the server drops duplicates.

`publish` may run in another thread than the rest (penstock.sync): each step that it shares with the event
loop is one operation on a dict, and what iterates `_waiting` iterates a copy.

Invariants: at most `window` publishes are in flight; acks are counted once; `_waiting` is in publishing
order, so its first entry is the oldest. Rejected: asyncio futures (a loop callback per ack, while most
programs never use single acks) and decoding acks that are not used.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.client_session import FLUSH_BYTES, ClientState
from penstock.client.connection_listener import ConnectionListener
from penstock.client.message import Immutable, Payload, RawMessage, encode_payload
from penstock.client.publishing import (
    NO_STREAM_RETRIES,
    NO_STREAM_RETRY_WAIT_S,
    PublishOptions,
    encode_publish_headers,
    read_ack,
    refusal_in,
)
from penstock.client.requests import is_no_responders, new_nuid
from penstock.client.tracing import with_context
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    JetStreamError,
    MisuseError,
    NoStreamError,
    PublishFailedError,
    PublishNotAckedError,
)
from penstock.protocol.api import PubAck

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

WhyLeaderless = Callable[[str], Awaitable[str]]
"""See `JetStream.why_leaderless`."""

# Failures kept for the error at the end; further ones are only counted.
FAILURES_KEPT_MAX = 1000


class PendingAck:
    """A publish in flight. Await it for its PubAck, or let the publisher's exit check it.

    Awaiting raises what `JetStream.publish` raises.
    """

    __slots__ = ("_error", "_raw", "_seen", "_waiters", "header", "payload", "retries", "sent_at", "subject")

    def __init__(self, subject: bytes, header: bytes, payload: Immutable, sent_at: float) -> None:
        self.subject = subject
        self.header = header
        self.payload = payload
        self.sent_at = sent_at
        self.retries = 0
        self._raw: RawMessage | None = None
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._seen = False

    @property
    def subject_text(self) -> str:
        """The subject published to."""
        return self.subject.decode("utf-8", "surrogateescape")

    def done(self) -> bool:
        """Whether it was acked or failed."""
        return self._raw is not None or self._error is not None

    def result(self) -> PubAck:
        """The ack. Raises the error if it failed, asyncio.InvalidStateError if it is not done."""
        if self._error is not None:
            self._seen = True
            raise self._error
        if self._raw is None:
            raise asyncio.InvalidStateError("the publish is not acked yet; await it")
        return read_ack(self._raw, self.subject_text)

    def exception(self) -> Exception | None:
        """The error if it failed, else None."""
        self._seen = True
        return self._error

    @property
    def is_seen(self) -> bool:
        """Whether the result was retrieved, so that the exit need not report a failure."""
        return self._seen

    def __await__(self) -> Generator[Any, None, PubAck]:
        if not self.done():
            waiter = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(waiter)
            yield from waiter
        return self.result()

    def complete(self, raw: RawMessage | None, error: Exception | None) -> None:
        """Complete with an ack or an error; internal."""
        self._raw = raw
        self._error = error
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = None


class PublishStats(ABC):
    """Common base of publishers: counts results and raises failures at exit.

    acked, failed: completed publishes.
    """

    def __init__(self, session: ClientSession, window: int, timeout: float) -> None:
        if window < 1:
            raise MisuseError(f"window is {window}; it must be at least 1")
        self._session = session
        self._timeout_s = timeout
        self.acked = 0
        self.failed = 0
        self._failures: list[PendingAck] = []

    @abstractmethod
    async def flush(self) -> None:
        """Wait until nothing is in flight."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the publisher; publishes in flight fail."""

    def _fail(self, pending: PendingAck, error: Exception) -> None:
        self.failed += 1
        if len(self._failures) < FAILURES_KEPT_MAX:
            self._failures.append(pending)
        pending.complete(None, error)

    def _failure(self) -> PublishFailedError | None:
        """The error to raise at exit for failures not yet retrieved; None if there are none."""
        unseen = [pending for pending in self._failures if not pending.is_seen]
        if not unseen:
            return None
        failures = [(pending.subject_text, str(pending.exception())) for pending in unseen]
        error = PublishFailedError(len(unseen) + self.failed - len(self._failures), self.acked, failures)
        error.__cause__ = unseen[0].exception()
        return error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for publishes in flight. Raises PublishFailedError for failures not yet retrieved, unless the
        block itself raised."""
        try:
            if kind is None:
                await self.flush()
        finally:
            self._stop()
        failure = self._failure()
        if kind is None and failure is not None:
            raise failure


class Publisher(PublishStats, ConnectionListener):
    """Created by `JetStream.publisher`. Use it in `async with`.

    acked, failed: completed publishes. pending: publishes in flight.
    """

    def __init__(
        self, session: ClientSession, *, window: int, timeout: float, why_leaderless: WhyLeaderless
    ) -> None:
        super().__init__(session, window, timeout)
        self._why_leaderless = why_leaderless
        self._refused: list[bytes] = []  # publishes without a responder, after the tries of ADR-22
        self._is_asking = False
        self._window = window
        self._limit = 0  # the window while the publisher is in use; 0 sends publish() to _wait_for_room()
        self._resume_at = window // 2  # waking the publisher once per half window costs least
        self._prefix = f"{session.options.inbox_prefix}.{new_nuid()}."
        self._prefix_bytes = self._prefix.encode()
        self._subscription: Subscription | None = None
        self._waiting: dict[bytes, PendingAck] = {}
        self._numbers = itertools.count(1)
        self._room: asyncio.Future[None] | None = None
        self._idle: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed_error: Exception | None = None

    @property
    def pending(self) -> int:
        """Publishes that wait for their ack."""
        return len(self._waiting)

    async def publish(
        self, subject: str, payload: Payload = b"", **options: Unpack[PublishOptions]
    ) -> PendingAck:
        """Publish; waits only while the window is full, the socket is slow, or the client is disconnected.

        options: msg_id, expected_*, ttl, headers. Returns the publish in flight, which may be awaited.

        Raises InvalidSubjectError, MaxPayloadError, ConnectionClosedError.
        """
        session = self._session
        if len(self._waiting) >= self._limit or session.connection is None:
            await self._wait_for_room()
        if session.tracing is not None:
            options = with_context(session.tracing, options)
        reply = b"%b%d" % (self._prefix_bytes, next(self._numbers))
        pending = PendingAck(
            session.subjects.get(subject) or session.encode_subject(subject),
            encode_publish_headers(options) if options else b"",
            payload if type(payload) is bytes else encode_payload(payload),
            session.loop.time(),
        )
        # Before it is sent: with penstock.sync the ack may come while this thread sends.
        self._waiting[reply] = pending
        try:
            is_large = session.send(pending.subject, reply, pending.header, pending.payload)
        except BaseException:
            self._waiting.pop(reply, None)
            raise
        if is_large or session.out.size >= FLUSH_BYTES:
            await session.flush_output()
        return pending

    async def _wait_for_room(self) -> None:
        while True:
            if self._closed_error is not None:
                raise ConnectionClosedError(f"the client closed: {self._closed_error}")
            self._session.check_open()
            if not self._limit:
                raise MisuseError("a publisher works inside of `async with js.publisher() as publisher`")
            if len(self._waiting) < self._limit and self._session.connection is not None:
                return
            if self._room is None:
                self._room = self._session.loop.create_future()
            await asyncio.shield(self._room)

    async def flush(self) -> None:
        """Wait until nothing is in flight. Failures are raised at exit, or by awaiting a `PendingAck`."""
        while self._waiting:
            if self._idle is None:
                self._idle = self._session.loop.create_future()
            await asyncio.shield(self._idle)

    # --- acks ----------------------------------------------------------------------------------

    def _on_ack(self, raw: RawMessage) -> None:
        waiting = self._waiting
        pending = waiting.get(raw[1])
        if pending is None:
            return  # timed out earlier, or a second ack
        subject = ""
        error: Exception | None = None
        if raw[3] is not None or b'"error"' in raw[4] or b'"stream"' not in raw[4]:
            subject = pending.subject_text
            if is_no_responders(raw):
                self._try_again(raw[1], pending)
                return
            error = refusal_in(raw, subject)
        del waiting[raw[1]]
        if error is not None:
            self._fail(pending, error)
        else:
            self.acked += 1
            pending.complete(raw, None)
        self._note_progress()

    def _note_progress(self) -> None:
        count = len(self._waiting)
        if self._room is not None and count <= self._resume_at and self._session.connection is not None:
            self._room.set_result(None)
            self._room = None
        if not count and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _try_again(self, reply: bytes, pending: PendingAck) -> None:
        """Schedule a retry after "no responders": the stream may be electing a leader (ADR-22). Later retries
        depend on whether there is a stream."""
        if pending.retries < NO_STREAM_RETRIES:
            pending.retries += 1
            self._session.loop.call_later(NO_STREAM_RETRY_WAIT_S, self._resend, reply)
            return
        self._refused.append(reply)
        if not self._is_asking:
            self._is_asking = True
            self._session.spawn(self._retry_refused(), "retries of publishes without a responder")

    async def _retry_refused(self) -> None:
        """Send refused publishes again, as often as it takes, while the stream of the first of them has no
        leader; fail those with a subject that no stream takes. One question decides for all, whatever their
        subjects: those of which it is wrong are refused again."""
        try:
            while self._refused:
                first = self._waiting.get(self._refused[0])
                if first is None:  # its timeout has passed, or the connection was lost
                    del self._refused[0]
                    continue
                subject = first.subject_text
                try:
                    if not await self._why_leaderless(subject):
                        raise NoStreamError(subject)
                except JetStreamError as error:
                    self._fail_refused(first.subject, error)
                    continue
                await asyncio.sleep(NO_STREAM_RETRY_WAIT_S)
                refused, self._refused = self._refused, []
                for reply in refused:
                    self._resend(reply)
        finally:
            self._is_asking = False

    def _fail_refused(self, subject: bytes, error: Exception) -> None:
        """Fail the refused publishes on a subject."""
        refused, self._refused = self._refused, []
        for reply in refused:
            pending = self._waiting.get(reply)
            if pending is not None and pending.subject == subject:
                del self._waiting[reply]
                self._fail(pending, error)
            elif pending is not None:
                self._refused.append(reply)
        self._note_progress()

    def _resend(self, reply: bytes) -> None:
        pending = self._waiting.get(reply)
        if pending is None or self._session.connection is None:
            return  # its timeout, or the loss of the connection, ends it
        try:
            self._session.send(pending.subject, reply, pending.header, pending.payload)
        except ClientError as error:
            del self._waiting[reply]
            self._fail(pending, error)
            self._note_progress()

    def _on_timer(self) -> None:
        loop = self._session.loop
        now = loop.time()
        waiting = self._waiting
        for reply, pending in list(waiting.items()):
            if pending.sent_at + self._timeout_s > now:
                break
            del waiting[reply]
            text = f"no ack for the publish on {pending.subject_text!r} within {self._timeout_s:g} s"
            self._fail(pending, PublishNotAckedError(f"{text}; it may be stored nevertheless"))
        self._note_progress()
        oldest = next((one.sent_at for one in list(waiting.values())), now)
        self._timer = loop.call_at(oldest + self._timeout_s, self._on_timer)

    # --- connection events -----------------------------------------------------------------------

    def on_disconnected(self, error: Exception) -> None:
        """Fail publishes without msg_id, which may or may not be stored; keep the others to resend them."""
        for reply, pending in list(self._waiting.items()):
            if b"\r\nNats-Msg-Id:" in pending.header:
                continue
            del self._waiting[reply]
            text = (
                f"no ack for the publish on {pending.subject_text!r}: {error}; it may be stored nevertheless"
            )
            self._fail(pending, PublishNotAckedError(text))
        self._note_progress()

    def on_reconnected(self) -> None:
        """Resend the remaining publishes in their original order."""
        for reply in list(self._waiting):
            self._resend(reply)
        self._note_progress()

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """Fail the publishes on a denied subject."""
        refused = [reply for reply, one in list(self._waiting.items()) if one.subject_text == subject]
        for reply in refused:
            self._fail(self._waiting.pop(reply), error)
        self._note_progress()

    async def on_draining(self) -> None:
        """Wait for outstanding acks."""
        await self.flush()

    def on_client_closed(self, error: Exception | None) -> None:
        """Fail everything in flight."""
        self._closed_error = error or ConnectionClosedError("the client was closed")
        failed = list(self._waiting.values())
        self._waiting.clear()
        for pending in failed:
            text = f"the client closed before the ack of the publish on {pending.subject_text!r} came"
            self._fail(pending, PublishNotAckedError(f"{text}; it may be stored nevertheless"))
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        self._note_progress()

    # --- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Publisher:
        session = self._session
        if session.state is ClientState.CLOSED or self._subscription is not None:
            session.check_open()
            raise MisuseError("this publisher is in use already; make another by js.publisher()")
        self._subscription = session.subscribe(self._prefix + "*", receive=self._on_ack)
        self._limit = self._window
        session.listen(self)
        self._timer = session.loop.call_later(self._timeout_s, self._on_timer)
        return self

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._limit = 0
        self._session.unlisten(self)
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)
        waiting, self._waiting = self._waiting, {}
        for pending in waiting.values():
            text = f"the publisher was left before the ack of the publish on {pending.subject_text!r} came"
            self._fail(pending, PublishNotAckedError(f"{text}; it may be stored nevertheless"))
