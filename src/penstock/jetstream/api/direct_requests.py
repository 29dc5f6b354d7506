"""Direct get (ADR-31): returns stored messages as messages instead of JSON, for streams with allow_direct.

`$JS.API.DIRECT.GET.<stream>` takes a request body, `$JS.API.DIRECT.GET.<stream>.<subject>` returns the last
message of that subject. A stream that does not exist or does not allow direct gets gives status 503, like a
subject without subscribers. But a mirror with mirror_direct answers for such an origin, with its own name in
Nats-Stream.

Single messages have Nats-Stream, Nats-Subject, Nats-Sequence and Nats-Time-Stamp beside their own headers;
those of a batch also Nats-Num-Pending and Nats-Last-Sequence, and a batch ends with status 204 EOB.
Rejections are status messages without a body.

Requests for one message without further options do not reach this module: kernels/log/queries.pyx answers
them in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import JetStreamApiError
from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.jetstream.api.stream_requests import find_message, is_contradictory, start_seq, time_of
from penstock.jetstream.limits import MULTI_LAST_MAX, SUBJECTS_MAX
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.log.queries import send_run, send_these
from penstock.kernels.log.stream_log import StoredRecord
from penstock.kernels.routing.filter_trie import WorkLimitError, uncovered
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import headers, status
from penstock.protocol.api import DecodeError, MsgGetRequest, decode
from penstock.protocol.durations import format_time
from penstock.protocol.json_names import with_declared_names
from penstock.protocol.subjects import is_valid_filter

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine


class _Refused(Exception):
    """Ends a request with a status message."""

    def __init__(self, answer: status.Status) -> None:
        self.answer = answer
        super().__init__(answer.text)


def get(engine: JetStreamEngine, request: ApiRequest) -> None:
    """DIRECT.GET, both forms."""
    if not request.reply:
        return
    stream = engine.streams.get(request.args[0])
    if stream is None or not stream.config.allow_direct:
        stream = engine.sourcing.mirror_of(request.args[0])
    if stream is None:
        publish(engine.index, request.reply, b"", status.no_responders_block(request.subject), b"")
        return
    try:
        if not headers.api_level_suffices(request.header, engine.config.api_level):
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
        return decode(MsgGetRequest, with_declared_names(MsgGetRequest, request.payload))
    except DecodeError:
        raise _Refused(status.MALFORMED_REQUEST) from None


def _checked(body: MsgGetRequest) -> MsgGetRequest:
    if not (body.seq or body.last_by_subj or body.next_by_subj or body.start_time or body.multi_last):
        raise _Refused(status.EMPTY_REQUEST)
    if is_contradictory(body):
        raise _Refused(status.DIRECT_BAD_REQUEST)
    return body


def _send_one(
    engine: JetStreamEngine, stream: StreamReplica, request: ApiRequest, body: MsgGetRequest
) -> None:
    try:
        message = find_message(stream, body)
    except JetStreamApiError:
        raise _Refused(status.MALFORMED_REQUEST) from None
    if message is None:
        raise _Refused(status.MESSAGE_NOT_FOUND)
    header = b"" if body.no_hdr else _header(stream, message)
    publish(engine.index, request.reply, b"", header, message.payload)


def _send_batch(
    engine: JetStreamEngine, stream: StreamReplica, request: ApiRequest, body: MsgGetRequest
) -> None:
    name = stream.name.encode("utf-8", "surrogateescape")
    room = body.max_bytes or engine.config.max_pending
    end = []
    try:
        if body.multi_last:
            seqs, upto_seq = _last_of_many(stream, body)
            # With headers even when none are requested: they name the subjects.
            sent, last, pending = send_these(
                engine.index, request.reply, name, stream.log, seqs=seqs, most=max(0, body.batch), room=room
            )
            end.append((headers.UP_TO_SEQUENCE, str(upto_seq)))
        else:
            sent, last, pending = _send_run(engine, stream, request, body, name, room)
    except JetStreamApiError:
        raise _Refused(status.MALFORMED_REQUEST) from None
    if not sent and (body.multi_last or body.batch >= 0):
        raise _Refused(status.NO_RESULTS if body.multi_last else status.MESSAGE_NOT_FOUND)
    lines = [(headers.NUM_PENDING, str(pending)), (headers.LAST_SEQUENCE, str(last)), *end]
    publish(engine.index, request.reply, b"", status.EOB.block(lines), b"")


def _send_run(
    engine: JetStreamEngine,
    stream: StreamReplica,
    request: ApiRequest,
    body: MsgGetRequest,
    name: bytes,
    room: int,
) -> tuple[int, int, int]:
    """Sends messages in order of sequence. A negative batch sends none; its end message has the counts."""
    filter_subject = body.next_by_subj.encode()
    seq = start_seq(stream, body)
    pending = stream.log.count_from(seq, filter_subject)
    if body.batch < 0:
        return 0, 0, pending
    return send_run(
        engine.index,
        request.reply,
        name,
        stream.log,
        filter=filter_subject,
        seq=seq,
        pending=pending,
        most=body.batch,
        room=room,
        bare=body.no_hdr,
    )


def _last_of_many(stream: StreamReplica, body: MsgGetRequest) -> tuple[list[int], int]:
    """The last sequence of every subject that matches a filter, and the sequence up to which it searched."""
    log = stream.log
    upto_seq = body.up_to_seq
    if body.up_to_time:
        # Strictly before the requested time; 0 would mean "no bound".
        upto_seq = log.seq_at_time(time_of(body.up_to_time)) - 1
        if upto_seq <= 0:
            raise _Refused(status.NO_RESULTS)
    if upto_seq <= 0:
        upto_seq = log.last_seq
    seqs: set[int] = set()
    for one in _needed(body.multi_last):
        seqs.update(log.last_seqs(one, upto_seq))
        if len(seqs) > MULTI_LAST_MAX:
            raise _Refused(status.TOO_MANY_RESULTS)
    first = start_seq(stream, body)
    return sorted(seq for seq in seqs if seq >= first), upto_seq


def _needed(filters: list[str]) -> list[bytes]:
    """Drops filters that are covered by others: each of many may match all subjects. Invalid ones match
    nothing."""
    if len(filters) > SUBJECTS_MAX:
        raise _Refused(status.DIRECT_BAD_REQUEST)
    try:
        return uncovered([one.encode() for one in filters if is_valid_filter(one)])
    except WorkLimitError:
        raise _Refused(status.DIRECT_BAD_REQUEST) from None


def _header(stream: StreamReplica, message: StoredRecord) -> bytes:
    """The message's header block plus the headers of a direct get."""
    lines = [
        (headers.STREAM, stream.name),
        (headers.SUBJECT, message.subject.decode("utf-8", "surrogateescape")),
        (headers.SEQUENCE, str(message.seq)),
        (headers.TIME_STAMP, format_time(message.ts)),
    ]
    added = headers.build(lines)
    if not message.header.endswith(b"\r\n\r\n"):
        return added  # no header block, or an invalid one
    return message.header[:-2] + added[len(headers.VERSION_LINE) :]


ENDPOINTS = (Endpoint("DIRECT.GET", 1, None, "direct_get_response", get, audited=False, json_errors=False),)
