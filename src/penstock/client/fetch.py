"""One pull request and the messages it brings (ADR-37 "Fetch").

    msgs = await consumer.fetch(100, expires=2)            # a list
    async for msg in consumer.fetch(100, expires=2): ...   # as they come

Whoever leaves the iteration early calls `stop`, or uses the fetch in `async with`: else it goes on receiving.

It ends when everything asked for came, when the server says the pull is over, or, should the server say
nothing, a moment after its expiry. Invariant: the pull request is sent when the fetch is first awaited or
iterated, and once. Rejected: sharing one inbox among fetches (an abandoned fetch would go on receiving, and
its messages would wait for their ack wait to pass).
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

# The server ends a pull; the client only steps in when nothing was heard so long after the expiry.
GRACE_S = 5.0
WRONG_PIN = 423


class Fetch(MessageQueue, ConnectionListener):
    """Made by `Consumer.fetch`. Await it for a list, or iterate it; each once.

    As a list it raises an error only when no message came; iterating raises it after the last message.
    """

    __slots__ = (
        "_consumer",
        "_left",
        "_monitor",
        "_over_at",
        "_pins",
        "_pull_subject",
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
        """pins: group -> what the server pinned this client by (ADR-42); read and kept up here."""
        super().__init__(session.loop)
        self._session = session
        self._pull_subject = pull_subject
        self._request = request
        self._pins = {} if pins is None else pins
        self._over_at = 0.0  # loop time at which the pull expires
        self._consumer = consumer
        self._left = request.batch
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
        """Returns when no further message will come."""
        while not self._ended:
            await self._wait()

    async def __aenter__(self) -> Fetch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Gives up the rest; what arrived can still be iterated."""
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
        self._left -= 1
        if self._left <= 0:
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
        # A change of leader or a shutdown ends the pull early; the next one finds out how things are.
        self._finish(status_error(status, description, self._consumer) if refused else None)

    def _pull_without_pin(self, raw: RawMessage) -> None:
        """The pin went to another client: asks for the rest as whoever waits for its turn."""
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
            batch=self._left,
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
        """The pull is lost with the connection."""
        self._finish(error)

    async def on_draining(self) -> None:
        """What arrived stays; the rest of the pull is given up."""
        self._finish(None)

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """Pulling is not permitted."""
        if subject.encode() == self._pull_subject:
            self._finish(error)

    def on_client_closed(self, error: Exception | None) -> None:
        """Nothing more can come."""
        self._finish(error)
