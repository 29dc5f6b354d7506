"""The HTTP connections of the monitoring port, none of which stays open for ever.

uvicorn ends a connection only between a response and the next byte: a request that is half sent, a body that
goes on, and a reader that takes nothing keep theirs. Here each has a deadline, whatever it does:

- REQUEST_TIMEOUT_S for a whole head, from the beginning or from the last response on. It is the official
  server's `ReadHeaderTimeout`, and there is no longer time to be idle;
- ANSWER_TIMEOUT_S for the page to be made and taken.

CONNECTIONS_MAX bounds how many there are. When another one comes, the one goes that has waited longest
without a request: who asks at once, as scrapers do, gets in, though somebody opens connections all the time.
Rejected: uvicorn's `limit_concurrency`, with which whoever opens many connections keeps everybody else out.

Imported by the monitor's thread alone, once clients can connect.
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
        waiting: those that no request has come from, the one that waits longest first; shared by all.
        about: as of H11Protocol.
    """

    def __init__(self, waiting: dict[MonitorConnection, None], **about: Any) -> None:
        super().__init__(**about)
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None
        self._answered: object = None  # the request that has its deadline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > CONNECTIONS_MAX:
            next(iter(self._waiting))._end()  # this one, when all others are being answered

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
        """Answers what is no HTTP, unless a page has begun: then the connection just closes.

        A request whose body is broken may have been given to the application already. Its page must not be
        sent after the 400: h11 refuses that, and the error would be logged as one of ours.
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
        if self.transport.get_write_buffer_size():  # it is still reading its last page
            self._deadline = self.loop.call_later(ANSWER_TIMEOUT_S, self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._stop_waiting()
        self.transport.abort()
