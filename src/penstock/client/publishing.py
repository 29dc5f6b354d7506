"""Common parts of publishing to a stream: JetStream headers and decoding of pub acks."""

from __future__ import annotations

from typing import TypedDict

from penstock.client import keywords
from penstock.client.message import HeadersLike, RawMessage, encode_headers
from penstock.errors import JetStreamApiError, PublishNotAckedError
from penstock.protocol import headers as names
from penstock.protocol.api import DecodeError, PubAck, decode_response
from penstock.protocol.headers import Headers

# A stream without a leader does not answer. ADR-22: retry twice, a quarter of a second apart.
NO_STREAM_RETRIES = 2
NO_STREAM_RETRY_WAIT_S = 0.25
UNAVAILABLE_RETRY_WAIT_S = 0.25  # of API requests, while a cluster elects a leader


class PublishOptions(TypedDict, total=False):
    """Keyword arguments of a publish to a stream; each sets a header of the official server.

    msg_id: the server stores a message with the same id once per duplicate window.
    expected_stream: reject unless this stream stores the message. expected_last_sequence: reject unless the
    stream's last message has this sequence. expected_last_subject_sequence: the same for the subject, 0 if it
    has no message. expected_last_subject_sequence_subject: filter to check instead of the subject.
    expected_last_msg_id: reject unless the last message has this id.
    ttl: whole seconds, a duration (`1h`) or `never`; the stream needs allow_msg_ttl.
    headers: further headers.
    """

    msg_id: str | None
    expected_stream: str | None
    expected_last_sequence: int | None
    expected_last_subject_sequence: int | None
    expected_last_subject_sequence_subject: str | None
    expected_last_msg_id: str | None
    ttl: int | str | None
    headers: HeadersLike | None


_HEADER_OF_OPTION = {
    "msg_id": names.MSG_ID,
    "expected_stream": names.EXPECTED_STREAM,
    "expected_last_sequence": names.EXPECTED_LAST_SEQUENCE,
    "expected_last_subject_sequence": names.EXPECTED_LAST_SUBJECT_SEQUENCE,
    "expected_last_subject_sequence_subject": names.EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT,
    "expected_last_msg_id": names.EXPECTED_LAST_MSG_ID,
    "ttl": names.TTL,
}


def encode_publish_headers(options: PublishOptions) -> bytes:
    """Encode the header block of a publish, b"" if empty. Raises TypeError for an unknown option."""
    if not options:
        return b""
    given = options.get("headers")
    made = Headers()
    for name, value in options.items():
        if name == "headers" or value is None:
            continue
        header = _HEADER_OF_OPTION.get(name)
        if header is None:
            known = (*_HEADER_OF_OPTION, "headers")
            raise keywords.unknown_keyword("publish", [name], known, keywords.PUBLISH)
        made[header] = str(value)
    if not given:
        return made.encode() if made else b""
    if not made:
        return encode_headers(given)
    for name, text in (given if isinstance(given, Headers) else Headers(given)).pairs():
        made.add(name, text)
    return made.encode()


def read_ack(raw: RawMessage, subject: str) -> PubAck:
    """Decode a pub ack. Raises the JetStreamApiError in it, or PublishNotAckedError if it is malformed."""
    try:
        ack = decode_response(PubAck, raw[4], request=subject)
    except DecodeError as error:
        text = f"the answer to the publish on {subject!r} is no ack: {raw[4][:80]!r} ({error})"
        raise PublishNotAckedError(text) from error
    if not ack.stream:
        text = f"the answer to the publish on {subject!r} names no stream: {raw[4][:80]!r}"
        raise PublishNotAckedError(text)
    return ack


def refusal_in(raw: RawMessage, subject: str) -> Exception | None:
    """The error in an answer, None for a positive ack, which is not decoded."""
    payload = raw[4]
    if b'"error"' not in payload and b'"stream"' in payload:
        return None
    try:
        read_ack(raw, subject)
    except (JetStreamApiError, PublishNotAckedError) as error:
        return error
    return None
