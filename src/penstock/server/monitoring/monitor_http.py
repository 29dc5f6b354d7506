"""HTTP connections of the monitoring port, with deadlines.

uvicorn limits only the idle time between a response and the next byte: an incomplete request, an endless
body, or a reader that takes nothing keep their connection open. This module adds deadlines:
- REQUEST_TIMEOUT_S for a complete request head, from the start or from the last response. It matches the
  official server's `ReadHeaderTimeout`, and also limits idle connections;
- ANSWER_TIMEOUT_S to build and send the page.

CONNECTIONS_MAX limits their number. A new connection then replaces the one that has waited longest without a
request, so that scrapers, which send their request at once, are served even under a flood of connections.
Rejected: uvicorn's `limit_concurrency`, with which a client that opens many connections locks out all others.

Imported by the monitor's thread only, after clients can connect.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
CONNECTIONS_MAX = 128


class MonitorConnection(H11Protocol):
    """One connection.

    Args:
        waiting: connections without a request, longest waiting first; shared by all connections.
        about: arguments of H11Protocol.
    """

    def __init__(self, waiting: dict[MonitorConnection, None], **about: Any) -> None:
        super().__init__(**about)
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None
        self._answered: object = None  # the request with a running deadline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > CONNECTIONS_MAX:
            next(iter(self._waiting))._end()  # itself, if all others have requests

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not self._answered:
            self._answered = self.cycle
            self._stop_waiting()
            self._deadline = self.loop.call_later(ANSWER_TIMEOUT_S, self._end)

    def send_400_response(self, msg: str) -> None:
        """Replies 400 to invalid HTTP, unless a response has begun: then it only closes the connection.

        The application may already process a request whose body is invalid. Its page must not follow the 400:
        h11 would raise, and the error would be logged as a fault of the server.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        self._stop_waiting()
        self._waiting[self] = None
        self._deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self._on_silence)

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_silence(self) -> None:
        if self.transport.get_write_buffer_size():  # still sending the last page
            self._deadline = self.loop.call_later(ANSWER_TIMEOUT_S, self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._stop_waiting()
        self.transport.abort()
