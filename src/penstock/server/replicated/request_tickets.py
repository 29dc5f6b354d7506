"""Tickets: what an answer to a request needs on the server that gives it.

The meta leader proposes a command with the ticket of its request. The server that answers, the leader of
the new stream's group or the meta leader, finds in it where the answer goes.
"""

from __future__ import annotations

import msgspec

from penstock.jetstream.api.api_table import ApiRequest
from penstock.jetstream.meta.meta_commands import TICKET_MAX

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


_encoder = msgspec.msgpack.Encoder()
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
