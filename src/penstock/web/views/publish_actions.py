"""Publishing a message as the visitor."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error

import msgspec

from penstock.errors import MisuseError
from penstock.web.request_checks import checked_subject
from penstock.web.visitor import Visitor
from penstock.web.web_ports import Slice

HEADERS_MAX = 64


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True):
    """subject, headers in pairs, payload as text or, in `data`, as base64. stored: wait until a stream has
    stored it."""

    subject: str
    headers: list[tuple[str, str]] = []
    payload: str = ""
    data: str = ""
    stored: bool = True


async def publish(visitor: Visitor, request: PublishRequest) -> Slice:
    """Publishes; returns the stream and sequence, if it waited for a stream."""
    subject = checked_subject(request.subject.strip(), wildcards=False)
    if len(request.headers) > HEADERS_MAX:
        raise MisuseError(f"a message has at most {HEADERS_MAX} headers here")
    headers: dict[str, list[str]] = {}
    for name, value in request.headers:
        headers.setdefault(name, []).append(value)
    payload = _payload(request)
    if request.stored:
        ack = await visitor.js.publish(subject, payload, headers=headers or None)
        return {"stream": ack.stream, "seq": ack.seq, "duplicate": ack.duplicate}
    visitor.refusals.take(subject)  # an older one
    await visitor.client.publish(subject, payload, headers=headers or None)
    await visitor.client.flush()
    refused = visitor.refusals.take(subject)
    if refused is not None:
        raise refused
    return {"stream": None}


def _payload(request: PublishRequest) -> bytes:
    if not request.data:
        return request.payload.encode("utf-8", "surrogatepass")
    try:
        return b64decode(request.data, validate=True)
    except Base64Error as error:
        raise MisuseError(f"data is no base64: {error}") from error
