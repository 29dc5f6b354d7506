"""State of a client across connections: reconnecting, subscriptions, pending requests, the out buffer.

Theory of operation: sending encodes a frame into the out buffer and returns. The buffer is written once per
iteration of the event loop, or at once when it is large; only then may `publish` wait (for the socket, or one
iteration so that the loop can read). When the connection is lost, pending requests fail, subscriptions are
kept and sent again on the next connection, and publishes accumulate in the out buffer up to its limit.

Invariants: `connection` is not None exactly in the states CONNECTED and DRAINING; while it is None the out
buffer holds only publishes; a sid is never reused; every task is in `_tasks` until it is done. A session
belongs to one event loop.

Rejected: resending what was in the socket when a connection broke (it may have arrived; JetStream's
deduplication exists for that), and failing publishes while disconnected (most outages are short).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.client.connection import Connection, error_of_text
from penstock.client.connection_listener import ConnectionListener
from penstock.client.connector import Connector
from penstock.client.info import ServerInfo
from penstock.client.message import Immutable, Msg, RawMessage
from penstock.client.options import Options
from penstock.client.requests import RequestTable, new_nuid
from penstock.client.subscription import Receiver, Subscription
from penstock.errors import (
    ClientError,
    ConnectionClosedError,
    ConnectionDrainingError,
    DisconnectedError,
    InvalidSubjectError,
    MaxPayloadError,
    MisuseError,
    PermissionsError,
    ProtocolError,
    RequestTimeoutError,
)
from penstock.kernels.wire.output import OutBuffer, PublishBuffer, encode_pub, encode_sub, encode_unsub
from penstock.protocol.subjects import check_filter, check_subject, is_valid_queue

if TYPE_CHECKING:
    from penstock.client.client import Client

log = logging.getLogger("penstock.client")

# Above this size the out buffer is written at once, and publish yields to the event loop.
FLUSH_BYTES = 128 * 1024
# A message of this size goes to the socket without a copy in the out buffer. Below, a system call for each
# message costs more than the copies.
DIRECT_BYTES = 32 * 1024
# Size of the cache of validated, encoded subjects; it is cleared when full.
SUBJECT_CACHE_MAX = 4096
CLOSE_FLUSH_TIMEOUT_S = 2.0
_SID = itemgetter(0)
_PERMISSIONS = re.compile(r'permissions violation for (publish|subscription)[^"]*"([^"]*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClientStats:
    """Counts of one client since it was created; bytes are those of headers and payloads.

    Messages count as sent when they are in the out buffer, and as received when they are read from the
    socket, whatever becomes of them afterwards.
    """

    in_messages: int
    in_bytes: int
    out_messages: int
    out_bytes: int
    reconnects: int
    errors: int
    """Asynchronous errors, those that `on_error` gets."""


class ClientState(Enum):
    """Life-cycle state of a client."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    DRAINING = "draining"
    CLOSED = "closed"


_NEXT_STATES = {
    ClientState.CONNECTING: {ClientState.CONNECTED, ClientState.CLOSED},
    ClientState.CONNECTED: {ClientState.RECONNECTING, ClientState.DRAINING, ClientState.CLOSED},
    ClientState.RECONNECTING: {ClientState.CONNECTED, ClientState.CLOSED},
    ClientState.DRAINING: {ClientState.CLOSED},
    ClientState.CLOSED: set[ClientState](),
}


class ClientSession:
    """Internal state of one `Client`, shared by the parts of this package."""

    connection_type: ClassVar[type[Connection]] = Connection

    def __init__(self, client: Client, servers: str | Iterable[str], options: Options) -> None:
        self.client = client  # argument of event callbacks
        self.options = options
        self.tracing = options.tracing
        self.loop = asyncio.get_running_loop()
        self.last_error: Exception | None = None
        self.connection: Connection | None = None
        self._set_max_payload(ServerInfo().max_payload)  # the servers' default until the first INFO
        self.state = ClientState.CONNECTING
        self.subjects: dict[str, bytes] = {}
        self.out = PublishBuffer()
        self.read_at = 0.0  # loop time of the latest read with messages; one clock reading per batch
        self.connector = Connector(self, servers)
        self.flush_scheduled = False
        self._has_responded = False  # since the latest read
        self._subscriptions: dict[int, Subscription] = {}
        self._last_sid = 0
        self.requests = RequestTable(self)
        self._listeners: set[ConnectionListener] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lost_at = 0.0
        self._in_messages = 0  # received on earlier connections
        self._in_bytes = 0
        self._large_messages = 0  # those that did not go through the out buffer
        self._large_bytes = 0
        self._reconnects = 0
        self._errors = 0
        self._connected_or_closed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether a connection is currently established."""
        return self.connection is not None

    @property
    def is_connecting(self) -> bool:
        """Whether a connection is wanted: the first one, or one that replaces a lost one."""
        return self.state in (ClientState.CONNECTING, ClientState.RECONNECTING)

    def stats(self) -> ClientStats:
        """See `Client.stats`."""
        now = self.connection.received if self.connection is not None else (0, 0)
        return ClientStats(
            in_messages=self._in_messages + now[0],
            in_bytes=self._in_bytes + now[1],
            out_messages=self.out.messages + self._large_messages,
            out_bytes=self.out.message_bytes + self._large_bytes,
            reconnects=self._reconnects,
            errors=self._errors,
        )

    def _set_state(self, state: ClientState) -> None:
        assert state in _NEXT_STATES[self.state], f"{self.state} -> {state}"
        self.state = state

    def _set_max_payload(self, size: int) -> None:
        self.max_payload = size
        self._set_connection(self.connection)

    def _set_connection(self, connection: Connection | None) -> None:
        self.connection = connection
        # The largest payload that `Client.publish` may encode without any of `send`'s checks, -1 for none.
        is_plain = connection is not None and self.tracing is None
        self.max_buffered = min(self.max_payload, DIRECT_BYTES - 1) if is_plain else -1

    def check_open(self) -> None:
        """Raises ConnectionClosedError when the client is closed."""
        if self.state is ClientState.CLOSED:
            why = f" ({self.last_error})" if self.last_error is not None else ""
            raise ConnectionClosedError(f"the client is closed{why}; connect again")

    # --- sending -------------------------------------------------------------------------------

    def encode_subject(self, subject: str) -> bytes:
        """Validate and encode a publish subject. Raises InvalidSubjectError."""
        encoded = self.subjects.get(subject)
        if encoded is None:
            encoded = check_subject(subject).encode("utf-8", "surrogateescape")
            if len(self.subjects) >= SUBJECT_CACHE_MAX:
                self.subjects.clear()
            self.subjects[subject] = encoded
        return encoded

    def send(self, subject: bytes, reply: bytes | None, header: bytes | None, payload: Immutable) -> bool:
        """Encode a PUB or HPUB into the out buffer. Raises what `Client.publish` raises.

        A large one goes to the socket at once. Returns True then: the caller should call `flush_output`.
        """
        size = len(payload) + len(header) if header else len(payload)
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)
        connection = self.connection
        if connection is None:
            self._check_buffer(size + len(subject))
        elif size >= DIRECT_BYTES and self.is_on_loop():
            self._write_large(connection, subject, reply, header, payload)
            return True
        encode_pub(self.out, subject, reply, header, payload)
        # After the frame is in the buffer: threads of penstock.sync publish while the event loop flushes.
        if not self.flush_scheduled and self.connection is not None:
            self.schedule_flush()
        return False

    def send_now(self, subject: bytes, reply: bytes | None, header: bytes | None, payload: Immutable) -> None:
        """`send`, and write the out buffer without waiting for the next iteration of the event loop."""
        connection = self.connection
        size = len(payload) + len(header) if header else len(payload)
        if connection is None or size >= DIRECT_BYTES or size > self.max_payload:
            self.send(subject, reply, header, payload)
            return
        encode_pub(self.out, subject, reply, header, payload)
        if not connection.flush_now():
            self.schedule_flush()

    async def respond(self, subject: bytes, header: bytes | None, payload: Immutable) -> None:
        """`publish` of a response, or `send_now`."""
        if self._responds_now():
            self.send_now(subject, None, header, payload)
        else:
            await self.publish(subject, None, header, payload)

    def _responds_now(self) -> bool:
        """Whether a response is to be written at once: the first one after a read, for its requester may wait
        for nothing else. Those that follow are written together."""
        if self._has_responded or self.out.size:
            return False
        self._has_responded = True
        return True

    def is_on_loop(self) -> bool:
        """Whether the caller runs on the session's event loop."""
        return True

    def _write_large(
        self,
        connection: Connection,
        subject: bytes,
        reply: bytes | None,
        header: bytes | None,
        payload: Immutable,
    ) -> None:
        """Write a PUB or HPUB behind what is in the out buffer, without two copies of its payload."""
        to = b"%b %b" % (subject, reply) if reply else subject
        size = len(payload)
        if header:
            size += len(header)
            head = b"HPUB %b %d %d\r\n%b" % (to, len(header), size, header)
        else:
            head = b"PUB %b %d\r\n" % (to, size)
        connection.write_behind((head, payload, b"\r\n"))
        self._large_messages += 1
        self._large_bytes += size

    async def publish(
        self, subject: bytes, reply: bytes | None, header: bytes | None, payload: Immutable
    ) -> None:
        """`send`, then `flush_output` if much is to be sent."""
        if self.send(subject, reply, header, payload) or self.out.size >= FLUSH_BYTES:
            await self.flush_output()

    def _check_buffer(self, size: int) -> None:
        self.check_open()
        limit = self.options.reconnect_buffer_bytes
        if self.out.size + size > limit:
            raise DisconnectedError(
                f"disconnected, and the reconnect buffer is full ({self.out.size} of {limit} bytes); "
                "wait for on_reconnected or raise reconnect_buffer_bytes"
            )

    def _flush(self) -> None:
        self.flush_scheduled = False
        if self.connection is not None:
            self.connection.flush()

    def schedule_flush(self) -> None:
        """Write the out buffer in this iteration of the event loop."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self._flush)

    async def flush_output(self) -> None:
        """Write the out buffer. Waits while the socket is full, else yields to the event loop once."""
        connection = self.connection
        if connection is None:
            return
        connection.flush()
        if connection.paused:
            await connection.writable()
        else:
            await asyncio.sleep(0)

    async def until_connected(self) -> Connection:
        """Wait for a connection and return it. Raises ConnectionClosedError."""
        while self.connection is None:
            await self._connected_or_closed.wait()
            self.check_open()
        return self.connection

    async def flush(self, timeout: float) -> None:
        """See `Client.flush`."""
        try:
            async with asyncio.timeout(timeout):
                await (await self.until_connected()).ping()
        except TimeoutError:
            text = f"flush: no answer from the server within {timeout:g} s (state: {self.state.value})"
            raise RequestTimeoutError(text, timeout_s=timeout) from None

    async def request(
        self, subject: bytes, header: bytes, payload: bytes, timeout: float | None = None
    ) -> RawMessage:
        """Send a request and return the first answer, raw. Raises what `Client.request` raises."""
        limit = self.check_request(timeout)
        return await self.requests.request(subject, header, payload, limit)

    def check_request(self, timeout: float | None) -> float:
        """The time limit of a request, in seconds. Raises where no request can be sent."""
        if self.state is ClientState.DRAINING:
            raise ConnectionDrainingError("the client is draining: it takes no new requests")
        self.check_open()
        return self.options.request_timeout if timeout is None else timeout

    async def pause(self, seconds: float) -> None:
        """Wait before a request is sent again."""
        await asyncio.sleep(seconds)

    # --- subscriptions -------------------------------------------------------------------------

    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        receive: Receiver | None = None,
        internal: bool = False,
        max_pending_messages: int | None = None,
        max_pending_bytes: int | None = None,
    ) -> Subscription:
        """Register a subscription and send SUB. receive: gets raw messages instead of the queue. internal: a
        part of the client ends it, not `drain`; with `receive` in any case.

        Raises InvalidSubjectError, ConnectionClosedError, ConnectionDrainingError.
        """
        self.check_open()
        check_filter(subject)
        if self.state is ClientState.DRAINING:
            raise ConnectionDrainingError("the client is draining: it takes no new subscriptions")
        if queue and not is_valid_queue(queue):
            raise InvalidSubjectError(f"queue group {queue!r} contains whitespace")
        self._last_sid += 1
        options = self.options
        subscription = Subscription(
            self,
            subject,
            queue,
            self._last_sid,
            max_pending_messages=max_pending_messages or options.max_pending_messages,
            max_pending_bytes=max_pending_bytes or options.max_pending_bytes,
        )
        subscription.is_internal = internal or receive is not None
        if receive is not None:
            subscription.receive = receive
            subscription.receive_many = None
        self._subscriptions[subscription.sid] = subscription
        if self.connection is not None:
            self._encode_sub(self.out, subscription)
            self.schedule_flush()
        return subscription

    @staticmethod
    def _encode_sub(out: OutBuffer, subscription: Subscription) -> None:
        queue = subscription.queue.encode() if subscription.queue else None
        subject = subscription.subject.encode("utf-8", "surrogateescape")
        encode_sub(out, subject, queue, b"%d" % subscription.sid)

    def send_unsub(self, sid: int, max_messages: int) -> None:
        # While disconnected nothing is sent: the next connection subscribes only to what is left.
        if self.connection is not None:
            encode_unsub(self.out, b"%d" % sid, max_messages)
            self.schedule_flush()

    def new_inbox(self) -> str:
        """A unique subject for replies."""
        return f"{self.options.inbox_prefix}.{new_nuid()}"

    def forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.sid, None)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Unsubscribe at once, without waiting."""
        if self._subscriptions.pop(subscription.sid, None) is not None:
            self.send_unsub(subscription.sid, 0)

    # --- ending --------------------------------------------------------------------------------

    async def drain(self, timeout: float | None = None) -> None:
        """See `Client.drain`."""
        limit = self.options.drain_timeout if timeout is None else timeout
        if self.state is ClientState.CLOSED:
            return
        if self.state is not ClientState.CONNECTED:
            await self.close()
            return
        self._set_state(ClientState.DRAINING)
        subscriptions = [one for one in self._subscriptions.values() if not one.is_internal]
        listeners = [self.spawn(listener.on_draining(), "drain") for listener in self._listeners]
        for subscription in subscriptions:
            self.send_unsub(subscription.sid, 0)
        end = self.loop.time() + limit
        try:
            await self.flush(limit)
            for subscription in subscriptions:
                self.forget(subscription)
                subscription.end()
            current = asyncio.current_task()
            rest: list[asyncio.Future[None]] = [one.exhausted() for one in subscriptions]
            rest += [one.worker for one in subscriptions if one.worker not in (None, current)]
            rest += listeners
            if rest:
                _, late = await asyncio.wait(rest, timeout=max(end - self.loop.time(), 0))
                if late:
                    text = f"drain: {len(late)} subscriptions were not read to their end within {limit:g} s"
                    self.report(RequestTimeoutError(text, timeout_s=limit))
        except ClientError as error:
            self.report(error)
        await self.close()

    async def close(self) -> None:
        """See `Client.close`."""
        if self.state is ClientState.CLOSED:
            return
        connection = self.connection
        if connection is not None:
            # The round trip ensures that the server has read everything before the socket closes.
            with contextlib.suppress(ClientError, ProtocolError, OSError):
                await self.flush(CLOSE_FLUSH_TIMEOUT_S)
        self.finish(None)
        if connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_FLUSH_TIMEOUT_S):
                    await asyncio.shield(connection.closed)

    def finish(self, error: Exception | None) -> None:
        """Close the session and everything in it. error: the cause, None if the user closed it."""
        if self.state is ClientState.CLOSED:
            return
        self._set_state(ClientState.CLOSED)
        if error is not None:
            self.last_error = error
        connection = self.connection
        self._set_connection(None)
        if connection is not None:
            self._count_received(connection)
            connection.close()
        self.requests.fail(lambda asked: ConnectionClosedError(f"the client closed while {asked!r} waited"))
        end = ConnectionClosedError(f"the client closed: {error}") if error is not None else None
        for subscription in self._subscriptions.values():
            subscription.end(end)
        self._subscriptions.clear()
        for listener in list(self._listeners):
            listener.on_client_closed(error)
        self._listeners.clear()
        current = asyncio.current_task() if self._in_task() else None
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._connected_or_closed.set()
        self._emit(self.options.on_closed)

    @staticmethod
    def _in_task() -> bool:
        try:
            return asyncio.current_task() is not None
        except RuntimeError:
            return False

    # --- connection events ---------------------------------------------------------------------

    def on_messages(self, batch: list[RawMessage], size: int) -> None:
        """ConnectionOwner: dispatch messages in order."""
        self.read_at = self.loop.time()
        self._has_responded = False
        subscriptions = self._subscriptions
        # A busy subscription gets what one read brought in one call.
        sid = batch[0][0]
        if len(batch) > 1 and sid == batch[-1][0] and len(set(map(_SID, batch))) == 1:
            subscription = subscriptions.get(sid)
            if subscription is None:
                return
            if subscription.receive_many is not None:
                subscription.receive_many(batch, size)
                return
        for raw in batch:
            subscription = subscriptions.get(raw[0])
            if subscription is not None:
                subscription.receive(raw)

    def on_info(self, info: ServerInfo) -> None:
        """ConnectionOwner: the cluster changed, or the server enters lame duck mode."""
        self._set_max_payload(info.max_payload)
        if self.connector.discover(info):
            self._emit(self.options.on_discovered)
        if info.ldm:
            self._emit(self.options.on_lame_duck)

    def on_server_error(self, text: str) -> None:
        """ConnectionOwner: the server sent -ERR."""
        found = _PERMISSIONS.match(text)
        if found is None:
            self.report(error_of_text(text))
            return
        operation, subject = found[1].lower(), found[2]
        error = PermissionsError(f"the server says: {text}", operation=operation, subject=subject)
        self.report(error)
        if operation == "publish":
            self.requests.fail(lambda _: error, subject)
            for listener in list(self._listeners):
                listener.on_publish_refused(subject, error)
            return
        for subscription in list(self._subscriptions.values()):
            if subscription.subject == subject:
                self.forget(subscription)
                subscription.end(error)

    def on_lost(self, connection: Connection, error: Exception | None) -> None:
        """ConnectionOwner: the connection was lost; reconnect or close."""
        if connection is self.connection:
            reason = error or DisconnectedError(f"the connection to {connection.url} was closed")
            self._lose(connection, reason, forced=False)

    def force_reconnect(self) -> None:
        """See `Client.force_reconnect`."""
        self.check_open()
        if self.state is ClientState.DRAINING:
            raise ConnectionDrainingError("the client is draining: it does not reconnect")
        if not self.options.reconnect:
            raise MisuseError("force_reconnect() needs a client with reconnect=True")
        connection = self.connection
        if connection is None:
            self.connector.hurry()
            return
        connection.flush()  # what was published before is sent on this connection
        self._lose(connection, DisconnectedError(f"force_reconnect() left {connection.url}"), forced=True)
        connection.close()

    def _count_received(self, connection: Connection) -> None:
        messages, size = connection.received
        self._in_messages += messages
        self._in_bytes += size

    def _lose(self, connection: Connection, reason: Exception, *, forced: bool) -> None:
        self._set_connection(None)
        self._connected_or_closed.clear()
        self._count_received(connection)
        # Its first frame may have been sent in part; its requests fail below, and its subscriptions are made
        # again. Publishes in it are lost as those are which the socket had taken: at most once.
        self.out.clear()
        if self.state is ClientState.DRAINING or not self.options.reconnect:
            log.warning("lost the connection to %s: %s; the client is closed", connection.url, reason)
            self.finish(reason)
            return
        self._set_state(ClientState.RECONNECTING)
        self.last_error = reason
        self._lost_at = self.loop.time()
        level = logging.INFO if forced else logging.WARNING
        log.log(level, "lost the connection to %s: %s; reconnecting", connection.url, reason)

        def lost(asked: str) -> ClientError:
            return DisconnectedError(
                f"the connection to {connection.url} was lost while {asked!r} waited for its answer; "
                f"whether it was handled is not known ({reason})"
            )

        self.requests.fail(lost)
        for listener in list(self._listeners):
            listener.on_disconnected(reason)
        self._emit(self.options.on_disconnected, reason)
        self.spawn(self.connector.reconnect(forced=forced), "reconnect")

    async def connect(self) -> None:
        """Make the first connection. Raises NoServersError, AuthorizationError."""
        await self.connector.connect()

    def adopt(self, connection: Connection) -> None:
        """Use a new connection: restore the subscriptions, then send what was published meanwhile."""
        is_first = self.state is ClientState.CONNECTING
        out = OutBuffer()
        for subscription in self._subscriptions.values():
            self._encode_sub(out, subscription)
            if subscription.max_messages:
                left = subscription.max_messages - subscription.received
                encode_unsub(out, b"%d" % subscription.sid, left)
        connection.write_first(out.take())
        self.max_payload = connection.info.max_payload
        self._set_connection(connection)
        self._set_state(ClientState.CONNECTED)
        self._connected_or_closed.set()
        connection.flush()
        # On a first connection too: with retry_on_failed_connect, consumers may have been waiting for it.
        for listener in list(self._listeners):
            listener.on_reconnected()
        if is_first:
            self._emit(self.options.on_connected)
            return
        self._reconnects += 1
        log.info("reconnected to %s after %.1f s", connection.url, self.loop.time() - self._lost_at)
        self._emit(self.options.on_reconnected)

    # --- tasks and events ----------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.loop.create_task(work, name=f"penstock {name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    def _emit(self, callback: Callable[..., Any] | None, *details: Exception) -> None:
        """Call a user's event callback and log what it raises."""
        if callback is None:
            return
        try:
            result = callback(self.client, *details)
        except Exception:
            log.exception("an event callback failed")
            return
        if inspect.iscoroutine(result):
            self.spawn(result, "event callback")

    def report(self, error: Exception) -> None:
        """Report an asynchronous error to `on_error`, or log it."""
        self.last_error = error
        self._errors += 1
        if self.options.on_error is None:
            log.warning("%s: %s", type(error).__name__, error)
        else:
            self._emit(self.options.on_error, error)

    def report_callback(self, error: Exception, msg: Msg) -> None:
        """Report an error raised by a user's message callback."""
        self.last_error = error
        self._errors += 1
        if self.options.on_error is None:
            log.error("the callback for a message on %s raised", msg.subject, exc_info=error)
        else:
            self._emit(self.options.on_error, error)

    def listen(self, listener: ConnectionListener) -> None:
        self._listeners.add(listener)

    def unlisten(self, listener: ConnectionListener) -> None:
        self._listeners.discard(listener)
