"""Reads messages of a stream that pass filters, forward or from the newest back, without a consumer.

Bounds: one call reads MESSAGES_READ_MAX messages and asks WINDOWS_MAX times. What is left then, the caller
asks for again from the place the answer names.

Backwards there is no request for "the message before": windows of sequences are read forward, the newest
window first, and grow while they hold little.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from penstock.client.direct import StoredMessage
from penstock.client.stream import Stream
from penstock.errors import MessageNotFoundError

MESSAGES_READ_MAX = 2000
WINDOWS_MAX = 200
WINDOW_MAX = 2000
BATCH = 32
"""Messages of one direct request: each may have the server's maximum payload."""
EVERYTHING = ">"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """subject: a filter, "" = all. header: a name, "" = none; value: text in one of its values. text: bytes
    in the payload. first, last: sequences, both included."""

    subject: str = ""
    header: str = ""
    value: str = ""
    text: bytes = b""
    first: int = 1
    last: int = 2**63

    def takes(self, message: StoredMessage) -> bool:
        """Whether a message of the right subject and sequence passes."""
        if self.header:
            values = [value for name, value in message.headers.pairs() if name.lower() == self.header.lower()]
            if not any(self.value in value for value in values):
                return False
        return self.text in message.data if self.text else True


@dataclass(slots=True)
class FoundMessages:
    """messages: in stream order. more: sequence from which, or before which, to go on; 0 = all read."""

    messages: list[StoredMessage] = field(default_factory=list)
    read: int = 0
    more: int = 0


async def read_forward(stream: Stream, wanted: MessageFilter, limit: int) -> FoundMessages:
    """The first `limit` messages from `wanted.first` on."""
    found = FoundMessages()
    async for message in _between(stream, wanted.subject, wanted.first, wanted.last):
        if len(found.messages) >= limit or found.read >= MESSAGES_READ_MAX:
            found.more = message.seq
            break
        found.read += 1
        if wanted.takes(message):
            found.messages.append(message)
    return found


async def read_newest(stream: Stream, wanted: MessageFilter, limit: int) -> FoundMessages:
    """The last `limit` messages up to `wanted.last`."""
    found = FoundMessages()
    state = stream.cached_info.state
    first, last = max(wanted.first, state.first_seq), min(wanted.last, state.last_seq)
    if wanted.subject and last == state.last_seq:
        try:
            last = (await stream.get_last_message(wanted.subject)).seq
        except MessageNotFoundError:
            return found
    width, windows = limit * 2, 0
    while last >= first and len(found.messages) < limit:
        if windows >= WINDOWS_MAX or found.read >= MESSAGES_READ_MAX:
            found.more = last + 1
            return found
        start = max(first, last - width + 1)
        inside, read = [], 0
        async for message in _between(stream, wanted.subject, start, last):
            read += 1
            if wanted.takes(message):
                inside.append(message)
        found.messages[:0] = inside
        found.read += read
        windows += 1
        last = start - 1
        if read < limit:
            width = min(WINDOW_MAX, width * 4)
    if len(found.messages) > limit:
        del found.messages[:-limit]
        found.more = found.messages[0].seq
    elif last >= first:
        found.more = last + 1
    return found


async def seq_at(stream: Stream, time_ns: int) -> int:
    """Sequence of the first message stored at this time (ns) or later, or one beyond the last."""
    state = stream.cached_info.state
    low, high = max(1, state.first_seq), state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        try:
            message = await stream.get_message(middle, next_by_subject=EVERYTHING)
        except MessageNotFoundError:
            high = middle
            continue
        if message.time_ns >= time_ns:
            high = middle
        else:
            low = message.seq + 1
    return low


async def _between(stream: Stream, subject: str, first: int, last: int) -> AsyncIterator[StoredMessage]:
    """The messages with a sequence from `first` to `last`, in order."""
    seq = max(1, first)
    direct = stream.config.allow_direct
    while seq <= last:
        got = 0
        source = _batch(stream, subject, seq) if direct else _single(stream, subject, seq)
        async for message in source:
            if message.seq > last:
                return
            got += 1
            seq = message.seq + 1
            yield message
        if not got:
            return


async def _batch(stream: Stream, subject: str, seq: int) -> AsyncIterator[StoredMessage]:
    # Read to its end: an iterator that is left alone keeps its subscription.
    for message in [
        one async for one in stream.get_messages(seq, subject=subject or EVERYTHING, max_messages=BATCH)
    ]:
        yield message


async def _single(stream: Stream, subject: str, seq: int) -> AsyncIterator[StoredMessage]:
    try:
        yield await stream.get_message(seq, next_by_subject=subject or EVERYTHING)
    except MessageNotFoundError:
        return
