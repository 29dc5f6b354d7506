"""Tickets: what an answer to a request needs on the server that gives it.

The meta leader proposes a command with the ticket of its request. The server that answers, the leader of
the new stream's group or the meta leader, finds in it where the answer goes.

A request that waits for the next meta leader is passed on whole. Several servers may hold the same one, since
all of them got it: SeenRequests tells which ones a new leader has served.
"""

from __future__ import annotations

import msgspec

from penstock.jetstream.api.api_table import ApiRequest
from penstock.jetstream.api.service import ENDPOINTS
from penstock.jetstream.meta.meta_commands import TICKET_MAX
from penstock.protocol.api import TYPE_PREFIX, SuccessResponse

SEEN_MAX = 10_000
TICKETS_MAX = 1000
_REQUEST_MAX = TICKET_MAX - 4096  # of the request's payload; audit advisories show no more


class RequestTicket(msgspec.Struct, frozen=True, array_like=True):
    """account: of the client. verbs: of the endpoint."""

    account: str
    verbs: str
    subject: str
    args: tuple[str, ...]
    reply: bytes
    payload: bytes = b""

    def encode(self) -> bytes:
        """As commands carry it."""
        return _encoder.encode(self)

    def request(self) -> ApiRequest:
        """The request, for its answer."""
        return ApiRequest(self.subject, list(self.args), self.reply, b"", self.payload, None)


def success_of(ticket: RequestTicket) -> SuccessResponse:
    """The response to a request of the account's API that succeeded and has nothing to show."""
    return SuccessResponse(type=TYPE_PREFIX + ENDPOINTS[ticket.verbs].response, success=True)


class PassedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that waited on one server for the leader on another one."""

    account: str
    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class SeenRequests:
    """Which requests a server has begun to serve since it leads, of the first SEEN_MAX."""

    def __init__(self) -> None:
        self._keys: set[tuple[bytes, bytes]] = set()

    def is_new(self, subject: bytes, reply: bytes) -> bool:
        """Notes a request; False: it was seen before. One without a reply subject is always new: nothing
        tells it from the next one."""
        key = (subject, reply)
        if key in self._keys:
            return False
        if reply and len(self._keys) < SEEN_MAX:
            self._keys.add(key)
        return True

    def clear(self) -> None:
        """Forgets them."""
        self._keys.clear()


class RecentTickets:
    """The tickets of the last TICKETS_MAX commands of a kind."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, None] = {}  # oldest first

    def add(self, ticket: bytes) -> None:
        """A command was applied."""
        self._tickets[ticket] = None
        if len(self._tickets) > TICKETS_MAX:
            del self._tickets[next(iter(self._tickets))]

    def __contains__(self, ticket: bytes) -> bool:
        return ticket in self._tickets


_encoder = msgspec.msgpack.Encoder()
_passed = msgspec.msgpack.Decoder(PassedRequest)
_decoder = msgspec.msgpack.Decoder(RequestTicket)


def ticket_of(account: str, verbs: str, request: ApiRequest) -> bytes:
    """The ticket of a request."""
    payload = request.payload if len(request.payload) <= _REQUEST_MAX else b""
    subject = request.subject.encode("utf-8", "replace").decode()
    args = tuple(one.encode("utf-8", "replace").decode() for one in request.args)
    return RequestTicket(account, verbs, subject, args, request.reply, payload).encode()


def decode_ticket(data: bytes) -> RequestTicket | None:
    """The ticket in a command; None for a command without a request, or with a ticket of a newer version."""
    if not data:
        return None
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None


def passed_request(account: str, request: ApiRequest) -> PassedRequest:
    """The request, to be passed on."""
    subject = request.subject.encode("utf-8", "surrogateescape")
    return PassedRequest(account, subject, request.reply, request.header, request.payload)


def encode_passed(account: str, request: ApiRequest) -> bytes:
    """The same encoded."""
    return _encoder.encode(passed_request(account, request))


def decode_passed(data: bytes) -> PassedRequest | None:
    """None for one of a newer version."""
    try:
        return _passed.decode(data)
    except (msgspec.DecodeError, ValueError):
        return None
