"""Direct gets: read stored messages without a consumer, from any replica (ADR-31).

A single get is an ordinary request. A batch is answered by many messages on one inbox, each with the number
of remaining ones, and an end marker (204). Rejected: single gets in a loop (a round trip per message).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.client.message import RawMessage
from penstock.client.pull import status_in
from penstock.client.requests import is_no_responders
from penstock.errors import (
    DirectGetNotAllowedError,
    JetStreamApiError,
    JetStreamError,
    MessageNotFoundError,
    NoRespondersError,
    RequestTimeoutError,
)
from penstock.protocol import headers as names
from penstock.protocol.api import MsgGetRequest, encode
from penstock.protocol.durations import NS_PER_S, parse_time
from penstock.protocol.headers import Headers
from penstock.protocol.subjects import has_wildcard

if TYPE_CHECKING:
    from penstock.client.jetstream import JetStream

# Messages per batch request: hides the round trip at a moderate use of memory.
DIRECT_BATCH = 1000


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a stream. time_ns: store time, nanoseconds since 1970 UTC."""

    stream: str
    subject: str
    seq: int
    time_ns: int
    headers: Headers
    data: bytes

    @property
    def time(self) -> datetime:
        """Store time in UTC, with microseconds."""
        seconds, rest = divmod(self.time_ns, NS_PER_S)
        return datetime.fromtimestamp(seconds, tz=UTC) + timedelta(microseconds=rest // 1000)


async def direct_unanswered(js: JetStream, stream: str, subject: str) -> JetStreamError:
    """The reason for a 503 to a direct get, found by requesting the stream's info.

    Returns StreamNotFoundError, JetStreamNotEnabledError, DirectGetNotAllowedError, or another error of that
    request.
    """
    try:
        info = await js.stream_info(stream)
    except JetStreamError as error:
        return error
    if not info.config.allow_direct:
        text = (
            f"stream {stream!r} does not allow direct gets: update it with allow_direct=True, or read with "
            "get_message(direct=False) or a consumer"
        )
        return DirectGetNotAllowedError(503, 0, text, stream=stream, request=subject)
    text = f"stream {stream!r} allows direct gets, but no server answered {subject!r}; try again"
    return JetStreamApiError(503, 0, text, stream=stream, request=subject)


async def direct_get(js: JetStream, stream: str, request: MsgGetRequest) -> StoredMessage:
    """Get one message.

    Raises MessageNotFoundError, StreamNotFoundError, DirectGetNotAllowedError, and what requests raise.
    """
    subject = f"{js.prefix}.DIRECT.GET.{stream}"
    body = encode(request)
    if request.last_by_subj and not has_wildcard(request.last_by_subj):
        subject, body = f"{subject}.{request.last_by_subj}", b""
    try:
        raw = await js.session.request(subject.encode(), b"", body, js.timeout)
    except NoRespondersError as error:
        raise await direct_unanswered(js, stream, subject) from error
    return stored_message(raw, subject)


async def direct_batch(
    js: JetStream, stream: str, request: MsgGetRequest
) -> AsyncIterator[tuple[StoredMessage, int]]:
    """Yield the messages of one batch, each with the number of messages pending after it.

    An empty batch is not an error. Raises StreamNotFoundError, DirectGetNotAllowedError, JetStreamApiError
    for a rejected request, RequestTimeoutError if the answers stop before the end marker.
    """
    session = js.session
    subject = f"{js.prefix}.DIRECT.GET.{stream}"
    inbox = session.subscribe(session.new_inbox())
    try:
        await session.publish(subject.encode(), inbox.subject.encode(), None, encode(request))
        while True:
            try:
                raw = (await inbox.next(js.timeout)).raw
            except RequestTimeoutError as error:
                text = f"the batch of direct gets on {subject!r} stopped before its end"
                raise RequestTimeoutError(text, subject=subject, timeout_s=js.timeout) from error
            if is_no_responders(raw):
                raise await direct_unanswered(js, stream, subject)
            status = status_in(raw)
            if status is not None:
                if status[0] in (204, 404):
                    return
                raise JetStreamApiError(status[0], 0, status[1] or "direct get refused", request=subject)
            pending = names.value_of(raw[3] or b"", names.NUM_PENDING) or b"0"
            yield stored_message(raw, subject), int(pending)
    finally:
        await inbox.unsubscribe()


def stored_message(raw: RawMessage, request: str) -> StoredMessage:
    """Decode the answer to a direct get (ADR-31).

    Raises MessageNotFoundError for a 404, JetStreamApiError for any other status.
    """
    block = names.parse(raw[3]) if raw[3] else None
    if block is None:
        raise JetStreamApiError(500, 0, "the answer to a direct get has no headers", request=request)
    if block.status is not None:
        if block.status == 404:
            raise MessageNotFoundError(404, 10037, "no message found", request=request)
        raise JetStreamApiError(block.status, 0, block.description or "direct get refused", request=request)
    kept = Headers.unchecked({key: block.headers.get_all(key) for key in block.headers})
    try:
        stream, subject, seq, time = (kept.pop(key) for key in _DIRECT_HEADERS)
    except KeyError as error:
        text = f"the answer to a direct get has no {error} header"
        raise JetStreamApiError(500, 0, text, request=request) from error
    for extra in (names.NUM_PENDING, names.LAST_SEQUENCE):
        kept.pop(extra, None)
    return StoredMessage(stream, subject, int(seq), parse_time(time), kept, raw[4])


_DIRECT_HEADERS = (names.STREAM, names.SUBJECT, names.SEQUENCE, names.TIME_STAMP)
