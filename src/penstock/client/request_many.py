"""One request with many answers (ADR-47).

The answers have an inbox of their own. Invariant: its subscription ends with the iteration, however that
ends. A lost connection ends it with an error: the request or answers to it may be lost, and no further answer
may come.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from penstock.client.connection_listener import ConnectionListener
from penstock.client.message import Msg
from penstock.client.requests import is_no_responders
from penstock.errors import DisconnectedError, NoRespondersError, RequestTimeoutError

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession
    from penstock.client.subscription import Subscription

Sentinel = Callable[[Msg], bool]


class InboxGuard(ConnectionListener):
    """Ends an inbox when no answer can come any more."""

    __slots__ = ("_inbox", "_subject")

    def __init__(self, inbox: Subscription, subject: str) -> None:
        self._inbox = inbox
        self._subject = subject

    def on_disconnected(self, error: Exception) -> None:
        """Answers may be lost."""
        text = f"the connection was lost while {self._subject!r} waited for answers ({error})"
        self._inbox.end(DisconnectedError(text))

    def on_publish_refused(self, subject: str, error: Exception) -> None:
        """The request was denied."""
        if subject == self._subject:
            self._inbox.end(error)


def is_empty(msg: Msg) -> bool:
    """The standard sentinel: a message without a payload."""
    return not msg.data


async def gather(
    session: ClientSession,
    subject: str,
    header: bytes,
    payload: bytes,
    *,
    max_messages: int | None,
    timeout_s: float,
    stall_s: float | None,
    sentinel: Sentinel | None,
) -> AsyncIterator[Msg]:
    """Send the request and yield the answers; see `Client.request_many`."""
    loop = session.loop
    end = loop.time() + timeout_s
    inbox = session.subscribe(session.new_inbox())
    guard = InboxGuard(inbox, subject)
    session.listen(guard)
    try:
        await session.publish(session.encode_subject(subject), inbox.subject.encode(), header, payload)
        count = 0
        while max_messages is None or count < max_messages:
            wait_s = end - loop.time()
            if count and stall_s is not None:
                wait_s = min(wait_s, stall_s)
            try:
                msg = await inbox.next(max(wait_s, 0))
            except RequestTimeoutError:
                return
            if is_no_responders(msg.raw):
                raise NoRespondersError(subject)
            if sentinel is not None and sentinel(msg):
                return
            count += 1
            yield msg
    finally:
        session.unlisten(guard)
        session.unsubscribe(inbox)
        inbox.end()
