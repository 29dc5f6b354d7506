"""One pull request and the messages it brings (ADR-37 "Fetch").

    msgs = await consumer.fetch(100, expires=2)            # a list
    async for msg in consumer.fetch(100, expires=2): ...   # as they come

To leave the iteration early, call `stop` or use the fetch in `async with`; otherwise it keeps receiving.

It ends when all requested messages have arrived, when the server ends the pull, or, if the server is silent,
shortly after its expiry. Invariant: the pull request is sent once, when the fetch is first awaited or
iterated. Rejected: sharing one inbox among fetches (an abandoned fetch would keep receiving, and its messages
would be redelivered only after the ack wait).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from penstock.client.connection_listener import ConnectionListener
from penstock.client.jsmsg import JsMsg
from penstock.client.message import RawMessage
from penstock.client.pull import (
    HeartbeatMonitor,
    StatusKind,
    classify_status,
    pending_in,
    status_error,
    status_in,
)
from penstock.client.queue import MessageQueue
from penstock.errors import ConsumerGoneError, MisuseError
from penstock.protocol import headers
from penstock.protocol.api import PullRequest, encode
from penstock.protocol.durations import NS_PER_S

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

# The server ends a pull. The client gives up if it heard nothing for this long after the expiry.
GRACE_S = 5.0
WRONG_PIN = 423


class Fetch(MessageQueue[RawMessage], ConnectionListener):
    """A single pull, created by `Consumer.fetch`. Await it for a list, or iterate it, once.

    Awaiting raises an error only if no message arrived; iterating raises it after the last message.
    """

    __slots__ = (
        "_consumer",
        "_monitor",
        "_over_at",
        "_pins",
        "_pull_subject",
        "_remaining",
        "_request",
        "_session",
        "_subscription",
        "_timer",
    )

    def __init__(
        self,
        session: ClientSession,
        pull_subject: bytes,
        request: PullRequest,
        consumer: str,
        pins: dict[str, str] | None = None,
    ) -> None:
        """pins: priority group -> pin id (ADR-42); read and updated."""
        super().__init__(session.loop)
        self._session = session
        self._pull_subject = pull_subject
        self._request = request
        self._pins = {} if pins is None else pins
        self._over_at = 0.0  # loop time at which the pull expires
        self._consumer = consumer
        self._remaining = request.batch
        self._subscription: Subscription | None = None
        self._monitor: HeartbeatMonitor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __await__(self) -> Generator[Any, None, list[JsMsg]]:
        return self._collect().__await__()

    def __aiter__(self) -> AsyncIterator[JsMsg]:
        self._start()
        return self

    async def __anext__(self) -> JsMsg:
        items = self._items
        while not items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            try:
                await self._wait()
            except BaseException:
                self._finish(None)
                raise
        return JsMsg(self._session, items.popleft())

    def arrived(self, max_messages: int) -> list[JsMsg]:
        """Messages that can be read without waiting; internal."""
        items, session = self._items, self._session
        return [JsMsg(session, items.popleft()) for _ in range(min(len(items), max_messages))]

    async def _collect(self) -> list[JsMsg]:
        self._start()
        try:
            await self.ended()
        finally:
            self._finish(None)
        if self._error is not None and not self._items:
            raise self._error
        msgs = [JsMsg(self._session, raw) for raw in self._items]
        self._items.clear()
        return msgs

    async def ended(self) -> None:
        """Wait until no further message can arrive."""
        while not self._ended:
            await self._wait()

    async def __aenter__(self) -> Fetch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Cancel the pull; received messages can still be iterated."""
        self._finish(None)

    # --- the pull ------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._subscription is not None:
            raise MisuseError("a fetch can be awaited or iterated once; call fetch() again")
        session = self._session
        inbox = session.new_inbox()
        self._subscription = session.subscribe(inbox, receive=self._on_raw)
        self._over_at = self._loop.time() + self._request.expires / NS_PER_S
        pin_id = self._pins.get(self._request.group, "")
        if pin_id:
            self._request = structs.replace(self._request, id=pin_id)
        session.send(self._pull_subject, inbox.encode(), None, encode(self._request))
        session.listen(self)
        if self._request.idle_heartbeat:
            self._monitor = HeartbeatMonitor(self._request.idle_heartbeat / NS_PER_S, self._loop.time())
            self._timer = self._loop.call_at(self._monitor.deadline, self._on_heartbeat_timer)
        else:
            self._timer = self._loop.call_later(
                self._request.expires / NS_PER_S + GRACE_S, self._finish, None
            )

    def _on_raw(self, raw: RawMessage) -> None:
        if self._ended:
            return
        if self._monitor is not None:
            self._monitor.heard(self._session.read_at)
        status = status_in(raw)
        if status is not None:
            self._on_status(raw, *status)
            return
        if self._request.group and raw[3] is not None:
            pin_id = headers.value_of(raw[3], headers.PIN_ID)
            if pin_id:
                self._pins[self._request.group] = pin_id.decode()
        self._items.append(raw)
        self._remaining -= 1
        if self._remaining <= 0:
            self._finish(None)
        elif self._getters:
            self._wake()

    def _on_status(self, raw: RawMessage, status: int, description: str) -> None:
        kind = classify_status(status, description)
        if kind is StatusKind.HEARTBEAT:
            return
        if status == WRONG_PIN and self._request.id:
            self._pull_without_pin(raw)
            return
        refused = kind is StatusKind.TERMINAL or status == 503 or description.lower().startswith("exceeded")
        # A leader change or a shutdown ends the pull early without an error; the next pull may succeed.
        self._finish(status_error(status, description, self._consumer) if refused else None)

    def _pull_without_pin(self, raw: RawMessage) -> None:
        """Pull the rest without a pin id, after another client was pinned."""
        request = self._request
        if self._pins.get(request.group) == request.id:
            del self._pins[request.group]
        left_ns = max(int((self._over_at - self._loop.time()) * NS_PER_S), 0)
        if self._subscription is None or (
            left_ns < max(2 * request.idle_heartbeat, 1) and not request.no_wait
        ):
            self._finish(None)
            return
        _, bytes_left = pending_in(raw)
        self._request = structs.replace(
            request,
            id="",
            batch=self._remaining,
            max_bytes=(bytes_left or request.max_bytes) if request.max_bytes else 0,
            expires=0 if request.no_wait else left_ns,
        )
        reply = self._subscription.subject.encode()
        self._session.send(self._pull_subject, reply, None, encode(self._request))

    def _on_heartbeat_timer(self) -> None:
        monitor = self._monitor
        if monitor is None or self._ended:
            return
        if monitor.missed(self._loop.time()):
            text = f"no heartbeat of consumer {self._consumer!r} for {2 * monitor.interval_s:g} s"
            self._finish(ConsumerGoneError(f"{text}: it may be gone, or the server unreachable"))
        else:
            self._timer = self._loop.call_at(monitor.deadline, self._on_heartbeat_timer)

    def _finish(self, error: Exception | None) -> None:
        if self._ended:
            return
        self.end(error)
        if self._timer is not None:
            self._timer.cancel()
        self._session.unlisten(self)
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)

    # --- connection events -----------------------------------------------------------------------

    def on_disconnected(self, error: Exception) -> None:
        """End with the error: the pull is lost with the connection."""
        self._finish(error)

    async def on_draining(self) -> None:
        """End; received messages can still be read."""
        self._finish(None)

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """End with the error if pull requests are denied."""
        if subject.encode() == self._pull_subject:
            self._finish(error)

    def on_client_closed(self, error: Exception | None) -> None:
        """End: no further messages can arrive."""
        self._finish(error)
