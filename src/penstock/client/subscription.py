"""Subscriptions: receive messages of a subject filter by iteration, `next` or callback.

    async for msg in await client.subscribe("orders.>"): ...
    msg = await subscription.next(timeout=1)
    await client.subscribe("orders.>", callback=handle)

Invariants: messages are returned in the order the server sent them; messages received before the end
(unsubscribe, drain, close) can still be read; the queue is limited in messages and bytes. Messages that do
not fit are dropped, counted in `dropped`, and reported as SlowConsumerError when the queue becomes full and
every SLOW_REPORT_INTERVAL_S while it remains full.

Rejected: pausing the socket for a slow subscription (the others on the connection would stall, and the server
would close the connection).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any

from penstock.client.keywords import SUBSCRIPTION, NatsPyNames
from penstock.client.message import Msg, RawMessage
from penstock.client.queue import MessageQueue
from penstock.client.tracing import traced
from penstock.errors import (
    ConnectionClosedError,
    MisuseError,
    RequestTimeoutError,
    SlowConsumerError,
)

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

MessageCallback = Callable[[Msg], Awaitable[Any] | None]
SLOW_REPORT_INTERVAL_S = 10.0
# Behind so many unread messages, those without reply and headers are kept as their payload alone: 184 bytes
# of memory for one of 128 bytes instead of 264.
PLAIN_BACKLOG_MIN = 1024

# Receives a raw message in the connection's callback; must be quick and must not raise.
Receiver = Callable[[RawMessage], None]


class Subscription(MessageQueue[RawMessage | bytes], NatsPyNames):
    """Made by `Client.subscribe`.

    subject, queue: as subscribed. received: messages that came, dropped ones included.
    dropped: messages that did not fit. max_messages: of `unsubscribe`, 0 when there is none.
    """

    nats_py_names = SUBSCRIPTION
    __slots__ = (
        "_callback",
        "_encoded_subject",
        "_max_pending_bytes",
        "_max_pending_messages",
        "_pending_bytes",
        "_report_at",
        "_session",
        "dropped",
        "is_internal",
        "max_messages",
        "queue",
        "receive",
        "receive_many",
        "received",
        "sid",
        "subject",
        "worker",
    )

    def __init__(
        self,
        session: ClientSession,
        subject: str,
        queue: str,
        sid: int,
        *,
        max_pending_messages: int,
        max_pending_bytes: int,
    ) -> None:
        super().__init__(session.loop)
        self._session = session
        self._callback: MessageCallback | None = None
        self._encoded_subject = subject.encode("utf-8", "surrogateescape")
        self._max_pending_messages = max_pending_messages
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._report_at = 0.0  # loop time of the next report while messages are dropped; 0.0 = report at once
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.received = 0
        self.dropped = 0
        self.max_messages = 0
        self.is_internal = False  # it belongs to a part of the client, not to the user
        self.worker: asyncio.Task[None] | None = None  # runs the callback
        self.receive: Receiver = self._enqueue
        # Takes messages that arrived together; None where `receive` is another and may end the subscription.
        self.receive_many: Callable[[list[RawMessage], int], None] | None = self._enqueue_many

    def __repr__(self) -> str:
        queue = f" queue={self.queue!r}" if self.queue else ""
        return f"<Subscription {self.subject!r}{queue} pending={len(self._items)} dropped={self.dropped}>"

    # --- receiving -----------------------------------------------------------------------------

    def _enqueue(self, raw: RawMessage) -> None:
        self.received += 1
        header = raw[3]
        size = len(raw[4]) + (len(header) if header else 0)
        items = self._items
        if len(items) >= self._max_pending_messages or self._pending_bytes + size > self._max_pending_bytes:
            self._drop()
        else:
            items.append(raw if len(items) < PLAIN_BACKLOG_MIN else self._reduced(raw))
            self._pending_bytes += size
            if self._getters:
                self._wake()
        if self.max_messages and self.received >= self.max_messages:
            self._session.forget(self)
            self.end()

    def _enqueue_many(self, raws: list[RawMessage], size: int) -> None:
        """`_enqueue` of each. Most have room together: 0.03 us a message instead of 0.3."""
        items = self._items
        if (
            self.max_messages
            or len(items) + len(raws) > self._max_pending_messages
            or self._pending_bytes + size > self._max_pending_bytes
        ):
            for raw in raws:
                if not self._ended:  # by `max_messages`
                    self._enqueue(raw)
            return
        self.received += len(raws)
        self._pending_bytes += size
        if len(items) < PLAIN_BACKLOG_MIN:
            items.extend(raws)
        else:
            items.extend(map(self._reduced, raws))
        for _ in range(min(len(self._getters), len(raws))):
            self._wake()

    def _reduced(self, raw: RawMessage) -> RawMessage | bytes:
        """What to keep of a message: its payload if the subscription knows the rest. See `_whole`."""
        is_plain = raw[2] is None and raw[3] is None and raw[1] == self._encoded_subject
        return raw[4] if is_plain else raw

    def _drop(self) -> None:
        self.dropped += 1
        now = self._loop.time()
        if now >= self._report_at:
            self._report_at = now + SLOW_REPORT_INTERVAL_S
            self._session.report(SlowConsumerError(self.subject, self.dropped))

    # --- handing out ---------------------------------------------------------------------------

    @property
    def pending_messages(self) -> int:
        """Number of received, unread messages."""
        return len(self._items)

    @property
    def pending_bytes(self) -> int:
        """Size of unread payloads and headers, bytes."""
        return self._pending_bytes

    @property
    def closed(self) -> bool:
        """Whether it has ended: no further messages arrive; pending ones can still be read."""
        return self._ended

    def __aiter__(self) -> AsyncIterator[Msg]:
        if self._callback is not None:
            raise MisuseError(f"subscription {self.subject!r} has a callback; it can not be iterated as well")
        return self

    async def __anext__(self) -> Msg:
        items = self._items
        while not items:
            if self._ended:
                self._note_exhausted()
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._report_at = 0.0
            await self._wait()
        return self._take()

    def _take(self) -> Msg:
        raw = self._whole(self._items.popleft())
        header = raw[3]
        self._pending_bytes -= len(raw[4]) + (len(header) if header else 0)
        return Msg(self._session, raw)

    def _whole(self, item: RawMessage | bytes) -> RawMessage:
        """A message as it came."""
        return (self.sid, self._encoded_subject, None, None, item) if isinstance(item, bytes) else item

    async def next(self, timeout: float | None = None) -> Msg:
        """The next message. timeout: seconds; None waits indefinitely.

        Raises RequestTimeoutError if none arrives in time, ConnectionClosedError if the subscription ended.
        """
        if self._callback is not None:
            raise MisuseError(f"subscription {self.subject!r} has a callback, which gets its messages")
        if self._items:  # common under load; avoids the cost of a timer
            msg = await self.__anext__()
            self._note_exhausted()
            return msg
        try:
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        except TimeoutError:
            text = f"no message on {self.subject!r} within {timeout:g} s"
            raise RequestTimeoutError(text, subject=self.subject, timeout_s=timeout) from None
        except StopAsyncIteration:
            text = f"subscription {self.subject!r} has ended and everything that arrived was read"
            raise ConnectionClosedError(text) from None

    async def next_many(self, max_messages: int = 256, *, timeout: float | None = None) -> list[Msg]:
        """The next message and what has arrived behind it, at most max_messages: a call for many messages.

        Waits and raises as `next`.
        """
        if max_messages < 1:
            raise MisuseError(f"max_messages is {max_messages}; it must be at least 1")
        return [await self.next(timeout), *self.arrived(max_messages - 1)]

    def arrived(self, max_messages: int) -> list[Msg]:
        """Messages that can be read without waiting; internal."""
        items, session, whole = self._items, self._session, self._whole
        if len(items) <= max_messages:
            raws = list(map(whole, items))
            items.clear()
            self._pending_bytes = 0
        else:
            raws = [whole(items.popleft()) for _ in range(max_messages)]
            self._pending_bytes -= sum(len(raw[4]) + len(raw[3] or b"") for raw in raws)
        return [Msg(session, raw) for raw in raws]

    # --- callback style ------------------------------------------------------------------------

    def start_callback(self, callback: MessageCallback) -> None:
        """Deliver every message to `callback`; internal."""
        self._callback = traced(self._session.tracing, callback)
        self.worker = self._session.spawn(self._run_callback(self._callback), f"subscription {self.subject}")

    async def _run_callback(self, callback: MessageCallback) -> None:
        """Call the callback for each message; report what it raises and continue.

        `call_back_each`, without a call and a coroutine for each message that has arrived: 0.1 us of 0.5.
        """
        items, session = self._items, self._session
        is_async = iscoroutinefunction(callback)
        while True:
            while items:
                item = items.popleft()
                raw = item if type(item) is tuple else self._whole(item)  # no call for most
                header = raw[3]
                self._pending_bytes -= len(raw[4]) + len(header) if header else len(raw[4])
                msg = Msg(session, raw)
                try:
                    result = callback(msg)
                    # isawaitable costs 0.3 us, and most callbacks are coroutine functions.
                    if is_async or isawaitable(result):
                        await result  # type: ignore[misc]  # not None
                except Exception as error:  # noqa: BLE001 - user code; on_error reports it
                    session.report_callback(error, msg)
            if self._ended:
                # If the client closed with an error, on_closed and last_error report it.
                self._note_exhausted()
                return
            self._report_at = 0.0
            await self._wait()

    # --- ending --------------------------------------------------------------------------------

    async def unsubscribe(self, max_messages: int = 0) -> None:
        """End the subscription: now, or once `max_messages` were received in total.

        Received messages can still be read. Raises MisuseError for a negative number.
        """
        if max_messages < 0:
            raise MisuseError(f"max_messages is {max_messages}; it must be 0 (at once) or more")
        if self._ended:
            return
        if max_messages > self.received:
            self.max_messages = max_messages
            self._session.send_unsub(self.sid, max_messages)
            return
        self._session.unsubscribe(self)
        self.end()

    async def drain(self, timeout: float | None = None) -> None:
        """End the subscription without losing messages in flight.

        Unsubscribes, waits until the server has sent its pending messages and a callback has processed them.
        Iterators then end. timeout: seconds, default drain_timeout. Raises RequestTimeoutError after it.
        """
        limit = self._session.options.drain_timeout if timeout is None else timeout
        if not self._ended:
            self._session.send_unsub(self.sid, 0)
            try:
                await self._session.flush(limit)
            finally:
                self._session.forget(self)
                self.end()
        if self.worker is not None and self.worker is not asyncio.current_task():
            done, _ = await asyncio.wait([self.worker], timeout=limit)
            if not done:
                text = f"draining {self.subject!r}: {len(self._items)} messages left after {limit:g} s"
                raise RequestTimeoutError(text, subject=self.subject, timeout_s=limit)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unsubscribe()
