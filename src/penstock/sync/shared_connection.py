"""A connection whose out buffer any thread may write to the socket, not only the event loop's.

Theory of operation: a thread that sends a request writes it itself. To wake the loop's thread for that costs
as much as the rest of the request. What the socket does not take stays in the out buffer, for the loop.

Invariants: who writes, or takes the out buffer to write it, holds `_writing`, so that frames leave whole and
in the order in which they were encoded. While the connection is shared, the out buffer may begin in the
middle of a frame, so it is written before anything else. The connection is shared while it is its session's:
later, the out buffer is the next one's, and the socket's number may be another socket's. A thread removes
from the buffer exactly what it sends, in one call: what a signal handler raises comes before it or after it.

Rejected: the transport's `write` in other threads (asyncio's transports belong to their loop's thread), and a
socket of its own for each thread (a connection for each, and no order among them).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from penstock.client.connection import Connection, is_plain_socket
from penstock.client.message import Immutable


class SharedConnection(Connection):
    """A connection of a client of `penstock.sync`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._writing = threading.RLock()
        self._fileno = -1  # while it is shared

    def share(self) -> None:
        """Threads may write from now on, if that is a plain socket; on the loop."""
        transport = self._transport
        if transport is not None and is_plain_socket(transport):
            self._fileno = transport.get_extra_info("socket").fileno()

    def unshare(self) -> None:
        """No thread but the loop's writes any more; on the loop."""
        with self._writing:
            self._fileno = -1

    def _write(self, data: bytes) -> None:
        with self._writing:
            if self._fileno >= 0:
                super().flush()
            super()._write(data)

    def flush(self) -> None:
        with self._writing:
            super().flush()

    def write_behind(self, parts: Sequence[Immutable]) -> None:
        with self._writing:
            super().write_behind(parts)

    def flush_now(self) -> bool:
        with self._writing:
            transport = self._transport
            if self._fileno < 0 or transport is None or transport.get_write_buffer_size():
                return False
            return self._out.send_to(self._fileno)
