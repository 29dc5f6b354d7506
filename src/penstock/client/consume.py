"""Continuous pulling into a buffer that is refilled as messages are consumed (ADR-37 "Consume").

    async with consumer.consume() as messages:
        async for msg in messages:
            await msg.ack()

Theory of operation: one inbox receives the answers to all pull requests. `PullBudget` decides when to request
more, `HeartbeatMonitor` when the server is silent for too long; this module acts on their decisions. A
transient error (leader change, limits, missed heartbeats, lost connection) is reported to `on_warning` and
the pull is repeated. Consuming ends only if the consumer is deleted or the request can never succeed.

Invariants: a disconnect never ends it; at most max_messages (or max_bytes) are requested and not yet returned
to the user, except right after a warning, when earlier requests may still be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.client.connection_listener import ConnectionListener
from penstock.client.fetch import WRONG_PIN
from penstock.client.jsmsg import JsMsg
from penstock.client.message import RawMessage
from penstock.client.pull import (
    ConsumeOptions,
    HeartbeatMonitor,
    PullBudget,
    StatusKind,
    classify_status,
    message_size,
    pending_in,
    status_error,
    status_in,
)
from penstock.client.queue import MessageQueue, call_back_each
from penstock.client.tracing import traced
from penstock.errors import ClientError, ConsumerGoneError, JetStreamError, MisuseError
from penstock.protocol import headers as names
from penstock.protocol.api import encode

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

JsMessageCallback = Callable[[JsMsg], Awaitable[Any] | None]
WarningCallback = Callable[[Exception], None]

# Delay before the next pull after a transient rejection.
REFUSED_WAIT_S = 1.0


class Consume(MessageQueue[RawMessage], ConnectionListener):
    """A continuous pull, created by `Consumer.consume`. It pulls until it is stopped."""

    __slots__ = (
        "_budget",
        "_buffered_bytes",
        "_callback",
        "_consumer",
        "_monitor",
        "_pin",
        "_pull_subject",
        "_retry",
        "_session",
        "_subscription",
        "_timer",
        "_warn",
        "worker",
    )

    def __init__(
        self,
        session: ClientSession,
        pull_subject: bytes,
        consumer: str,
        options: ConsumeOptions,
        *,
        on_warning: WarningCallback | None = None,
    ) -> None:
        super().__init__(session.loop)
        self._session = session
        self._pull_subject = pull_subject
        self._consumer = consumer
        self._budget = PullBudget(options)
        self._pin = bool(options.priority.group)
        self._buffered_bytes = 0
        self._callback: JsMessageCallback | None = None
        self._warn: WarningCallback = on_warning or session.report
        self._monitor = HeartbeatMonitor(options.heartbeat_s, self._loop.time())
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._subscription: Subscription | None = None
        self.worker: asyncio.Task[None] | None = None

    def start(self, callback: JsMessageCallback | None = None) -> None:
        """Subscribe and start pulling; internal."""
        session = self._session
        session.check_open()
        session.listen(self)
        self._timer = self._loop.call_at(self._monitor.deadline, self._on_timer)
        if not session.is_connected:
            self._monitor.pause()
        self._begin()
        if callback is not None:
            self._callback = traced(session.tracing, callback)
            self.worker = session.spawn(self._run_callback(self._callback), f"consume {self._consumer}")

    def _begin(self) -> None:
        self._subscription = self._session.subscribe(self._session.new_inbox(), receive=self._on_raw)
        self._pull()

    # --- handing out -----------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Number of received messages not yet returned to the user."""
        return len(self._items)

    def __aiter__(self) -> AsyncIterator[JsMsg]:
        if self._callback is not None:
            raise MisuseError("this consume has a callback; it can not be iterated as well")
        return self

    async def __anext__(self) -> JsMsg:
        items = self._items
        while not items:
            if self._ended:
                self._note_exhausted()
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._wait()
        return self._hand_out(items.popleft())

    def arrived(self, max_messages: int) -> list[JsMsg]:
        """Messages that can be read without waiting; internal."""
        items, hand_out = self._items, self._hand_out
        return [hand_out(items.popleft()) for _ in range(min(len(items), max_messages))]

    def _hand_out(self, raw: RawMessage) -> JsMsg:
        budget = self._budget
        if budget.counts_bytes:
            size = message_size(raw)
            self._buffered_bytes -= size
            budget.handed_out(size)
        else:
            budget.pending_messages -= 1  # handed_out(), without the call: this is per message
        if budget.pending_messages <= budget.options.threshold_messages or budget.counts_bytes:
            self._pull()
        return JsMsg(self._session, raw)

    async def _run_callback(self, callback: JsMessageCallback) -> None:
        """Call the callback for each message; report what it raises and continue."""
        try:
            await call_back_each(self.__anext__, callback, self._session.report_callback)
        except (ClientError, JetStreamError) as error:
            self._session.report(error)

    # --- pulling ---------------------------------------------------------------------------------

    def _pull(self) -> None:
        if (
            self._ended
            or self._subscription is None
            or not self._session.is_connected
            or self._retry is not None
        ):
            return
        request = self._budget.next_request()
        if request is not None:
            reply = self._subscription.subject.encode()
            self._session.send(self._pull_subject, reply, None, encode(request))

    def _reset(self) -> None:
        """Assume that no pull request is open."""
        self._budget.reset(len(self._items), self._buffered_bytes)

    def _pull_later(self) -> None:
        if self._retry is None:
            self._retry = self._loop.call_later(REFUSED_WAIT_S, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._pull()

    def _on_raw(self, raw: RawMessage) -> None:
        self._monitor.heard(self._session.read_at)
        status = status_in(raw) if raw[3] is not None else None
        if status is not None:
            self._on_status(raw, *status)
            return
        if self._pin and raw[3] is not None:
            pin_id = names.value_of(raw[3], names.PIN_ID)
            if pin_id:
                self._budget.pin_id = pin_id.decode()
        if self._budget.counts_bytes:
            self._buffered_bytes += message_size(raw)
        self._items.append(raw)
        if self._getters:
            self._wake()

    def _on_status(self, raw: RawMessage, status: int, description: str) -> None:
        kind = classify_status(status, description)
        if kind is StatusKind.HEARTBEAT:
            return
        messages, size = pending_in(raw)
        self._budget.released(messages, size)
        if status == WRONG_PIN:
            self._budget.pin_id = ""
            if not messages:  # the status has no counts, and every pull with the old pin has ended
                self._reset()
        if kind is StatusKind.TERMINAL:
            self._on_terminal(status_error(status, description, self._consumer))
        elif kind is StatusKind.WARNING:
            self._on_refused(status_error(status, description, self._consumer))
        elif self._is_too_large(status, messages, size):
            text = f"the next message of consumer {self._consumer!r} is larger than max_bytes"
            self._on_refused(MisuseError(f"{text} ({self._budget.options.max_bytes}); raise max_bytes"))
        else:
            self._pull()

    def _is_too_large(self, status: int, messages: int, size: int) -> bool:
        # A pull for the whole buffer that ended for its size without a message can never succeed.
        return status == 409 and self._budget.counts_bytes and size >= self._budget.options.max_bytes > 0

    def _on_terminal(self, error: Exception) -> None:
        self._finish(error)

    def _on_refused(self, error: Exception) -> None:
        self._reset()
        self._pull_later()
        self._warn(error)

    def _on_timer(self) -> None:
        if self._ended:
            return
        now = self._loop.time()
        if self._monitor.missed(now):
            self._on_silence()
        self._timer = self._loop.call_at(max(self._monitor.deadline, now + 0.01), self._on_timer)

    def _on_silence(self) -> None:
        quiet_s = 2 * self._monitor.interval_s
        text = f"no heartbeat of consumer {self._consumer!r} for {quiet_s:g} s; pulling again"
        self._reset()
        self._pull()
        self._warn(ConsumerGoneError(text))

    # --- connection events -----------------------------------------------------------------------

    def on_disconnected(self, error: Exception) -> None:
        """Open pulls are lost. Stop heartbeat monitoring until the connection is restored."""
        self._monitor.pause()

    def on_reconnected(self) -> None:
        """Send a new pull request; the inbox subscription is already restored."""
        self._monitor.resume(self._loop.time())
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._reset()
        self._pull()

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """End with the error if pull requests are denied."""
        if subject.encode() == self._pull_subject:
            self._finish(error)

    async def on_draining(self) -> None:
        """Stop pulling and wait until the user has taken all received messages."""
        await self.drain()
        await self.exhausted()

    def on_client_closed(self, error: Exception | None) -> None:
        """End; buffered messages can still be read."""
        self._finish(error)

    # --- ending ----------------------------------------------------------------------------------

    def _finish(self, error: Exception | None) -> None:
        if self._ended:
            return
        self.end(error)
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._session.unlisten(self)
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)

    def stop(self) -> None:
        """End at once. Buffered messages are dropped; the server redelivers them after the ack wait."""
        self._items.clear()
        self._finish(None)

    async def drain(self) -> None:
        """Stop pulling. Iteration ends after the received messages; with a callback, waits until it has
        processed them."""
        if not self._ended and self._subscription is not None:
            self._session.send_unsub(self._subscription.sid, 0)
            try:
                await self._session.flush(self._session.options.drain_timeout)
            finally:
                self._finish(None)
        if self.worker is not None and self.worker is not asyncio.current_task():
            await asyncio.wait([self.worker])

    async def __aenter__(self) -> Consume:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
