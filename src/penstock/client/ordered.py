"""Ordered consumers: read a stream in order without gaps, across lost connections and consumers (ADR-17).

    ordered = stream.ordered_consumer(filter_subject="orders.>")
    async for msg in ordered.messages(): ...

Theory of operation: an ephemeral consumer without acks delivers messages with consecutive consumer sequences.
On a sequence gap, missed heartbeats, a deleted consumer or a lost connection, the consumer is replaced by one
that starts after the last received message; the reader does not notice. Each consumer has its own inbox, so
that late messages of an earlier one cannot be mistaken.

Invariant: returned stream sequences always increase, and no matching message is skipped unless the stream
itself dropped it. Rejected: push consumers with flow control (pull requests bound the buffer).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.client.config import ConsumerConfig, make_config
from penstock.client.consume import REFUSED_WAIT_S, Consume, JsMessageCallback, WarningCallback
from penstock.client.consumer import DEFAULT_FETCH_EXPIRES_S, Consumer
from penstock.client.jsmsg import JsMsg
from penstock.client.message import RawMessage
from penstock.client.pull import ConsumeOptions, consume_options, status_in
from penstock.client.requests import new_nuid
from penstock.errors import (
    ClientError,
    ConsumerGoneError,
    JetStreamApiError,
    JetStreamError,
    MisuseError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from penstock.protocol.api import AckPolicy, DeliverPolicy

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.stream import Stream

SETTINGS = frozenset(
    {
        "filter_subject",
        "filter_subjects",
        "deliver_policy",
        "opt_start_seq",
        "opt_start_time",
        "replay_policy",
        "headers_only",
        "inactive_threshold",
        "metadata",
    }
)
FETCH_ATTEMPTS = 3
# Survives pauses of the reader, yet removes abandoned consumers soon.
INACTIVE_THRESHOLD = timedelta(minutes=5)


def tokens_after_sequences(reply: bytes) -> int:
    """Number of tokens after the consumer sequence in an ack subject, -1 if it is not an ack subject.

    It is constant per consumer: 2, or more in later versions of the subject.
    """
    count = reply.count(b".") + 1
    if not reply.startswith(b"$JS.ACK.") or count == 10 or count < 9:
        return -1
    return 2 if count == 9 else count - 9


def sequences_of(reply: bytes | None, tail: int | None = None) -> tuple[int, int]:
    """(stream sequence, consumer sequence) in an ack subject; (0, 0) if it is not an ack subject.

    tail: result of `tokens_after_sequences`, if known. Splits only the needed tokens, from the right, at a
    third of the cost of `protocol.acks.parse_reply`.
    """
    if not reply:
        return 0, 0
    if tail is None:
        tail = tokens_after_sequences(reply)
    try:
        tokens = reply.rsplit(b".", tail + 2)
        return int(tokens[1]), int(tokens[2])
    except (ValueError, IndexError):
        return 0, 0


class OrderedConsumer:
    """Created by `Stream.ordered_consumer`. It keeps its position between reads: `next` continues where
    `fetch` ended. One read at a time.
    """

    def __init__(self, stream: Stream, settings: dict[str, Any]) -> None:
        for name in settings:
            if name not in SETTINGS:
                raise MisuseError(
                    f"an ordered consumer has no setting {name!r}; it takes {', '.join(sorted(SETTINGS))}"
                )
        self._stream = stream
        self._base = make_config(
            ConsumerConfig,
            {
                "inactive_threshold": INACTIVE_THRESHOLD,
                **settings,
                "ack_policy": AckPolicy.NONE,
                "max_deliver": 1,
                "mem_storage": True,
                "num_replicas": 1,
            },
        )
        self._prefix = new_nuid()
        self._serial = 0
        self._last_seq = 0
        self._last_reply: bytes | None = None
        self._consumer: Consumer | None = None
        self._next_consumer_seq = 1

    @property
    def last_seq(self) -> int:
        """Stream sequence of the last message returned to the reader; 0 before the first."""
        if self._last_reply is not None:
            self._last_seq, self._last_reply = sequences_of(self._last_reply)[0], None
        return self._last_seq

    def handed_out(self, reply: bytes | None) -> None:
        """Record the ack subject of the message returned to the reader; it is parsed lazily."""
        self._last_reply = reply

    def __repr__(self) -> str:
        return f"<OrderedConsumer of stream {self._stream.name!r} after {self.last_seq}>"

    async def renew(self, after_seq: int) -> Consumer:
        """Replace the consumer by one that starts after stream sequence `after_seq`."""
        await self._drop()
        self._serial += 1
        settings: dict[str, Any] = {"name": f"{self._prefix}_{self._serial}"}
        if after_seq:
            settings |= {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": after_seq + 1,
                "opt_start_time": None,
            }
        consumer = await self._stream.create_consumer(make_config(ConsumerConfig, settings, self._base))
        self._consumer = consumer
        self._next_consumer_seq = 1
        if self._base.deliver_policy is DeliverPolicy.NEW:
            # Later consumers start where this one does: "new" would skip what was stored before they exist.
            start_seq = consumer.cached_info.delivered.stream_seq + 1
            start = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": start_seq}
            self._base = make_config(ConsumerConfig, start, self._base)
        return consumer

    async def messages_left(self) -> int:
        """Messages that the current consumer has still to deliver; internal."""
        return (await self._consumer.info()).num_pending if self._consumer is not None else 1

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._stream.drop_consumer(consumer.name)

    async def fetch(self, max_messages: int, *, expires: float = DEFAULT_FETCH_EXPIRES_S) -> list[JsMsg]:
        """Fetch up to max_messages messages within `expires` seconds, in order.

        Raises StreamNotFoundError, DisconnectedError, RequestTimeoutError if the server does not answer,
        ConsumerGoneError if every new consumer begins with a gap.
        """
        for _ in range(FETCH_ATTEMPTS):
            consumer = self._consumer or await self.renew(self.last_seq)
            try:
                msgs = await consumer.fetch(max_messages, expires=expires)
            except (ConsumerGoneError, ClientError):
                consumer = await self.renew(self.last_seq)
                msgs = await consumer.fetch(max_messages, expires=expires)
            in_order = self._take_in_order(msgs)
            if len(in_order) == len(msgs):
                return msgs
            await self._drop()
            if in_order:
                return in_order
        text = f"{FETCH_ATTEMPTS} consumers of stream {self._stream.name!r} in a row began with a gap"
        raise ConsumerGoneError(f"{text} after sequence {self.last_seq}")

    def _take_in_order(self, msgs: list[JsMsg]) -> list[JsMsg]:
        """The messages before the first gap, recorded as returned."""
        for count, msg in enumerate(msgs):
            if sequences_of(msg.raw[2])[1] != self._next_consumer_seq:
                return msgs[:count]
            self._next_consumer_seq += 1
            self.handed_out(msg.raw[2])
        return msgs

    async def next(self, *, expires: float = DEFAULT_FETCH_EXPIRES_S) -> JsMsg:
        """The next message. Raises RequestTimeoutError if none arrives within `expires` seconds."""
        msgs = await self.fetch(1, expires=expires)
        if not msgs:
            text = f"stream {self._stream.name!r} had no further message within {expires:g} s"
            raise RequestTimeoutError(text, timeout_s=expires)
        return msgs[0]

    def consume(
        self,
        callback: JsMessageCallback | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        heartbeat: float | None = None,
        on_warning: WarningCallback | None = None,
    ) -> OrderedConsume:
        """Consume messages continuously, in order; options as for `Consumer.consume`.

        Raises MisuseError for options out of range. Iterating raises StreamNotFoundError if the stream does
        not exist or is deleted.
        """
        options = consume_options(
            max_messages=max_messages, max_bytes=max_bytes, expires=expires, heartbeat=heartbeat
        )
        consume = OrderedConsume(
            self, self._stream.session, self._stream.name, options, on_warning=on_warning
        )
        consume.start(callback)
        return consume

    async def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        expires: float | None = None,
        heartbeat: float | None = None,
    ) -> AsyncIterator[JsMsg]:
        """`consume` as an async generator: `async for msg in ordered.messages(): ...`"""
        consume = self.consume(
            max_messages=max_messages, max_bytes=max_bytes, expires=expires, heartbeat=heartbeat
        )
        async with consume:
            async for msg in consume:
                yield msg

    async def close(self) -> None:
        """Delete the server's consumer now instead of after its inactive threshold."""
        await self._drop()


class OrderedConsume(Consume):
    """A continuous ordered read, created by `OrderedConsumer.consume`."""

    __slots__ = (
        "_expected_seq",
        "_has_read",
        "_ordered",
        "_received_seq",
        "_restarted_at_seq",
        "_restarting",
        "_tail",
    )

    def __init__(
        self,
        ordered: OrderedConsumer,
        session: ClientSession,
        stream: str,
        options: ConsumeOptions,
        **more: Any,
    ) -> None:
        super().__init__(session, b"", f"of stream {stream}", options, **more)
        self._ordered = ordered
        self._expected_seq = 1  # consumer sequence of the next message
        self._received_seq = ordered.last_seq  # stream sequence of the last one received
        self._restarting = False
        self._restarted_at_seq = -1  # where the latest restart began
        self._has_read = False  # a consumer was created once, so the configuration is valid
        self._tail = -1

    def _begin(self) -> None:
        self._restart()

    def _hand_out(self, raw: RawMessage) -> JsMsg:
        self._ordered.handed_out(raw[2])
        return super()._hand_out(raw)

    def _on_raw(self, raw: RawMessage) -> None:
        if raw[3] is None or status_in(raw) is None:
            if self._tail < 0:
                self._tail = tokens_after_sequences(raw[2] or b"")
            stream_seq, consumer_seq = sequences_of(raw[2], self._tail)
            if consumer_seq != self._expected_seq:
                self._restart()
                return
            self._expected_seq += 1
            self._received_seq = stream_seq
        super()._on_raw(raw)

    def _on_terminal(self, error: Exception) -> None:
        if isinstance(error, ConsumerGoneError):
            self._restart()
        else:
            self._finish(error)

    def _on_refused(self, error: Exception) -> None:
        self._warn(error)
        self._restart(wait_s=REFUSED_WAIT_S)

    def _on_silence(self) -> None:
        self._restart()

    def on_reconnected(self) -> None:
        """Replace the consumer, which may be gone, and continue after the last message."""
        self._monitor.resume(self._loop.time())
        self._restart()

    def _restart(self, wait_s: float = 0.0) -> None:
        if self._restarting or self._ended:
            return
        self._restarting = True
        if self._restarted_at_seq == self._received_seq:
            wait_s = max(wait_s, REFUSED_WAIT_S)  # no progress since the last restart: back off
        self._restarted_at_seq = self._received_seq
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)
            self._subscription = None
        self._session.spawn(self._start_over(wait_s), "ordered consumer restart")

    async def _start_over(self, wait_s: float) -> None:
        while not self._ended:
            await asyncio.sleep(wait_s)
            wait_s = REFUSED_WAIT_S
            try:
                await self._session.until_connected()
                consumer = await self._ordered.renew(self._received_seq)
            except StreamNotFoundError as error:
                self._finish(error)
            except JetStreamApiError as error:
                if self._has_read or error.code >= 500:
                    self._warn(error)
                else:
                    self._finish(error)
            except (ClientError, JetStreamError) as error:
                self._warn(error)
            else:
                self._use(consumer)
                return

    def _use(self, consumer: Consumer) -> None:
        self._restarting = False
        self._has_read = True
        if self._ended:
            return
        self._consumer = consumer.name
        self._pull_subject = consumer.pull_subject
        self._expected_seq = 1
        self._tail = -1
        self._subscription = self._session.subscribe(self._session.new_inbox(), receive=self._on_raw)
        self._monitor.heard(self._loop.time())
        self._reset()
        self._pull()

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._session.is_connected:
            await self._ordered.close()
