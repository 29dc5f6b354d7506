"""Direct get (ADR-31): stored messages as messages, not as JSON, for streams with allow_direct.

`$JS.API.DIRECT.GET.<stream>` takes a request body that says what is wanted,
`$JS.API.DIRECT.GET.<stream>.<subject>` gives the last message of that subject. For streams that don't
allow it, and streams that don't exist, the answer is what a subject without a listener gives: status 503.

Single messages carry Nats-Stream, Nats-Subject, Nats-Sequence and Nats-Time-Stamp beside their own headers;
those of a batch also Nats-Num-Pending and Nats-Last-Sequence, and a batch ends with status 204 EOB.
Refusals are status messages without a body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import JetStreamApiError
from penstock.jetstream.api.dispatch import ApiRequest, Endpoint, api_level_suffices
from penstock.jetstream.api.streams import find_message, is_contradictory, start_seq, time_of
from penstock.jetstream.limits import MULTI_LAST_MAX
from penstock.jetstream.stream.stream import Stream
from penstock.kernels.dispatch import publish
from penstock.kernels.streamlog import StoredMessage
from penstock.protocol import headers, status
from penstock.protocol.api import DecodeError, MsgGetRequest, decode
from penstock.protocol.durations import format_time

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStream


class _Refused(Exception):
    """Ends a request with a status message."""

    def __init__(self, answer: status.Status) -> None:
        self.answer = answer
        super().__init__(answer.text)


def get(engine: JetStream, request: ApiRequest) -> None:
    """DIRECT.GET, both forms."""
    if not request.reply:
        return
    stream = engine.streams.get(request.args[0])
    if stream is None or not stream.config.allow_direct:
        publish(engine.index, request.reply, b"", status.no_responders_block(request.subject), b"")
        return
    try:
        if not api_level_suffices(request.header, engine.config.api_level):
            raise _Refused(status.REQUIRED_API_LEVEL)
        if len(request.args) > 1:
            body = _body(request) if request.payload else MsgGetRequest()
            if msgspec.structs.replace(body, no_hdr=False, max_bytes=0) != MsgGetRequest():
                raise _Refused(status.DIRECT_BAD_REQUEST)
            subject = ".".join(request.args[1:])
            _send_one(engine, stream, request, MsgGetRequest(last_by_subj=subject, no_hdr=body.no_hdr))
            return
        body = _checked(_body(request))
        if body.batch or body.multi_last:
            _send_batch(engine, stream, request, body)
        else:
            _send_one(engine, stream, request, body)
    except _Refused as refused:
        publish(engine.index, request.reply, b"", refused.answer.block(), b"")


def _body(request: ApiRequest) -> MsgGetRequest:
    try:
        return decode(MsgGetRequest, request.payload)
    except DecodeError:
        raise _Refused(status.MALFORMED_REQUEST) from None


def _checked(body: MsgGetRequest) -> MsgGetRequest:
    if not (body.seq or body.last_by_subj or body.next_by_subj or body.start_time or body.multi_last):
        raise _Refused(status.EMPTY_REQUEST)
    if is_contradictory(body):
        raise _Refused(status.DIRECT_BAD_REQUEST)
    return body


def _send_one(engine: JetStream, stream: Stream, request: ApiRequest, body: MsgGetRequest) -> None:
    try:
        message = find_message(stream, body)
    except JetStreamApiError:
        raise _Refused(status.MALFORMED_REQUEST) from None
    if message is None:
        raise _Refused(status.MESSAGE_NOT_FOUND)
    header = b"" if body.no_hdr else _header(stream, message, [])
    publish(engine.index, request.reply, b"", header, message.payload)


def _send_batch(engine: JetStream, stream: Stream, request: ApiRequest, body: MsgGetRequest) -> None:
    try:
        if body.multi_last:
            pairs, upto_seq = _last_of_many(stream, body)
        else:
            pairs, upto_seq = _run(stream, body), 0
    except JetStreamApiError:
        raise _Refused(status.MALFORMED_REQUEST) from None
    room = body.max_bytes or engine.config.max_pending
    previous = 0
    pending = None
    for sent, (message, pending_after) in enumerate(pairs, start=1):
        extra = [(headers.NUM_PENDING, str(pending_after)), (headers.LAST_SEQUENCE, str(previous))]
        # Without headers, nobody could tell the subjects of a multi_last apart.
        bare = body.no_hdr and not body.multi_last
        header = b"" if bare else _header(stream, message, extra)
        publish(engine.index, request.reply, b"", header, message.payload)
        previous, pending = message.seq, pending_after
        room -= len(message.subject) + len(message.header) + len(message.payload)
        if room <= 0 or 0 < body.batch == sent:
            break
    if pending is None:
        raise _Refused(status.NO_RESULTS if body.multi_last else status.MESSAGE_NOT_FOUND)
    end = [(headers.NUM_PENDING, str(pending)), (headers.LAST_SEQUENCE, str(previous))]
    if body.multi_last:
        end.append((headers.UP_TO_SEQUENCE, str(upto_seq)))
    publish(engine.index, request.reply, b"", status.EOB.block(end), b"")


def _run(stream: Stream, body: MsgGetRequest) -> Iterator[tuple[StoredMessage, int]]:
    """Messages in order of sequence, each with how many follow it."""
    if body.batch < 0:
        raise _Refused(status.DIRECT_BAD_REQUEST)
    filter_subject = body.next_by_subj.encode()
    seq = start_seq(stream, body)
    pending = stream.log.count_from(seq, filter_subject)
    return _walk(stream, filter_subject, seq, pending)


def _walk(
    stream: Stream, filter_subject: bytes, seq: int, pending: int
) -> Iterator[tuple[StoredMessage, int]]:
    while (message := stream.log.load_next(filter_subject, seq)) is not None:
        seq = message.seq + 1
        pending -= 1
        yield message, max(0, pending)


def _last_of_many(stream: Stream, body: MsgGetRequest) -> tuple[Iterator[tuple[StoredMessage, int]], int]:
    """The last messages of every subject that one of the filters matches, and the sequence looked up to."""
    log = stream.log
    upto_seq = body.up_to_seq
    if body.up_to_time:
        # Strictly before the time asked for; 0 would mean "no bound".
        upto_seq = log.seq_at_time(time_of(body.up_to_time)) - 1
        if upto_seq <= 0:
            raise _Refused(status.NO_RESULTS)
    if upto_seq <= 0:
        upto_seq = log.last_seq
    seqs: set[int] = set()
    for filter_subject in filter(None, body.multi_last):
        seqs.update(log.last_seqs(filter_subject.encode(), upto_seq))
        if len(seqs) > MULTI_LAST_MAX:
            raise _Refused(status.TOO_MANY_RESULTS)
    first = start_seq(stream, body)
    chosen = sorted(seq for seq in seqs if seq >= first)
    return _load_all(stream, chosen), upto_seq


def _load_all(stream: Stream, seqs: list[int]) -> Iterator[tuple[StoredMessage, int]]:
    for at, seq in enumerate(seqs, start=1):
        message = stream.log.load(seq)
        if message is not None:
            yield message, len(seqs) - at


def _header(stream: Stream, message: StoredMessage, extra: list[tuple[str, str]]) -> bytes:
    """The message's own header block with what a direct get adds."""
    lines = [
        (headers.STREAM, stream.name),
        (headers.SUBJECT, message.subject.decode("utf-8", "surrogateescape")),
        (headers.SEQUENCE, str(message.seq)),
        (headers.TIME_STAMP, format_time(message.ts)),
        *extra,
    ]
    added = headers.build(lines)
    if not message.header.endswith(b"\r\n\r\n"):
        return added  # no header, or a stored block that is none
    return message.header[:-2] + added[len(headers.VERSION_LINE) :]


ENDPOINTS = (Endpoint("DIRECT.GET", 1, None, "direct_get_response", get, audited=False, json_errors=False),)
