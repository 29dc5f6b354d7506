"""`$JS.API.STREAM.>`: manages streams and their messages.

Every handler returns the struct of its endpoint's response type or raises JetStreamApiError. Fields and codes
are those of the official server. Where that one does something accidental (a purge whose body is not JSON
purges everything), the request is rejected instead.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from penstock.errors import MisuseError, StoreWriteError
from penstock.jetstream import stream_config
from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.jetstream.api.pages import InfoPage
from penstock.jetstream.commands import DeleteMessage
from penstock.jetstream.limits import LIST_PAGE, NAMES_PAGE, SUBJECTS_PAGE
from penstock.jetstream.stream.purge import purge_messages
from penstock.jetstream.stream.stream_replica import SEQ_END, StreamReplica
from penstock.kernels.log.queries import SubjectCounts
from penstock.kernels.log.stream_log import StoredRecord
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    TYPE_PREFIX,
    ApiStreamInfo,
    ClusterInfo,
    MsgDeleteRequest,
    MsgGetRequest,
    MsgGetResponse,
    StoredMessageBody,
    StreamCreateResponse,
    StreamInfoRequest,
    StreamInfoResponse,
    StreamListResponse,
    StreamNamesRequest,
    StreamNamesResponse,
    StreamPurgeRequest,
    StreamPurgeResponse,
    StreamUpdateResponse,
    SuccessResponse,
)
from penstock.protocol.durations import format_time, parse_time

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

T = TypeVar("T")

# In the units of slices.py, for the subjects of a stream info.
SUBJECT_WORK = 64  # a subject is copied, or becomes part of the response
COMPARISON_WORK = 16
SORT = 1024  # comparisons of one slice
SUBJECTS_SLICE = 256


def create(engine: JetStreamEngine, request: ApiRequest) -> StreamCreateResponse:
    """STREAM.CREATE. Succeeds for an existing stream with the same configuration."""
    body = config_request(request)
    stream = engine.registry.create(body, request.now)
    return StreamCreateResponse(**info_fields(engine, stream, request.now), did_create=True)


def update(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, StreamUpdateResponse]:
    """STREAM.UPDATE; the response follows the removal of messages that lower limits or another retention
    policy do not keep."""
    body = config_request(request, name_first=True)
    stream = yield from engine.registry.update(body, request.now)
    yield from engine.reviews.wait(stream)
    return StreamUpdateResponse(**info_fields(engine, stream, request.now))


def info(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, StreamInfoResponse]:
    """STREAM.INFO, with a page of subjects and their counts if subjects_filter is set."""
    body = request.optional_body(StreamInfoRequest)
    stream = engine.table.find(request.args[0])
    fields = info_fields(engine, stream, request.now, deleted=body.deleted_details)
    fields["cluster"] = fields["cluster"] or ClusterInfo(leader=engine.config.server_name)
    fields["alternates"] = engine.alternates_of(stream.name)
    total = offset = limit = 0
    if body.subjects_filter:
        counts = SubjectCounts(stream.log, body.subjects_filter.encode())  # the current counts
        total, offset = len(counts), max(0, body.offset)
        limit = SUBJECTS_PAGE if total else 0
        yield total * SUBJECT_WORK
        while not counts.sort(SORT):
            yield SORT * COMPARISON_WORK
        page: dict[str, int] = {}
        fields["state"] = structs.replace(fields["state"], subjects=page)
        for start in range(offset, min(offset + limit, total), SUBJECTS_SLICE):
            rows = counts.rows(start, min(start + SUBJECTS_SLICE, offset + limit))
            page.update((name.decode("utf-8", "replace"), count) for name, count in rows)
            yield len(rows) * SUBJECT_WORK
    return StreamInfoResponse(**fields, total=total, offset=offset, limit=limit)


def names(engine: JetStreamEngine, request: ApiRequest) -> StreamNamesResponse:
    """STREAM.NAMES, in pages of 1024."""
    streams, offset, total = _page(engine, request, NAMES_PAGE)
    return StreamNamesResponse(total=total, offset=offset, streams=[stream.name for stream in streams])


def listing(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, StreamListResponse]:
    """STREAM.LIST, in pages of 256, or fewer when they are large."""
    streams, offset, total = _page(engine, request, LIST_PAGE)
    infos = InfoPage()
    for stream in streams:
        if engine.streams.get(stream.name) is not stream:
            continue  # deleted since the first slice
        one = ApiStreamInfo(
            config=stream.config,
            created=format_time(stream.created),
            state=stream.state(),
            domain=engine.config.domain,
            ts=format_time(request.now),
            cluster=engine.cluster_of(stream.name),
            **_origin_fields(engine, stream, request.now),
        )
        if not infos.add(one):
            break
        yield infos.work
    return StreamListResponse(total=total, offset=offset, streams=infos.encoded, offline=dict(engine.offline))


def delete(engine: JetStreamEngine, request: ApiRequest) -> SuccessResponse:
    """STREAM.DELETE."""
    if not request.is_empty:
        raise codes.NOT_EMPTY_REQUEST.exception()
    engine.registry.delete(request.args[0])
    return SuccessResponse(type=TYPE_PREFIX + "stream_delete_response", success=True)


def purge(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, StreamPurgeResponse]:
    """STREAM.PURGE of all messages, or of those that filter, seq and keep select."""
    # Unlike the official server: text that is not JSON would purge every message.
    body = request.optional_body(StreamPurgeRequest, is_json=True)
    stream = engine.table.find(request.args[0])
    if body.seq > 0 and body.keep > 0:
        raise codes.BAD_REQUEST.exception()
    purged = yield from engine.removals.run(
        stream, purge_messages(stream, body.filter.encode(), body.seq, body.keep)
    )
    with engine.containment.changing(stream):
        try:
            engine.pending.write_change(stream)
        except StoreWriteError as error:
            raise codes.STREAM_PURGE_FAILED.exception(err=str(error)) from error
    return StreamPurgeResponse(success=True, purged=purged)


def get_message(engine: JetStreamEngine, request: ApiRequest) -> MsgGetResponse:
    """STREAM.MSG.GET: one message by sequence, by time, or as the last or next one of a subject."""
    body = request.body(MsgGetRequest)
    stream = engine.table.find(request.args[0])
    if (
        not (body.seq or body.last_by_subj or body.next_by_subj or body.start_time)
        or is_contradictory(body)
        or body.batch
        or body.max_bytes
        or body.multi_last
    ):
        raise codes.BAD_REQUEST.exception()
    message = find_message(stream, body)
    if message is None:
        raise codes.NO_MESSAGE_FOUND.exception()
    found = StoredMessageBody(
        subject=message.subject.decode("utf-8", "replace"),
        seq=message.seq,
        hdrs=b"" if body.no_hdr else message.header,
        data=message.payload,
        time=format_time(message.ts),
    )
    return MsgGetResponse(message=found)


def delete_message(
    engine: JetStreamEngine, request: ApiRequest
) -> SuccessResponse | Generator[int, None, SuccessResponse]:
    """STREAM.MSG.DELETE; no_erase leaves the bytes in the block."""
    if request.is_empty:
        raise codes.BAD_REQUEST.exception()
    body = request.body(MsgDeleteRequest)
    stream = engine.table.find(request.args[0])
    if stream.group is not None:
        return _delete_in_group(stream, body)
    with engine.containment.changing(stream):
        stream.delete_message(body.seq, erase=not body.no_erase)
        try:
            engine.pending.write_change(stream)
        except StoreWriteError as error:
            raise codes.STREAM_MSG_DELETE_FAILED.exception(err=str(error)) from error
    return SuccessResponse(type=TYPE_PREFIX + "stream_msg_delete_response", success=True)


def _delete_in_group(stream: StreamReplica, body: MsgDeleteRequest) -> Generator[int, None, SuccessResponse]:
    if not 0 < body.seq < SEQ_END:
        raise codes.SEQUENCE_NOT_FOUND.exception(seq=body.seq)
    yield from stream.change(DeleteMessage(body.seq, not body.no_erase), stream.now)
    return SuccessResponse(type=TYPE_PREFIX + "stream_msg_delete_response", success=True)


def refuse_alone(engine: JetStreamEngine, request: ApiRequest) -> None:
    """Rejects requests that need a cluster."""
    engine.table.find(request.args[0])
    raise codes.CLUSTER_REQUIRED.exception()


def is_contradictory(body: MsgGetRequest) -> bool:
    """Whether the fields of a request for messages exclude each other (ADR-31)."""
    return bool(
        (body.seq and body.last_by_subj)
        or (body.seq and body.start_time)
        or (body.start_time and body.last_by_subj)
        or (body.last_by_subj and (body.next_by_subj or body.batch or body.multi_last))
        or (body.next_by_subj and body.multi_last)
        or (body.up_to_seq and body.up_to_time)
    )


def start_seq(stream: StreamReplica, body: MsgGetRequest) -> int:
    """The first sequence to search for a request. Raises JetStreamApiError 10025 for an invalid time."""
    if not body.start_time:
        return max(1, body.seq)
    return stream.log.seq_at_time(time_of(body.start_time))


def time_of(text: str) -> int:
    """Parses a time in a request to ns. Raises JetStreamApiError 10025."""
    try:
        return parse_time(text)
    except MisuseError as error:
        raise codes.INVALID_JSON.exception(err=str(error)) from None


def find_message(stream: StreamReplica, body: MsgGetRequest) -> StoredRecord | None:
    """The message that a (consistent) request asks for, or None."""
    if body.last_by_subj:
        return stream.log.load_last(body.last_by_subj.encode())
    if body.next_by_subj or body.start_time:
        return stream.log.load_next(body.next_by_subj.encode(), start_seq(stream, body))
    return stream.log.load(body.seq)


def config_request(
    request: ApiRequest, *, name_first: bool = False
) -> stream_config.StrictStreamConfigRequest:
    """The body of a creation or update. name_first: checks the name before the rest. Raises JetStreamApiError
    10025, 10056."""
    body = request.body(stream_config.StrictStreamConfigRequest)
    if name_first:
        stream_config.check_name(body.name)
    if body.name != request.args[0]:
        raise codes.STREAM_MISMATCH.exception()
    return body


def info_fields(
    engine: JetStreamEngine, stream: StreamReplica, now: int, *, deleted: bool = False
) -> dict[str, Any]:
    """The fields of an ApiStreamInfo. now: ns. deleted: with the sequences of deleted messages."""
    return {
        "config": stream_config.with_versions(stream.config, engine.config),
        "created": format_time(stream.created),
        "state": stream.state(deleted=deleted),
        "domain": engine.config.domain,
        "ts": format_time(now),
        "cluster": engine.cluster_of(stream.name),
        **_origin_fields(engine, stream, now),
    }


def _origin_fields(engine: JetStreamEngine, stream: StreamReplica, now: int) -> dict[str, Any]:
    """The fields about its mirror and sources."""
    mirror, sources = engine.sourcing.infos(stream, now)
    return {"mirror": mirror, "sources": sources}


def _page(engine: JetStreamEngine, request: ApiRequest, limit: int) -> tuple[list[StreamReplica], int, int]:
    """A page of streams in order of names: (streams, offset, total)."""
    body = request.optional_body(StreamNamesRequest)
    wanted = engine.table.claims.names_overlapping(body.subject) if body.subject else engine.streams
    chosen = [engine.streams[name] for name in sorted(wanted) if name in engine.streams]
    offset = min(max(0, body.offset), len(chosen))
    return chosen[offset : offset + limit], offset, len(chosen)


ENDPOINTS = (
    Endpoint("STREAM.CREATE", 1, 1, "stream_create_response", create),
    Endpoint("STREAM.UPDATE", 1, 1, "stream_update_response", update),
    Endpoint("STREAM.INFO", 1, 1, "stream_info_response", info),
    Endpoint("STREAM.NAMES", 0, 0, "stream_names_response", names),
    Endpoint("STREAM.LIST", 0, 0, "stream_list_response", listing),
    Endpoint("STREAM.DELETE", 1, 1, "stream_delete_response", delete),
    Endpoint("STREAM.PURGE", 1, 1, "stream_purge_response", purge),
    Endpoint("STREAM.MSG.GET", 1, 1, "stream_msg_get_response", get_message, audited=False),
    Endpoint("STREAM.MSG.DELETE", 1, 1, "stream_msg_delete_response", delete_message),
    Endpoint("STREAM.LEADER.STEPDOWN", 1, 1, "stream_leader_stepdown_response", refuse_alone),
    Endpoint("STREAM.PEER.REMOVE", 1, 1, "stream_remove_peer_response", refuse_alone),
    Endpoint("STREAM.PEER.EVACUATE", 1, 1, "stream_evacuate_peer_response", refuse_alone),
    Endpoint("STREAM.CANCEL_MOVE", 1, 1, "stream_cancel_move_response", refuse_alone),
    Endpoint("CONSUMER.PEER.REMOVE", 2, 2, "consumer_remove_peer_response", refuse_alone),
    Endpoint("CONSUMER.PEER.EVACUATE", 2, 2, "consumer_evacuate_peer_response", refuse_alone),
    Endpoint("CONSUMER.LEADER.STEPDOWN", 2, 2, "consumer_leader_stepdown_response", refuse_alone),
)
