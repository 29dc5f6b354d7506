"""Requests and their answers over one shared subscription.

Every request has its own reply subject below the client's inbox, by which its answer is matched. A request
that waits alone is written at once; others are written together, once per iteration of the event loop. One
timer serves all: it runs at the earliest deadline there was when it was set, fails what is due and is set for
the earliest deadline left.

Invariants: an entry exists exactly as long as its call; while an entry with a deadline waits, the timer is
set for that deadline or an earlier one. Rejected: a subscription per request (SUB and UNSUB for each, and
three times the work in the server); a timer per request, which is nearly always cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import count
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.client.message import RawMessage
from penstock.errors import ClientError, NoRespondersError, RequestTimeoutError
from penstock.protocol.ids import NuidGenerator

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

NO_RESPONDERS_START = b"NATS/1.0 503"

# Source of unique ids for inboxes, batches, schedules, and consumers without a name.
new_nuid = NuidGenerator(secrets.randbelow)


def is_no_responders(raw: RawMessage) -> bool:
    """Whether the message is the server's "no responders" status (503)."""
    header = raw[3]
    return header is not None and not raw[4] and header.startswith(NO_RESPONDERS_START)


def answer_of(raw: RawMessage, subject: bytes) -> RawMessage:
    """The answer. Raises NoRespondersError for the server's own."""
    if is_no_responders(raw):
        raise NoRespondersError(subject.decode("utf-8", "surrogateescape"))
    return raw


class RequestWaiter(Protocol):
    """Gets the answer to a request, on the event loop's thread: a future, or a thread of penstock.sync."""

    def done(self) -> bool:
        """Whether it has an answer or an error."""

    def set_result(self, result: RawMessage, /) -> None:
        """The answer came."""

    def set_exception(self, exception: Exception, /) -> None:
        """No answer will come."""


class _AskedRequest(NamedTuple):
    """deadline: loop time at which the request fails, `timeout` seconds after it was sent; inf where the
    waiter counts the time itself."""

    waiter: RequestWaiter
    subject: bytes
    deadline: float
    timeout: float


class RequestTable:
    """Pending requests of one client."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._prefix = f"{session.options.inbox_prefix}.{new_nuid()}."
        self._prefix_bytes = self._prefix.encode()
        self._waiting: dict[bytes, _AskedRequest] = {}
        self._numbers = count(1)  # threads of penstock.sync take numbers, too
        self.inbox: Subscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    async def request(self, subject: bytes, header: bytes, payload: bytes, timeout: float) -> RawMessage:
        """Send a request and return the answer. Raises what `Client.request` raises."""
        if self.inbox is None:
            self.open_inbox()
        session = self._session
        is_alone = not self._waiting
        future: asyncio.Future[RawMessage] = session.loop.create_future()
        deadline = session.loop.time() + timeout
        reply = self.begin(subject, future, deadline, timeout)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        try:
            if is_alone:
                session.send_now(subject, reply, header, payload)
            else:
                session.send(subject, reply, header, payload)
            raw = await future
        finally:
            self.end(reply)
        return answer_of(raw, subject)

    def open_inbox(self) -> None:
        """Subscribe to the answers, before the first request. On the event loop."""
        if self.inbox is None:
            self.inbox = self._session.subscribe(self._prefix + "*", receive=self._on_reply)

    def begin(
        self, subject: bytes, waiter: RequestWaiter, deadline: float = inf, timeout: float = inf
    ) -> bytes:
        """Have a waiter get the answer to a request on a subject. The request's reply subject."""
        reply = b"%b%d" % (self._prefix_bytes, next(self._numbers))
        self._waiting[reply] = _AskedRequest(waiter, subject, deadline, timeout)
        return reply

    def end(self, reply: bytes) -> None:
        """The call has ended: nothing waits for the answer any more."""
        self._waiting.pop(reply, None)

    def _on_reply(self, raw: RawMessage) -> None:
        waiting = self._waiting.get(raw[1])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(raw)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._session.loop.call_at(deadline, self._on_timer) if deadline < inf else None

    def _on_timer(self) -> None:
        """Fail the requests that are due."""
        # The loop runs a timer up to its clock's resolution too early.
        now = max(self._session.loop.time(), self._timer_at)
        earliest = inf
        for waiting in list(self._waiting.values()):
            if waiting.deadline > now:
                earliest = min(earliest, waiting.deadline)
            elif not waiting.waiter.done():
                waiting.waiter.set_exception(self.timeout_error(waiting.subject, waiting.timeout))
        self._set_timer(earliest)

    def timeout_error(self, subject: bytes, timeout: float) -> RequestTimeoutError:
        """The error for a request without an answer within `timeout` seconds."""
        name = subject.decode("utf-8", "surrogateescape")
        state = "" if self._session.is_connected else " (disconnected: the request may not have left)"
        text = f"no answer to the request on {name!r} within {timeout:g} s{state}"
        return RequestTimeoutError(text, subject=name, timeout_s=timeout)

    def fail(self, make_error: Callable[[str], ClientError], subject: str | None = None) -> None:
        """Fail pending requests. make_error: makes the error from the request's subject. subject: None fails
        all requests."""
        for waiting in list(self._waiting.values()):
            name = waiting.subject.decode("utf-8", "surrogateescape")
            if not waiting.waiter.done() and (subject is None or name == subject):
                waiting.waiter.set_exception(make_error(name))
        if subject is None:
            self._set_timer(inf)  # a client that is closed leaves nothing in its loop
