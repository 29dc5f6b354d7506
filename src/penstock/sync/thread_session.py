"""The async client that `penstock.sync` wraps: publishes and acks may come from any thread.

A publish appends a frame to the out buffer and has the event loop flush it. The kernel that encodes the frame
holds the interpreter's lock from beginning to end, so a frame is in the buffer as a whole or not at all, and
the frames of one thread are in their order. Invariant: a frame is encoded before the flags that a flush is to
come are read, and the loop clears a flag before it takes the buffer; so no frame is left behind.

The first publish wakes the loop. While a thread publishes without a pause the loop flushes every millisecond
instead, without being woken: a wake-up costs a system call and a fight for the interpreter's lock. A thread
that answers requests publishes less often, so its answers do not wait. At FLUSH_BYTES the thread waits for
the loop.

A request of a call that does nothing else is sent in the calling thread as well, which waits for a lock that
the loop's thread releases with the answer. Its coroutine runs in the calling thread from beginning to end
(`LoopThread.run_here`): what it awaits are requests, and pauses between two of them, which block instead of
suspending.

A round trip to the loop's thread costs 30 to 60 us, a publish 1 us: without this, publishing would be fifty
times slower than in the async client.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from penstock.client.client import Client
from penstock.client.client_session import ClientSession, ClientState
from penstock.client.message import RawMessage
from penstock.client.options import Options
from penstock.client.requests import answer_of
from penstock.errors import MisuseError
from penstock.sync.loop_thread import loop_thread

# Size of the out buffer at which a publishing thread waits for the loop to send it. Waiting costs about as
# much as a hundred publishes, so it is more than the async client's.
FLUSH_BYTES = 512 * 1024
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

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread = loop_thread()
        self._thread.sessions.add(self)
        self._serves_threads = False
        self._counted = 0

    def leave_to_parent(self) -> None:
        """Close in a child process, without a word to the server: the connection is the parent's."""
        self.state = ClientState.CLOSED
        self.connection = None
        self.last_error = MisuseError("it was connected before fork(), by the parent process")

    def is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def schedule_flush(self) -> None:
        if threading.get_ident() == self._thread.ident:
            super().schedule_flush()
        elif not self._serves_threads:
            self._serves_threads = True
            try:
                self.loop.call_soon_threadsafe(self._flush_for_threads)
            except BaseException:  # out of a signal handler: the next publish has it flushed
                self._serves_threads = False
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
        self._serves_threads = False
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
            self.send(subject, reply, header, payload)
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

    def publish_here(self, subject: bytes, reply: bytes | None, header: bytes | None, payload: bytes) -> None:
        """`publish` in the calling thread."""
        self.send(subject, reply, header, payload)
        if self.out.size >= FLUSH_BYTES:
            self.flush_here()

    def flush_here(self) -> None:
        """`flush_output` in the calling thread: blocks until the socket has room."""
        if self.connection is not None:
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
