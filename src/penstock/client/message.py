"""A received message.

Invariants: creating one parses nothing; headers are parsed when they are first looked at; nothing a message
holds refers into a connection's read buffer. Rejected: a dataclass (slower to make, and messages are made
by the hundred thousand a second) and a plain dict of headers (NATS headers keep case, order and repeats).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from penstock.errors import MisuseError
from penstock.protocol.headers import Headers, parse, status_of

if TYPE_CHECKING:
    from penstock.client.client_session import ClientSession

# What the frame parser makes of a MSG or HMSG: sid, subject, reply, header block, payload.
RawMessage: TypeAlias = tuple[int, bytes, bytes | None, bytes | None, bytes]

# What callers may pass as headers.
HeadersLike: TypeAlias = Headers | Mapping[str, str | list[str]] | Iterable[tuple[str, str]]

# What callers may pass as payload; text goes out as UTF-8.
Payload: TypeAlias = bytes | bytearray | memoryview | str


def encode_payload(payload: Payload) -> bytes:
    """The payload as bytes; bytes themselves are not copied.

    Raises TypeError for any other type: `bytes(5)` would be five zero bytes, and the bytes of a list or of an
    array are rarely what its reader expects.
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


def encode_headers(headers: HeadersLike | None) -> bytes:
    """The header block of what a caller passed, b"" for none. Raises MisuseError for what would break it."""
    if not headers:
        return b""
    made = headers if isinstance(headers, Headers) else Headers(headers)
    return made.encode()


def merge_headers(headers: HeadersLike | None, extra: Mapping[str, str]) -> Headers | None:
    """The caller's headers with `extra` set over them, as a copy; None when there are none at all."""
    if not headers and not extra:
        return None
    merged = Headers(headers.pairs() if isinstance(headers, Headers) else headers or ())
    for name, value in extra.items():
        merged[name] = value
    return merged


class Msg:
    """A message of a subscription."""

    __slots__ = ("_headers", "_raw", "_session")

    def __init__(self, session: ClientSession, raw: RawMessage) -> None:
        self._session = session
        self._raw = raw
        self._headers: Headers | None = None

    def __repr__(self) -> str:
        reply = f" reply={self.reply!r}" if self.reply else ""
        return f"<{type(self).__name__} {self.subject!r}{reply} {len(self.data)} bytes>"

    @property
    def raw(self) -> RawMessage:
        """The message as it came off the wire, undecoded."""
        return self._raw

    @property
    def subject(self) -> str:
        """Where it was published."""
        return self._raw[1].decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """Where an answer is expected; "" when none is."""
        reply = self._raw[2]
        return reply.decode("utf-8", "surrogateescape") if reply else ""

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._raw[4]

    @property
    def headers(self) -> Headers:
        """The headers; empty when there are none. Parsed at the first look.

        Raises ProtocolError when the publisher sent a broken header block.
        """
        headers = self._headers
        if headers is None:
            block = self._raw[3]
            headers = self._headers = parse(block).headers if block else Headers()
        return headers

    @property
    def status(self) -> int | None:
        """The code of a status message (503 no responders, ...); None for ordinary ones."""
        block = self._raw[3]
        return status_of(block)[0] if block else None

    async def respond(self, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Publishes an answer to the message's reply subject.

        Raises MisuseError when the sender expects none, and whatever `Client.publish` raises.
        """
        reply = self._raw[2]
        if not reply:
            raise MisuseError(f"the message on {self.subject!r} has no reply subject: nobody waits for it")
        await self._session.publish(reply, None, encode_headers(headers), encode_payload(payload))
