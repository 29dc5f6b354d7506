"""Subscriptions to push consumers: the server sends messages to a subject as it can, without pull requests.

    async for msg in await js.subscribe("orders.>", durable="billing"): ...

Pull consumers are the better choice for new programs: their reader decides what is in flight. Push consumers
serve programs that come from older clients, and consumers that other programs have made.

Theory of operation: messages wait in a queue. A flow control request of the server is answered when the
reader has taken the messages before it, so that at most one window of messages waits here. Heartbeats show
that the consumer lives: two missed ones, and each reconnect, make the subscription ask for the consumer's
info. A consumer that is gone ends the subscription, and an ordered one is replaced by a new one after the
last message.

Invariants: messages that have arrived can be read after the end; an ordered subscription returns increasing
stream sequences without a gap, unless the stream itself dropped messages. Messages that do not fit in the
queue are dropped, counted and reported as by `Subscription`; a consumer with acks delivers them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.config import ConsumerConfig, ConsumerInfo, make_config
from penstock.client.connection_listener import ConnectionListener
from penstock.client.consume import REFUSED_WAIT_S, JsMessageCallback, WarningCallback
from penstock.client.jsmsg import JsMsg
from penstock.client.keywords import SUBSCRIPTION, NatsPyNames
from penstock.client.message import RawMessage
from penstock.client.ordered import sequences_of, tokens_after_sequences
from penstock.client.pull import HeartbeatMonitor, message_size, status_error, status_in
from penstock.client.queue import MessageQueue, call_back_each
from penstock.client.requests import new_nuid
from penstock.client.subscription import SLOW_REPORT_INTERVAL_S
from penstock.client.tracing import traced
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    ConsumerGoneError,
    ConsumerNotFoundError,
    JetStreamError,
    MisuseError,
    RequestTimeoutError,
    SlowConsumerError,
    StreamNotFoundError,
)
from penstock.protocol import headers as names
from penstock.protocol.api import AckPolicy, DeliverPolicy
from penstock.protocol.numbers import natural

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream
    from penstock.client.subscription import Subscription

IDLE_HEARTBEAT_S = 5.0
FLOW_MARK = -1  # in place of the sid: a flow control request at its place between messages


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of a subscription to a push consumer.

    owned: the consumer is deleted with the subscription. auto_ack: ack what the callback has processed.
    """

    max_pending_messages: int
    max_pending_bytes: int
    owned: bool = False
    auto_ack: bool = False
    on_warning: WarningCallback | None = None


class PushSubscription(MessageQueue[RawMessage], ConnectionListener, NatsPyNames):
    """A subscription to a push consumer, made by `JetStream.subscribe` and `JetStream.bind`.

    Iterate it, use `next`, or give it a callback. dropped: messages that did not fit in the queue.
    """

    nats_py_names = SUBSCRIPTION
    __slots__ = (
        "_auto_ack",
        "_callback",
        "_deliver_subject",
        "_flow_marks",
        "_is_checking",
        "_js",
        "_last_reply",
        "_lost_after",
        "_monitor",
        "_options",
        "_pending_bytes",
        "_report_at",
        "_session",
        "_subscription",
        "_timer",
        "_warn",
        "consumer_name",
        "dropped",
        "stream_name",
        "worker",
    )

    def __init__(self, js: JetStream, stream: str, options: PushOptions) -> None:
        session = js.session
        super().__init__(session.loop)
        self._js = js
        self._session = session
        self._options = options
        self._warn: WarningCallback = options.on_warning or session.report
        self._auto_ack = options.auto_ack
        self._callback: JsMessageCallback | None = None
        self._pending_bytes = 0
        self._flow_marks = 0
        self._report_at = 0.0  # loop time of the next report while messages are dropped; 0.0 = at once
        self._deliver_subject = ""
        self._last_reply: bytes | None = None  # ack subject of the latest message
        self._lost_after = -1  # consumer sequence of the latest gap that was reported
        self._is_checking = False
        self._monitor: HeartbeatMonitor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._subscription: Subscription | None = None
        self.stream_name = stream
        self.consumer_name = ""
        self.dropped = 0
        self.worker: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        pending = self.pending_messages
        return f"<{type(self).__name__} {self.stream_name}.{self.consumer_name} pending={pending}>"

    # --- starting ----------------------------------------------------------------------------------

    def open(self, deliver_subject: str, group: str) -> None:
        """Subscribe to the deliver subject; internal."""
        self._deliver_subject = deliver_subject
        self._subscription = self._session.subscribe(deliver_subject, queue=group, receive=self._on_raw)

    def start(self, info: ConsumerInfo, callback: JsMessageCallback | None) -> None:
        """Receive from this consumer; internal."""
        self.follow(info)
        self._session.listen(self)
        if callback is not None:
            self._callback = traced(self._session.tracing, callback)
            name = f"push consumer {self.consumer_name}"
            self.worker = self._session.spawn(self._run_callback(self._callback), name)

    def follow(self, info: ConsumerInfo) -> None:
        """Take name and heartbeats from the consumer's info."""
        self.consumer_name = info.name
        if info.config.ack_policy is AckPolicy.NONE:
            self._auto_ack = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._monitor = None
        if info.config.idle_heartbeat > 0 and not self._ended:
            self._monitor = HeartbeatMonitor(info.config.idle_heartbeat, self._loop.time())
            if not self._session.is_connected:
                self._monitor.pause()
            self._timer = self._loop.call_at(self._monitor.deadline, self._on_timer)

    def abandon(self) -> None:
        """End before it was started: creating the consumer failed. Internal."""
        self._finish(None)

    # --- receiving ---------------------------------------------------------------------------------

    def _on_raw(self, raw: RawMessage) -> None:
        if self._monitor is not None:
            self._monitor.heard(self._session.read_at)
        if raw[3] is not None and (status := status_in(raw)) is not None:
            self._on_status(raw, *status)
            return
        self._last_reply = raw[2]
        self._keep(raw)

    def _keep(self, raw: RawMessage) -> bool:
        """Queue a message; False if it was dropped."""
        size = message_size(raw)
        options = self._options
        if (
            self.pending_messages >= options.max_pending_messages
            or self._pending_bytes + size > options.max_pending_bytes
        ):
            self._drop_one()
            return False
        self._items.append(raw)
        self._pending_bytes += size
        if self._getters:
            self._wake()
        return True

    def _drop_one(self) -> None:
        self.dropped += 1
        now = self._loop.time()
        if now >= self._report_at:
            self._report_at = now + SLOW_REPORT_INTERVAL_S
            self._session.report(SlowConsumerError(self._deliver_subject, self.dropped))

    def _on_status(self, raw: RawMessage, status: int, description: str) -> None:
        if status != 100:
            self._warn(status_error(status, description, self.consumer_name))
            return
        block = raw[3] or b""
        if raw[2]:
            self._on_flow_request(raw[2])
            return
        # A heartbeat; with this header it repeats a flow control request, in case the answer was lost.
        stalled = names.value_of(block, names.CONSUMER_STALLED)
        if stalled and not self._flow_marks:
            self._answer_flow(stalled)
        sent = names.value_of(block, names.LAST_CONSUMER)
        last = natural(sent) if sent is not None else None
        if last is not None:
            self._check_gap(last)

    def _on_flow_request(self, reply: bytes) -> None:
        if not self._items:
            self._answer_flow(reply)
            return
        self._items.append((FLOW_MARK, b"", reply, None, b""))
        self._flow_marks += 1

    def _answer_flow(self, reply: bytes) -> None:
        with contextlib.suppress(ClientError):  # closed or disconnected: the consumer stalls or ends anyway
            self._session.send(reply, None, None, b"")

    def _check_gap(self, sent: int) -> None:
        """sent: consumer sequence of the last message before a heartbeat."""
        received = sequences_of(self._last_reply)[1]
        if self._last_reply is not None and sent > received and self._lost_after != received:
            self._lost_after = received
            text = (
                f"{sent - received} messages of consumer {self.consumer_name!r} did not arrive after its "
                f"message {received}; a consumer with acks delivers them again"
            )
            self._warn(ConsumerGoneError(text))

    # --- handing out -------------------------------------------------------------------------------

    @property
    def pending_messages(self) -> int:
        """Number of received, unread messages."""
        return len(self._items) - self._flow_marks

    @property
    def pending_bytes(self) -> int:
        """Their size in bytes: subjects, ack subjects, headers and payloads."""
        return self._pending_bytes

    @property
    def closed(self) -> bool:
        """Whether it has ended; pending messages can still be read."""
        return self._ended

    def __aiter__(self) -> AsyncIterator[JsMsg]:
        if self._callback is not None:
            raise MisuseError(f"{self!r} has a callback; it can not be iterated as well")
        return self

    async def __anext__(self) -> JsMsg:
        while True:
            msg = self._ready()
            if msg is not None:
                return msg
            if self._ended:
                self._note_exhausted()
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._report_at = 0.0
            await self._wait()

    def _ready(self) -> JsMsg | None:
        """A message that has arrived, None if there is none. Answers the flow control before it."""
        items = self._items
        while items:
            raw = items.popleft()
            if raw[0] != FLOW_MARK:
                self._pending_bytes -= message_size(raw)
                return JsMsg(self._session, raw)
            self._flow_marks -= 1
            self._answer_flow(raw[2] or b"")
        return None

    def arrived(self, max_messages: int) -> list[JsMsg]:
        """Messages that can be read without waiting; internal."""
        msgs: list[JsMsg] = []
        while len(msgs) < max_messages and (msg := self._ready()) is not None:
            msgs.append(msg)
        return msgs

    async def next(self, timeout: float | None = None) -> JsMsg:
        """The next message. timeout: seconds; None waits indefinitely.

        Raises RequestTimeoutError if none arrives in time, ConsumerGoneError if the consumer was deleted,
        ConnectionClosedError if the subscription ended.
        """
        if self._callback is not None:
            raise MisuseError(f"{self!r} has a callback, which gets its messages")
        try:
            async with asyncio.timeout(timeout):
                msg = await self.__anext__()
                self._note_exhausted()
                return msg
        except TimeoutError:
            text = f"no message of consumer {self.consumer_name!r} within {timeout:g} s"
            raise RequestTimeoutError(text, subject=self._deliver_subject, timeout_s=timeout) from None
        except StopAsyncIteration:
            raise ConnectionClosedError(f"{self!r} has ended and everything that arrived was read") from None

    async def next_many(self, max_messages: int = 256, *, timeout: float | None = None) -> list[JsMsg]:
        """The next message and what has arrived behind it, at most max_messages: a call for many messages.

        Waits and raises as `next`.
        """
        if max_messages < 1:
            raise MisuseError(f"max_messages is {max_messages}; it must be at least 1")
        return [await self.next(timeout), *self.arrived(max_messages - 1)]

    async def _run_callback(self, callback: JsMessageCallback) -> None:
        async def handle(msg: JsMsg) -> None:
            result = callback(msg)
            if inspect.isawaitable(result):
                await result
            if self._auto_ack and not msg.is_settled:
                await msg.ack()

        try:
            await call_back_each(self.__anext__, handle, self._session.report_callback)
        except (ClientError, JetStreamError) as error:
            self._session.report(error)

    # --- is the consumer there? ----------------------------------------------------------------------

    async def consumer_info(self) -> ConsumerInfo:
        """Request the consumer's configuration and state. Raises ConsumerNotFoundError."""
        return (await self._js.consumer(self.stream_name, self.consumer_name)).cached_info

    def _on_timer(self) -> None:
        monitor = self._monitor
        if self._ended or monitor is None:
            return
        now = self._loop.time()
        if monitor.missed(now):
            self._on_silence()
        self._timer = self._loop.call_at(max(monitor.deadline, now + 0.01), self._on_timer)

    def _on_silence(self) -> None:
        quiet_s = 2 * self._monitor.interval_s if self._monitor is not None else 0.0
        text = f"no heartbeat of consumer {self.consumer_name!r} for {quiet_s:g} s, though it exists"
        self._check_later(ConsumerGoneError(text))

    def _check_later(self, warning: Exception | None = None) -> None:
        if not self._is_checking and not self._ended:
            self._is_checking = True
            self._session.spawn(self._check(warning), f"check consumer {self.consumer_name}")

    async def _check(self, warning: Exception | None) -> None:
        """End with ConsumerGoneError if the consumer does not exist. warning: reported if it does."""
        try:
            await self.consumer_info()
            if warning is not None:
                self._warn(warning)
        except (ConsumerNotFoundError, StreamNotFoundError) as error:
            text = f"consumer {self.consumer_name!r} of stream {self.stream_name!r} was deleted"
            gone = ConsumerGoneError(text)
            gone.__cause__ = error
            self._finish(gone)
        except (ClientError, JetStreamError) as error:
            self._warn(error)
        finally:
            self._is_checking = False

    # --- connection events ---------------------------------------------------------------------------

    def on_disconnected(self, error: Exception) -> None:
        """Heartbeats can not come."""
        if self._monitor is not None:
            self._monitor.pause()

    def on_reconnected(self) -> None:
        """The deliver subject is subscribed again; the consumer may have been deleted meanwhile."""
        if self._monitor is not None:
            self._monitor.resume(self._loop.time())
        self._check_later()

    async def on_draining(self) -> None:
        """End, and wait until the user has taken all received messages."""
        await self.drain()
        await self.exhausted()

    def on_client_closed(self, error: Exception | None) -> None:
        """End; received messages can still be read."""
        self._finish(error)

    # --- ending --------------------------------------------------------------------------------------

    def _finish(self, error: Exception | None) -> None:
        if self._ended:
            return
        self.end(error)
        if self._timer is not None:
            self._timer.cancel()
        self._session.unlisten(self)
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)

    async def unsubscribe(self) -> None:
        """End at once. Received messages can still be read. A consumer that `subscribe` made without a
        durable name is deleted; a durable one stays."""
        self._finish(None)
        await self._delete_owned()

    async def drain(self) -> None:
        """End without losing messages in flight; with a callback, wait until it has processed them."""
        if not self._ended and self._subscription is not None:
            self._session.send_unsub(self._subscription.sid, 0)
            try:
                await self._session.flush(self._session.options.drain_timeout)
            finally:
                self._finish(None)
        if self.worker is not None and self.worker is not asyncio.current_task():
            await asyncio.wait([self.worker])
        await self._delete_owned()

    async def _delete_owned(self) -> None:
        if self._options.owned and self.consumer_name:
            await self._delete(self.consumer_name)

    async def _delete(self, consumer: str) -> None:
        if self._session.is_connected:
            await self._js.drop_consumer(self.stream_name, consumer)

    async def __aenter__(self) -> PushSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.unsubscribe()


class OrderedPushSubscription(PushSubscription):
    """An ordered subscription, made by `JetStream.subscribe` with ordered=True: no acks, no state on the
    server, and a new consumer after a gap, a missed heartbeat, a deleted consumer or a lost connection."""

    __slots__ = (
        "_base",
        "_expected_seq",
        "_is_restarting",
        "_made",
        "_received_seq",
        "_restarted_at_seq",
        "_restarting",
        "_tail",
    )

    def __init__(self, js: JetStream, stream: str, options: PushOptions, base: ConsumerConfig) -> None:
        super().__init__(js, stream, options)
        self._base = base
        self._expected_seq = 1  # consumer sequence of the next message
        self._received_seq = 0  # stream sequence of the last one received
        self._restarted_at_seq = -1
        self._is_restarting = False
        self._restarting: asyncio.Task[None] | None = None
        self._made: list[str] = []  # consumers that may exist
        self._tail = -1

    async def renew(self) -> ConsumerInfo:
        """Make a consumer that starts after the last received message, and subscribe to it; internal."""
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)
        self._expected_seq, self._tail, self._last_reply = 1, -1, None
        self.open(self._session.new_inbox(), "")
        name, old = new_nuid(), list(self._made)
        self._made.append(name)
        settings: dict[str, Any] = {"name": name, "deliver_subject": self._deliver_subject}
        if self._received_seq:
            settings |= {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": self._received_seq + 1,
                "opt_start_time": None,
            }
        made = make_config(ConsumerConfig, settings, self._base)
        info = (await self._js.create_consumer(self.stream_name, made)).cached_info
        for one in old:
            await self._delete(one)
            self._made.remove(one)
        return info

    def _keep(self, raw: RawMessage) -> bool:
        if self._tail < 0:
            self._tail = tokens_after_sequences(raw[2] or b"")
        stream_seq, consumer_seq = sequences_of(raw[2], self._tail)
        if consumer_seq != self._expected_seq or not super()._keep(raw):
            self._restart()
            return False
        self._expected_seq += 1
        self._received_seq = stream_seq
        return True

    def _check_gap(self, sent: int) -> None:
        if sent >= self._expected_seq:
            self._restart()

    def _on_silence(self) -> None:
        self._restart()

    def on_reconnected(self) -> None:
        """The consumer may be gone, and messages were lost with the connection."""
        if self._monitor is not None:
            self._monitor.resume(self._loop.time())
        self._restart()

    def _restart(self) -> None:
        if self._is_restarting or self._ended:
            return
        self._is_restarting = True
        if self._subscription is not None:
            self._session.unsubscribe(self._subscription)  # what still comes from the old consumer is dropped
            self._subscription = None
        wait_s = 0.0
        if self._restarted_at_seq == self._received_seq:
            wait_s = REFUSED_WAIT_S  # no progress since the last restart: back off
        self._restarted_at_seq = self._received_seq
        name = f"ordered subscription to {self.stream_name}"
        self._restarting = self._session.spawn(self._start_over(wait_s), name)

    async def _start_over(self, wait_s: float) -> None:
        while not self._ended:
            await asyncio.sleep(wait_s)
            wait_s = REFUSED_WAIT_S
            try:
                await self._session.until_connected()
                info = await self.renew()
            except StreamNotFoundError as error:
                self._finish(error)
            except (ClientError, JetStreamError) as error:
                self._warn(error)
            else:
                self._is_restarting = False
                self.follow(info)
                return

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        if self._restarting is not None and self._restarting is not asyncio.current_task():
            self._restarting.cancel()

    async def _delete_owned(self) -> None:
        # Requests of one connection are handled in their order: this one after a create in flight.
        for name in list(self._made):
            await self._delete(name)
        self._made.clear()
