"""Continuous pulling: a buffer that is kept filled while messages are taken out of it (ADR-37 "Consume").

    async with consumer.consume() as messages:
        async for msg in messages:
            await msg.ack()

Theory of operation: one inbox takes the answers to all pull requests. `PullBudget` says when to ask for more,
`HeartbeatMonitor` when it is too quiet; this module only does what they say. A pull that ends with an error
that may pass (leader change, limits, missed heartbeats, lost connection) is told to `on_warning` and pulled
again; it ends for good only when the consumer is gone or the request can never work.

Invariants: a disconnect never ends it; at most max_messages (or max_bytes) are requested and not yet handed
out, except right after a warning, when what was requested before may still arrive.
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
from penstock.errors import ClientError, ConsumerGoneError, JetStreamError, MisuseError
from penstock.protocol import headers as names
from penstock.protocol.api import encode

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

JsMessageCallback = Callable[[JsMsg], Awaitable[Any] | None]
WarningCallback = Callable[[Exception], None]

# After a pull was refused for a reason that may pass, so long until the next: no storm of refusals.
REFUSED_WAIT_S = 1.0


class Consume(MessageQueue, ConnectionListener):
    """Made by `Consumer.consume`; it pulls from the moment it is made until it is stopped."""

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
        """Subscribes and pulls; for `Consumer.consume`."""
        session = self._session
        session.check_open()
        session.listen(self)
        self._timer = self._loop.call_at(self._monitor.deadline, self._on_timer)
        if not session.is_connected:
            self._monitor.pause()
        self._begin()
        if callback is not None:
            self._callback = callback
            self.worker = session.spawn(self._run_callback(callback), f"consume {self._consumer}")

    def _begin(self) -> None:
        self._subscription = self._session.subscribe(self._session.new_inbox(), receive=self._on_raw)
        self._pull()

    # --- handing out -----------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        """Messages that arrived and were not handed out yet."""
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
        """Calls back message by message; a callback that raises is reported and the next message goes on."""
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
        """No pull is open any more, as far as is known."""
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
        self._budget.given_back(messages, size)
        if status == WRONG_PIN:
            self._budget.pin_id = ""
            if not messages:  # it doesn't say what is left, and none of the pulls with that pin goes on
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
        # A pull for the whole buffer that brought nothing because of its size can never bring anything.
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
        """Open pulls are gone; silence is no news until the connection is back."""
        self._monitor.pause()

    def on_reconnected(self) -> None:
        """Pulls anew (the inbox is subscribed again already)."""
        self._monitor.resume(self._loop.time())
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._reset()
        self._pull()

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """Pulling is not permitted."""
        if subject.encode() == self._pull_subject:
            self._finish(error)

    async def on_draining(self) -> None:
        """Pulls no more, and returns when what arrived was handed out."""
        await self.drain()
        await self.exhausted()

    def on_client_closed(self, error: Exception | None) -> None:
        """What is buffered can still be read."""
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
        """Ends at once. Messages not yet handed out are dropped here; they come again after the ack wait."""
        self._items.clear()
        self._finish(None)

    async def drain(self) -> None:
        """Pulls no more; iteration ends after what arrived, and a callback has seen it when this returns."""
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
