"""A received message.

Invariants: creating a message parses nothing; headers are parsed on first access; a message holds no
references into a connection's read buffer. Messages are structs of msgspec, which compiled code creates:
clients create hundreds of thousands of messages a second. Rejected: classes with an `__init__` (0.1 us more
for each message) and a plain dict of headers (NATS headers keep case, order and repeated names).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.client.keywords import MESSAGE, NatsPyNames
from penstock.errors import MisuseError
from penstock.protocol.headers import Headers, parse, status_of

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

# A MSG or HMSG as the frame parser returns it: sid, subject, reply, header block, payload.
RawMessage: TypeAlias = tuple[int, bytes, bytes | None, bytes | None, bytes]

# Accepted types of headers.
HeadersLike: TypeAlias = Headers | Mapping[str, str | list[str]] | Iterable[tuple[str, str]]

# Bytes that never change: a view is one of bytes.
Immutable: TypeAlias = bytes | memoryview

# Accepted types of payloads; text is encoded as UTF-8.
Payload: TypeAlias = bytes | bytearray | memoryview | str


def encode_payload(payload: Payload) -> bytes:
    """Convert a payload to bytes; bytes are not copied.

    Raises TypeError for another type: `bytes(5)` would be five zero bytes, and the bytes of a list or an
    array are rarely what the receiver expects.
    """
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise TypeError(
        f"a payload is bytes, bytearray, memoryview or str, not {type(payload).__name__}; "
        "encode it first, for example json.dumps(value).encode()"
    )


def frozen_payload(payload: Payload) -> Immutable:
    """`encode_payload` for what is sent at once: a view of bytes, which can not change, is not copied."""
    if isinstance(payload, memoryview) and type(payload.obj) is bytes and payload.contiguous:
        return payload.cast("B")
    return encode_payload(payload)


def encode_headers(headers: HeadersLike | None) -> bytes:
    """Encode headers as a block, b"" if there are none. Raises MisuseError for an invalid header."""
    if not headers:
        return b""
    made = headers if isinstance(headers, Headers) else Headers(headers)
    return made.encode()


def merge_headers(headers: HeadersLike | None, extra: Mapping[str, str]) -> Headers | None:
    """A copy of the headers updated with `extra`; None if both are empty."""
    if not headers and not extra:
        return None
    merged = Headers(headers.pairs() if isinstance(headers, Headers) else headers or ())
    for name, value in extra.items():
        merged[name] = value
    return merged


class Msg(NatsPyNames, msgspec.Struct, eq=False):
    """A message of a subscription."""

    nats_py_names = MESSAGE
    _session: ClientSession
    _raw: RawMessage
    _headers: Headers | None = None

    def __repr__(self) -> str:
        reply = f" reply={self.reply!r}" if self.reply else ""
        return f"<{type(self).__name__} {self.subject!r}{reply} {len(self.data)} bytes>"

    @property
    def raw(self) -> RawMessage:
        """The message as received, undecoded."""
        return self._raw

    @property
    def subject(self) -> str:
        """The subject it was published to."""
        return self._raw[1].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The reply subject; "" if there is none."""
        reply = self._raw[2]
        return reply.decode("utf-8", "surrogateescape") if reply else ""

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._raw[4]

    @property
    def headers(self) -> Headers:
        """The headers, possibly empty. Parsed on first access.

        Raises ProtocolError for a malformed header block.
        """
        headers = self._headers
        if headers is None:
            block = self._raw[3]
            headers = self._headers = parse(block).headers if block else Headers()
        return headers

    @property
    def status(self) -> int | None:
        """The code of a status message (503 no responders, ...); None for an ordinary message."""
        block = self._raw[3]
        return status_of(block)[0] if block else None

    async def respond(self, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Publish an answer to the message's reply subject.

        Raises MisuseError if it has no reply subject, and what `Client.publish` raises.
        """
        reply = self._raw[2]
        if not reply:
            raise MisuseError(
                f"the message on {self.subject!r} has no reply subject: no response is expected"
            )
        await self._session.respond(reply, encode_headers(headers), encode_payload(payload))
