"""The async client that `penstock.sync` wraps: publishes and acks may come from any thread.

A publish appends a frame to the out buffer and has the event loop flush it. The kernel that encodes the frame
holds the interpreter's lock from beginning to end, so a frame is in the buffer as a whole or not at all, and
the frames of one thread are in their order. Invariant: a frame is encoded before the flags that a flush is to
come are read, and the loop clears a flag before it takes the buffer; so no frame is left behind.

The first publish wakes the loop. While a thread publishes without a pause the loop flushes every millisecond
instead, without being woken: a wake-up costs a system call and a fight for the interpreter's lock. A thread
that answers requests publishes less often, so its answers do not wait. At FLUSH_BYTES the thread waits for
the loop.

A round trip to the loop's thread costs 30 to 60 us, a publish 1 us: without this, publishing would be fifty
times slower than in the async client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from penstock.client.client import Client
from penstock.client.client_session import ClientSession, ClientState
from penstock.client.options import Options
from penstock.errors import MisuseError
from penstock.sync.loop_thread import loop_thread

# Size of the out buffer at which a publishing thread waits for the loop to send it. Waiting costs about as
# much as a hundred publishes, so it is more than the async client's.
FLUSH_BYTES = 512 * 1024
# So many messages since the latest flush are a thread that publishes without a pause.
BUSY_MESSAGES = 32
BUSY_FLUSH_S = 0.001


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

    def schedule_flush(self) -> None:
        if threading.get_ident() == self._thread.ident:
            super().schedule_flush()
        elif not self._serves_threads:
            self._serves_threads = True
            self.loop.call_soon_threadsafe(self._flush_for_threads)

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
