"""Ordered reads that mark the end of what was stored before them; the base of watches.

An ordered consumer delivers the messages, so a watch survives lost connections: it continues after the last
message received. Of the initial messages of a watch of the last message per subject, it may then deliver an
older message of a subject before the last one.

The mark has its place among the messages: it follows as many as the consumer had pending when it was created,
or a message with none pending after it. Rejected: only the latter, which never comes while others keep
writing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from penstock.client.consumer import Consumer
from penstock.client.jsmsg import JsMsg
from penstock.client.message import RawMessage
from penstock.client.ordered import OrderedConsume, OrderedConsumer
from penstock.client.pull import consume_options
from penstock.errors import BucketNotFoundError, JetStreamError, StreamNotFoundError
from penstock.protocol.api import DeliverPolicy

if TYPE_CHECKING:
    from penstock.client.stream import Stream

T = TypeVar("T")

# The end of the initial messages, in their queue.
_MARK: RawMessage = (0, b"", None, None, b"")


class MarkedConsume(OrderedConsume):
    """An ordered read that returns a marker after the initial messages: see `is_mark`."""

    __slots__ = ("_initial_left", "_is_initial", "started")

    def __init__(self, *arguments: Any, mark: bool) -> None:
        super().__init__(*arguments)
        self._is_initial = mark
        self._initial_left = 0
        self.started: asyncio.Future[None] = self._loop.create_future()

    @property
    def failure(self) -> Exception | None:
        """Why the read ended; None while it has not, and after `stop`."""
        return self._error

    @property
    def is_reading(self) -> bool:
        """Whether it has a consumer and a connection, so that messages can come."""
        return not self._restarting and self._session.is_connected

    @staticmethod
    def is_mark(msg: JsMsg) -> bool:
        """Whether it is the marker."""
        return msg.raw is _MARK

    def _use(self, consumer: Consumer) -> None:
        super()._use(consumer)
        # Of a consumer after a lost connection too: it has pending what is left of the initial messages.
        self._initial_left = consumer.cached_info.num_pending
        if self._is_initial and not self._initial_left:
            self._mark()
        if not self.started.done():
            self.started.set_result(None)

    def _on_raw(self, raw: RawMessage) -> None:
        before = self._received_seq
        super()._on_raw(raw)
        if self._is_initial and self._received_seq != before:
            self._initial_left -= 1
            if self._initial_left <= 0 or self._pending_after(raw) == 0:
                self._mark()

    def _pending_after(self, raw: RawMessage) -> int:
        """Number of messages that the consumer had to deliver after this one."""
        return int((raw[2] or b"").rsplit(b".", self._tail - 1)[1])

    def _mark(self) -> None:
        self._is_initial = False
        self._items.append(_MARK)
        self._wake()

    def _hand_out(self, raw: RawMessage) -> JsMsg:
        return JsMsg(self._session, raw) if raw is _MARK else super()._hand_out(raw)

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        if not self.started.done():
            self.started.set_result(None)


def marked_consume(
    stream: Stream, settings: dict[str, Any], *, mark: bool = True, max_messages: int | None = None
) -> MarkedConsume:
    """Start an ordered read of a stream. settings: as for `Stream.ordered_consumer`.

    max_messages: how many may be received and not yet returned.
    """
    options = consume_options(max_messages=max_messages)
    ordered = OrderedConsumer(stream, settings)
    consume = MarkedConsume(ordered, stream.session, stream.name, options, mark=mark)
    consume.start()
    return consume


class Watch(ABC, Generic[T]):
    """Base of watches. Iterate it, or use it in `async with`, which ends it.

    It yields what was stored before, None once, and what is stored later; without the first two if its
    consumer starts with new messages. In `async with` it has started before the block runs, so that it misses
    nothing that the block stores.
    """

    def __init__(self, stream: Stream, settings: dict[str, Any]) -> None:
        self._stream = stream
        self._settings = settings
        self._consume: MarkedConsume | None = None
        self._is_initial_done = False

    @abstractmethod
    def _decode(self, msg: JsMsg) -> T | None:
        """What the watch yields for a message; None to leave it out."""

    @abstractmethod
    def _not_found(self) -> BucketNotFoundError:
        """The error for a stream that does not exist."""

    @property
    def is_initial_done(self) -> bool:
        """Whether everything that was stored before was returned."""
        return self._is_initial_done

    def _start(self) -> MarkedConsume:
        if self._consume is None:
            mark = self._settings["deliver_policy"] is not DeliverPolicy.NEW
            self._is_initial_done = not mark
            self._consume = marked_consume(self._stream, self._settings, mark=mark)
        return self._consume

    def __aiter__(self) -> Self:
        self._start()
        return self

    async def __anext__(self) -> T | None:
        consume = self._start()
        while True:
            try:
                msg = await consume.__anext__()
            except StreamNotFoundError as error:
                raise self._not_found() from error
            if MarkedConsume.is_mark(msg):
                self._is_initial_done = True
                return None
            found = self._decode(msg)
            if found is not None:
                return found

    async def initial(self) -> list[T]:
        """What was stored before; later iterations continue after it. Empty with updates_only."""
        self._start()
        found: list[T] = []
        while not self._is_initial_done:
            one = await self.__anext__()
            if one is not None:
                found.append(one)
        return found

    async def stop(self) -> None:
        """End the watch and delete its consumer. Iterations end."""
        if self._consume is not None:
            await self._consume.__aexit__()

    async def __aenter__(self) -> Self:
        """Start. Raises BucketNotFoundError, and the error of the server if it refuses the consumer."""
        consume = self._start()
        try:
            await asyncio.shield(consume.started)
        except BaseException:
            consume.stop()
            raise
        error = consume.failure
        if isinstance(error, StreamNotFoundError):
            raise self._not_found() from error
        if isinstance(error, JetStreamError):
            raise error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
