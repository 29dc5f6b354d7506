"""Requests and their answers over one shared subscription.

Every request has its own reply subject below the client's inbox, by which its answer is matched. Invariant:
an entry exists exactly as long as its call. Rejected: a subscription per request (SUB and UNSUB for each, and
three times the work in the server).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

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


class RequestTable:
    """Pending requests of one client."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._prefix = f"{session.options.inbox_prefix}.{new_nuid()}."
        self._prefix_bytes = self._prefix.encode()
        self._waiting: dict[bytes, tuple[RequestWaiter, bytes]] = {}
        self._numbers = count(1)  # threads of penstock.sync take numbers, too
        self.inbox: Subscription | None = None

    async def request(self, subject: bytes, header: bytes, payload: bytes, timeout: float) -> RawMessage:
        """Send a request and return the answer. Raises what `Client.request` raises."""
        self.open_inbox()
        loop = self._session.loop
        future: asyncio.Future[RawMessage] = loop.create_future()
        reply = self.begin(subject, future)
        timer = loop.call_later(timeout, self._expire, future, subject, timeout)
        try:
            self._session.send(subject, reply, header, payload)
            raw = await future
        finally:
            timer.cancel()
            self.end(reply)
        return answer_of(raw, subject)

    def open_inbox(self) -> None:
        """Subscribe to the answers, before the first request. On the event loop."""
        if self.inbox is None:
            self.inbox = self._session.subscribe(self._prefix + "*", receive=self._on_reply)

    def begin(self, subject: bytes, waiter: RequestWaiter) -> bytes:
        """Have a waiter get the answer to a request on a subject. The request's reply subject."""
        reply = b"%b%d" % (self._prefix_bytes, next(self._numbers))
        self._waiting[reply] = (waiter, subject)
        return reply

    def end(self, reply: bytes) -> None:
        """The call has ended: nothing waits for the answer any more."""
        self._waiting.pop(reply, None)

    def _on_reply(self, raw: RawMessage) -> None:
        waiting = self._waiting.get(raw[1])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(raw)

    def _expire(self, future: asyncio.Future[RawMessage], subject: bytes, timeout: float) -> None:
        if not future.done():
            future.set_exception(self.timeout_error(subject, timeout))

    def timeout_error(self, subject: bytes, timeout: float) -> RequestTimeoutError:
        """The error for a request without an answer within `timeout` seconds."""
        name = subject.decode("utf-8", "surrogateescape")
        state = "" if self._session.is_connected else " (disconnected: the request may not have left)"
        text = f"no answer to the request on {name!r} within {timeout:g} s{state}"
        return RequestTimeoutError(text, subject=name, timeout_s=timeout)

    def fail(self, make_error: Callable[[str], ClientError], subject: str | None = None) -> None:
        """Fail pending requests. make_error: makes the error from the request's subject. subject: None fails
        all requests."""
        for future, asked in list(self._waiting.values()):
            name = asked.decode("utf-8", "surrogateescape")
            if not future.done() and (subject is None or name == subject):
                future.set_exception(make_error(name))
