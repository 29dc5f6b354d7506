"""Predicts what a stream will do with a publish, for message traces.

Changes nothing. The stream decides the same when the publish is applied, unless other changes come in
between: both depend on the stream and the time alone.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import JetStreamApiError
from penstock.jetstream.stream import publish_checks
from penstock.jetstream.stream.fast_batches import is_fast
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import ApiError


class Preview(NamedTuple):
    """The predicted outcome of a publish.

    subject: the subject to store it under, "" when it is rejected before that is known. is_wanted: whether a
    consumer needs it, where that matters. error: why it is not stored, in the official server's words for
    traces. answer: the response to a publish that is not stored, else b"".
    """

    subject: bytes
    is_wanted: bool = True
    error: str = ""
    answer: bytes = b""


def preview(
    stream: StreamReplica, subject: bytes, reply: bytes, header: bytes, payload: bytes, now: int, *, dry: bool
) -> Preview:
    """Predicts the outcome of a publish at `now`; dry: it will not be stored."""
    if stream.sink.mapper is not None:
        subject = stream.sink.mapper.map(subject)
    if is_fast(reply) or headers.value_of(header, headers.BATCH_ID):
        return Preview(subject, stream.is_wanted(subject))
    try:
        stream.check_admitted(subject, header, len(payload))
        decision = publish_checks.check(stream, subject, header, len(payload), now)
    except JetStreamApiError as error:
        return Preview(b"", error=_trace_error(error, header), answer=_answer(stream, error))
    if decision.duplicate_of:
        answer = b'%s%d,"duplicate":true}' % (stream.ack_prefix, decision.duplicate_of)
        return Preview(b"", error="msgid is duplicate", answer=answer)
    is_wanted = stream.is_wanted(subject)
    if is_wanted and not dry:
        body = decision.payload if decision.payload is not None else payload
        try:
            publish_checks.check_room(stream, subject, decision.header, len(body))
        except JetStreamApiError as error:
            return Preview(subject, error=_trace_error(error, header), answer=_answer(stream, error))
    return Preview(subject, is_wanted)


def _answer(stream: StreamReplica, error: JetStreamApiError) -> bytes:
    return stream.refusal(ApiError.from_exception(error))


def _trace_error(error: JetStreamApiError, header: bytes) -> str:
    """The official server's inner error as in its traces, some of which have other texts."""
    code = error.err_code
    if code in (codes.STREAM_MESSAGE_EXCEEDS_MAXIMUM.err_code, codes.STREAM_HEADER_EXCEEDS_MAXIMUM.err_code):
        return "maximum payload exceeded"
    if code == codes.MESSAGE_TTL_DISABLED.err_code:
        return "message TTL disabled"
    if code == codes.STREAM_WRONG_LAST_SEQUENCE.err_code:
        for name in (headers.EXPECTED_LAST_SUBJECT_SEQUENCE, headers.EXPECTED_LAST_SEQUENCE):
            expected = headers.value_of(header, name)
            actual = error.description.rpartition(" ")[2]
            if expected and expected.decode("utf-8", "replace") != actual:
                return f"last sequence mismatch: {expected.decode('utf-8', 'replace')} vs {actual}"
    return error.description
