"""Requests and their answers over one shared subscription.

Every request has its own reply subject below the client's inbox, by which its answer is matched. Invariant:
an entry exists exactly as long as its call. Rejected: a subscription per request (SUB and UNSUB for each, and
three times the work in the server).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

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


class RequestTable:
    """Pending requests of one client."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._prefix = f"{session.options.inbox_prefix}.{new_nuid()}."
        self._prefix_bytes = self._prefix.encode()
        self._waiting: dict[bytes, tuple[asyncio.Future[RawMessage], bytes]] = {}
        self._count = 0
        self.inbox: Subscription | None = None

    async def request(self, subject: bytes, header: bytes, payload: bytes, timeout: float) -> RawMessage:
        """Send a request and return the answer. Raises what `Client.request` raises."""
        if self.inbox is None:
            self.inbox = self._session.subscribe(self._prefix + "*", receive=self._on_reply)
        loop = self._session.loop
        self._count += 1
        reply = b"%b%d" % (self._prefix_bytes, self._count)
        future: asyncio.Future[RawMessage] = loop.create_future()
        timer = loop.call_later(timeout, self._expire, future, subject, timeout)
        self._waiting[reply] = (future, subject)
        try:
            self._session.send(subject, reply, header, payload)
            raw = await future
        finally:
            timer.cancel()
            self._waiting.pop(reply, None)
        if is_no_responders(raw):
            raise NoRespondersError(subject.decode("utf-8", "surrogateescape"))
        return raw

    def _on_reply(self, raw: RawMessage) -> None:
        waiting = self._waiting.get(raw[1])
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(raw)

    def _expire(self, future: asyncio.Future[RawMessage], subject: bytes, timeout: float) -> None:
        if not future.done():
            name = subject.decode("utf-8", "surrogateescape")
            state = "" if self._session.is_connected else " (disconnected: the request may not have left)"
            text = f"no answer to the request on {name!r} within {timeout:g} s{state}"
            future.set_exception(RequestTimeoutError(text, subject=name, timeout_s=timeout))

    def fail(self, make_error: Callable[[str], ClientError], subject: str | None = None) -> None:
        """Fail pending requests. make_error: makes the error from the request's subject. subject: None fails
        all requests."""
        for future, asked in list(self._waiting.values()):
            name = asked.decode("utf-8", "surrogateescape")
            if not future.done() and (subject is None or name == subject):
                future.set_exception(make_error(name))
