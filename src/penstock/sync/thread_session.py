"""The async client that `penstock.sync` wraps: publishes and acks may come from any thread.

A publish appends a frame to the out buffer and has the event loop flush it. The kernel that encodes the frame
holds the interpreter's lock from beginning to end, so a frame is in the buffer as a whole or not at all, and
the frames of one thread are in their order. Invariant: a frame is encoded before the flags that a flush is to
come are read, and the loop clears a flag before it takes the buffer; so no frame is left behind.

The first publish wakes the loop. While a thread publishes without a pause the loop flushes every millisecond
instead, without being woken: a wake-up costs a system call and a fight for the interpreter's lock. A thread
that answers requests publishes less often, so its answers do not wait. At FLUSH_BYTES a thread writes the
buffer to the socket itself; at WAIT_BYTES, as the socket is full, it waits for the loop.

A request of a call that does nothing else is written to the socket in the calling thread, with what was
published before it. The thread then waits for a lock that the loop's thread releases with the answer. Its
coroutine runs in the calling thread from beginning to end
(`LoopThread.run_here`): what it awaits are requests, and pauses between two of them, which block instead of
suspending.

A round trip to the loop's thread costs 30 to 60 us, a publish 1 us: without this, publishing would be fifty
times slower than in the async client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

from penstock.client.client import Client
from penstock.client.client_session import ClientSession, ClientState
from penstock.client.connection import Connection
from penstock.client.message import RawMessage
from penstock.client.options import Options
from penstock.client.requests import answer_of
from penstock.errors import MisuseError
from penstock.kernels.wire.output import encode_pub
from penstock.sync.loop_thread import loop_thread
from penstock.sync.shared_connection import SharedConnection

# Size of the out buffer at which a thread that publishes writes it to the socket: the server works while the
# thread publishes more. The loop's thread would get its turn only when the thread waits.
FLUSH_BYTES = 64 * 1024
# The same for acks: the server delivers more messages for them.
FLUSH_ACKS_BYTES = 16 * 1024
# Size at which it waits for the loop, as the socket is full. Waiting costs as much as a hundred publishes.
WAIT_BYTES = 512 * 1024
# So many messages since the latest flush are a thread that publishes without a pause.
BUSY_MESSAGES = 32
BUSY_FLUSH_S = 0.001


class _WaitingThread:
    """A thread that waits for the answer to its request: a RequestWaiter."""

    __slots__ = ("_answered", "_error", "_raw")

    def __init__(self) -> None:
        self._answered = threading.Lock()  # held until there is an answer
        self._answered.acquire()
        self._raw: RawMessage | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._raw is not None or self._error is not None

    def set_result(self, result: RawMessage, /) -> None:
        self._raw = result
        self._answered.release()

    def set_exception(self, exception: Exception, /) -> None:
        self._error = exception
        self._answered.release()

    def wait(self, timeout_s: float) -> RawMessage | None:
        """The answer; None if there is none in time. Raises the error."""
        self._answered.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX))
        if self._error is not None:
            raise self._error
        return self._raw


class ThreadSession(ClientSession):
    """A session whose `send` and `publish` may be called from any thread."""

    connection_type: ClassVar[type[Connection]] = SharedConnection

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread = loop_thread()
        self._thread.sessions.add(self)
        self.flushes_for_threads = False  # the loop flushes what threads publish
        self._counted = 0

    def leave_to_parent(self) -> None:
        """Close in a child process, without a word to the server: the connection is the parent's."""
        self.state = ClientState.CLOSED
        self.connection = None
        self.last_error = MisuseError("it was connected before fork(), by the parent process")

    def is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _set_connection(self, connection: Connection | None) -> None:
        before = self.connection
        if connection is not before:
            if before is not None:
                cast("SharedConnection", before).unshare()
            if connection is not None:
                cast("SharedConnection", connection).share()
        super()._set_connection(connection)

    def schedule_flush(self) -> None:
        if threading.get_ident() == self._thread.ident:
            super().schedule_flush()
        elif not self.flushes_for_threads:
            self.flushes_for_threads = True
            try:
                self.loop.call_soon_threadsafe(self._flush_for_threads)
            except BaseException:  # out of a signal handler: the next publish has it flushed
                self.flushes_for_threads = False
                raise

    def _flush_for_threads(self) -> None:
        """Send what threads have published; see the module's docstring."""
        messages = self.out.messages - self._counted
        self._counted += messages
        connection = self.connection
        if messages >= BUSY_MESSAGES or (connection is not None and connection.paused):
            if connection is not None and not connection.paused:
                connection.flush()
            self.loop.call_later(BUSY_FLUSH_S, self._flush_for_threads)
            return
        self.flushes_for_threads = False
        if connection is not None:
            connection.flush()

    async def request(
        self, subject: bytes, header: bytes, payload: bytes, timeout: float | None = None
    ) -> RawMessage:
        """The same on the loop; in another thread it blocks, and never suspends its coroutine."""
        if threading.get_ident() == self._thread.ident:
            return await super().request(subject, header, payload, timeout)
        limit = self.check_request(timeout)
        requests = self.requests
        if requests.inbox is None:
            self._thread.call(requests.open_inbox)
        waiter = _WaitingThread()
        reply = requests.begin(subject, waiter)
        try:
            self.send_now(subject, reply, header, payload)
            raw = waiter.wait(limit)
        finally:
            requests.end(reply)
        if raw is None:
            raise requests.timeout_error(subject, limit)
        return answer_of(raw, subject)

    async def pause(self, seconds: float) -> None:
        """The same on the loop; in another thread it blocks, and never suspends its coroutine."""
        if threading.get_ident() == self._thread.ident:
            await super().pause(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - no event loop runs this coroutine

    def respond_here(self, subject: bytes, header: bytes | None, payload: bytes) -> None:
        """`respond` in the calling thread."""
        if self._responds_now():
            self.send_now(subject, None, header, payload)
        else:
            self.publish_here(subject, None, header, payload)

    def publish_here(self, subject: bytes, reply: bytes | None, header: bytes | None, payload: bytes) -> None:
        """`publish` in the calling thread."""
        if header is None and len(payload) <= self.max_buffered:
            encode_pub(self.out, subject, reply, None, payload)
            if not self.flushes_for_threads:
                self.schedule_flush()
        else:
            self.send(subject, reply, header, payload)
        if self.out.size >= FLUSH_ACKS_BYTES:
            self.flush_here()

    def flush_here(self) -> None:
        """`flush_output` in the calling thread: writes what the socket takes, and blocks if much is left."""
        connection = self.connection
        if connection is not None and not connection.flush_now() and self.out.size >= WAIT_BYTES:
            self._thread.run(self.flush_output())


class ThreadClient(Client):
    """The async client behind a `penstock.sync.Client`."""

    _session_type: ClassVar[type[ClientSession]] = ThreadSession

    @classmethod
    async def start(
        cls, servers: str | Iterable[str], options: Options, created: Callable[[ThreadClient], None]
    ) -> None:
        """Connect. created: called before, as callbacks need the client while it connects."""
        client = cls(servers, options)
        created(client)
        await client._connect()
