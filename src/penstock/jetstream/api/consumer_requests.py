"""`$JS.API.CONSUMER.>`: manages consumers, and takes pull requests.

A create request has three forms: CONSUMER.CREATE.S (an ephemeral without a name),
CONSUMER.CREATE.S.C[.FILTER] (any consumer; a filter in the subject must equal the configured one), and the
older CONSUMER.DURABLE.CREATE.S.C. Repeating the same configuration succeeds; a different one is an update, if
`action` allows it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec import structs

from penstock.errors import StoreError
from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.jetstream.api.pages import InfoPage
from penstock.jetstream.consumer import consumer_config as rules
from penstock.jetstream.consumer import work_queue
from penstock.jetstream.consumer.consumer_replica import ConsumerReplica
from penstock.jetstream.group_commands import PARKED
from penstock.jetstream.limits import LIST_PAGE, NAMES_PAGE
from penstock.jetstream.stream.purge import PENDING_WORK
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.kernels.wire.dispatch import publish
from penstock.protocol import error_codes as codes
from penstock.protocol import headers
from penstock.protocol.api import (
    TYPE_PREFIX,
    AckPolicy,
    ApiConsumerConfig,
    ApiConsumerInfo,
    ConsumerAction,
    ConsumerCreateRequest,
    ConsumerCreateResponse,
    ConsumerInfoResponse,
    ConsumerListResponse,
    ConsumerNamesResponse,
    ConsumerPauseRequest,
    ConsumerPauseResponse,
    ConsumerResetRequest,
    ConsumerResetResponse,
    ConsumerUnpinRequest,
    ConsumerUnpinResponse,
    PagedRequest,
    RetentionPolicy,
    SuccessResponse,
)
from penstock.protocol.durations import format_time_or_zero
from penstock.protocol.status import REQUIRED_API_LEVEL, no_responders_block

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine

T = TypeVar("T")
Answer: TypeAlias = T | Generator[int, None, T]
"""A response, or the steps to it when the stream has a group."""


def create(engine: JetStreamEngine, request: ApiRequest) -> Answer[ConsumerCreateResponse]:
    """CONSUMER.CREATE, with or without a name and a filter in the subject.

    A mirror or source gets the stream's identity, and error 10225 when it expects another one.
    """
    body = request.body(ConsumerCreateRequest)
    stream = _stream_of(engine, request, body)
    config = body.config
    name = _requested_name(request, config)
    for_sourcing = config.direct or config.sourcing
    if for_sourcing:
        expected = headers.value_of(request.header, headers.STREAM_IDENTITY) if request.header else None
        if expected and expected.decode("utf-8", "replace") != stream.identity:
            raise codes.CONSUMER_STREAM_IDENTITY_MISMATCH.exception(msg=stream.identity)
    steps = _created(engine, stream, body, name, request.now)
    answer = steps if engine.consumers.is_replicated(stream) else _at_once(steps)
    if for_sourcing:
        request.answer_with_identity(stream.identity)
    return answer


def _at_once(steps: Generator[int, None, T]) -> T:
    """The result of steps that wait for nothing: the stream has no group."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("only the group of a stream makes these steps wait")


def _requested_name(request: ApiRequest, config: ApiConsumerConfig) -> str:
    """The name in the subject, or "". Rejects a configuration with a different name or filter."""
    if len(request.args) == 1:
        if config.durable_name:
            raise codes.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME.exception()
        return config.name
    name = request.args[1]
    if config.durable_name and config.durable_name != name:
        raise codes.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT.exception()
    if len(request.args) > 2:
        if config.filter_subjects:
            raise codes.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED.exception()
        if ".".join(request.args[2:]) != config.filter_subject:
            raise codes.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH.exception()
    return name


def _durable_name(request: ApiRequest, config: ApiConsumerConfig) -> str:
    name = request.args[1]
    if not config.durable_name:
        raise codes.CONSUMER_DURABLE_NAME_NOT_SET.exception()
    if config.durable_name != name:
        raise codes.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT.exception()
    return name


def creation_name(request: ApiRequest, body: ConsumerCreateRequest, *, is_durable: bool) -> str:
    """The name of the consumer that a request of either kind creates; "" for one to be chosen. Raises
    JetStreamApiError for names that contradict each other or cannot be."""
    _check_path(request, body, request.args[0])
    return _durable_name(request, body.config) if is_durable else _requested_name(request, body.config)


def create_durable(engine: JetStreamEngine, request: ApiRequest) -> Answer[ConsumerCreateResponse]:
    """CONSUMER.DURABLE.CREATE: the name in the subject is the durable name."""
    body = request.body(ConsumerCreateRequest)
    stream = _stream_of(engine, request, body)
    name = _durable_name(request, body.config)
    steps = _created(engine, stream, body, name, request.now)
    return steps if engine.consumers.is_replicated(stream) else _at_once(steps)


def names(engine: JetStreamEngine, request: ApiRequest) -> ConsumerNamesResponse:
    """CONSUMER.NAMES, in pages of 1024."""
    page, offset, total = _page(engine, request, NAMES_PAGE)
    return ConsumerNamesResponse(
        total=total, offset=offset, limit=NAMES_PAGE, consumers=[consumer.name for consumer in page]
    )


def list_infos(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, ConsumerListResponse]:
    """CONSUMER.LIST, in pages of 256, or fewer when they are large."""
    page, offset, total = _page(engine, request, LIST_PAGE)
    infos = InfoPage()
    for consumer in page:
        if consumer.closed:
            continue  # deleted since the first slice
        if not infos.add(info_of(engine, consumer, request.now)):
            break
        yield infos.work + PENDING_WORK * consumer.state.num_pending
    return ConsumerListResponse(
        total=total,
        offset=offset,
        limit=LIST_PAGE,
        consumers=infos.encoded,
        offline=dict(engine.table.find(request.args[0]).offline),
    )


def info(engine: JetStreamEngine, request: ApiRequest) -> ConsumerInfoResponse:
    """CONSUMER.INFO."""
    expect_empty(request)
    return ConsumerInfoResponse(**_fields(info_of(engine, _consumer_of(engine, request), request.now)))


def delete(engine: JetStreamEngine, request: ApiRequest) -> Generator[int, None, SuccessResponse]:
    """CONSUMER.DELETE; the response follows the removal of messages that only this consumer needed."""
    expect_empty(request)
    stream, name = engine.table.find(request.args[0]), request.args[1]
    # With sync_always the response promises durability. A consumer that came back would redeliver.
    sync = engine.config.sync_always
    if name in stream.offline:
        engine.consumers.delete_offline(stream, name, sync=sync)
    else:
        consumer = _consumer_of(engine, request)
        with engine.containment.changing(consumer):
            engine.consumers.delete(consumer, sync=sync)
    yield from engine.reviews.wait(stream)
    return SuccessResponse(type=TYPE_PREFIX + "consumer_delete_response", success=True)


def pause(engine: JetStreamEngine, request: ApiRequest) -> Answer[ConsumerPauseResponse]:
    """CONSUMER.PAUSE: stops deliveries until pause_until; without it, or with a past time, resumes them."""
    consumer = _consumer_of(engine, request)
    body = request.optional_body(ConsumerPauseRequest)
    asked = structs.replace(consumer.config, pause_until=body.pause_until)
    config = rules.checked(asked, consumer.stream.config, engine.config)
    if engine.consumers.is_replicated(consumer.stream):
        return _pause_in_group(consumer, config, request.now)
    with engine.containment.changing(consumer):
        consumer.update(config, request.now)
    return pause_response(consumer, request.now)


def _pause_in_group(
    consumer: ConsumerReplica, config: ApiConsumerConfig, now: int
) -> Generator[int, None, ConsumerPauseResponse]:
    yield from consumer.propose_update(config, now)
    return pause_response(consumer, now)


def pause_response(consumer: ConsumerReplica, now: int) -> ConsumerPauseResponse:
    """Whether a consumer is paused, and until when. now: ns."""
    until = rules.pause_until_ns(consumer.config)
    paused = until > now
    return ConsumerPauseResponse(
        paused=paused,
        pause_until=format_time_or_zero(until),
        pause_remaining=until - now if paused else 0,
    )


def reset(engine: JetStreamEngine, request: ApiRequest) -> ConsumerResetResponse | None:
    """CONSUMER.RESET: restarts delivery at a stream sequence, or (empty body) above the ack floor.

    A consumer that does not exist gives no response: consumers subscribe to their resets themselves.
    """
    stream, name = engine.streams.get(request.args[0]), request.args[1]
    if stream is None or (name not in stream.consumers and name not in stream.offline):
        return None
    consumer = _consumer_of(engine, request)
    from_seq = request.body(ConsumerResetRequest, is_strict=False).seq
    with engine.containment.changing(consumer):
        seq = consumer.reset(from_seq, request.now)
    if headers.value_of(request.header, headers.STREAM_IDENTITY) is not None:
        request.answer_with_identity(stream.identity)
    return ConsumerResetResponse(**_fields(info_of(engine, consumer, request.now)), reset_seq=seq)


def unpin(engine: JetStreamEngine, request: ApiRequest) -> ConsumerUnpinResponse:
    """CONSUMER.UNPIN: ends the pin of the pinned client."""
    group = request.body(ConsumerUnpinRequest, is_strict=False).group
    if not group:
        raise codes.INVALID_JSON.exception(err="consumer group not specified")
    if not rules.GROUP_NAME.fullmatch(group):
        raise codes.CONSUMER_INVALID_GROUP_NAME.exception()
    consumer = _consumer_of(engine, request)
    if group not in consumer.config.priority_groups:
        raise codes.CONSUMER_INVALID_PRIORITY_GROUP.exception()
    with engine.containment.changing(consumer):
        consumer.delivery.pinning.unpin(group, "admin", request.now)
    return ConsumerUnpinResponse()


def next_messages(engine: JetStreamEngine, request: ApiRequest) -> None:
    """CONSUMER.MSG.NEXT: messages and statuses go to the reply subject. An unknown consumer gives status 503,
    like a subject without subscribers: clients then create their consumer again."""
    stream = engine.streams.get(request.args[0])
    consumer = stream.consumers.get(request.args[1]) if stream is not None else None
    if consumer is None:
        if request.reply:
            publish(engine.index, request.reply, b"", no_responders_block(request.subject), b"")
        return
    if request.header and not headers.api_level_suffices(request.header, engine.config.api_level):
        publish(engine.index, request.reply, b"", REQUIRED_API_LEVEL.block(), b"")
        return
    try:
        consumer.delivery.request_messages(request.reply, request.payload, request.now)
    except Exception as error:
        engine.containment.change_failed(error, consumer)
        raise


# --- helpers -----------------------------------------------------------------------------------------------


def _stream_of(engine: JetStreamEngine, request: ApiRequest, body: ConsumerCreateRequest) -> StreamReplica:
    stream = engine.table.find(request.args[0])
    _check_path(request, body, stream.name)
    return stream


def _check_path(request: ApiRequest, body: ConsumerCreateRequest, stream: str) -> None:
    if body.stream_name != stream:
        raise codes.STREAM_MISMATCH.exception()
    name = request.args[1] if len(request.args) > 1 else body.config.name
    if "/" in name or "\\" in name:
        raise codes.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS.exception()


def _consumer_of(engine: JetStreamEngine, request: ApiRequest) -> ConsumerReplica:
    stream = engine.table.find(request.args[0])
    consumer = stream.consumers.get(request.args[1])
    if consumer is None:
        _refuse_offline(stream, request.args[1])
        raise codes.CONSUMER_NOT_FOUND.exception(stream=stream.name)
    return consumer


def _refuse_offline(stream: StreamReplica, name: str) -> None:
    """Raises JetStreamApiError 10195 for an offline consumer."""
    if name in stream.offline:
        raise codes.CONSUMER_OFFLINE_REASON.exception(err=stream.offline[name], stream=stream.name)


def expect_empty(request: ApiRequest) -> None:
    """Raises JetStreamApiError 10003 for a request with a body."""
    if not request.is_empty:
        raise codes.NOT_EMPTY_REQUEST.exception()


def _page(engine: JetStreamEngine, request: ApiRequest, size: int) -> tuple[list[ConsumerReplica], int, int]:
    stream = engine.table.find(request.args[0])
    # Ack-less consumers of other servers' sources do not count as consumers of the stream.
    names = sorted(name for name, consumer in stream.consumers.items() if not consumer.config.direct)
    offset = min(max(0, request.optional_body(PagedRequest).offset), len(names))
    return [stream.consumers[name] for name in names[offset : offset + size]], offset, len(names)


def info_of(
    engine: JetStreamEngine, consumer: ConsumerReplica, now: int, info: ApiConsumerInfo | None = None
) -> ApiConsumerInfo:
    """The info of a consumer, with the `cluster` object that it has in a cluster. info: as it was earlier."""
    info = info if info is not None else consumer.info(now)
    cluster = engine.cluster_of(consumer.stream.name, consumer.name)
    return info if cluster is None else structs.replace(info, cluster=cluster)


def _fields(consumer_info: ApiConsumerInfo) -> dict[str, Any]:
    return {name: getattr(consumer_info, name) for name in ApiConsumerInfo.__struct_fields__}


def _created(
    engine: JetStreamEngine, stream: StreamReplica, body: ConsumerCreateRequest, name: str, now: int
) -> Generator[int, None, ConsumerCreateResponse]:
    if body.config.direct and body.config.sourcing and name:
        body, name = _for_sourcing(engine, stream, body, name)
    consumer = yield from create_consumer(engine, stream, body, name, now)
    return ConsumerCreateResponse(**_fields(info_of(engine, consumer, now)))


def _for_sourcing(
    engine: JetStreamEngine, stream: StreamReplica, body: ConsumerCreateRequest, name: str
) -> tuple[ConsumerCreateRequest, str]:
    """The configuration and name of the consumer for a mirror or source elsewhere.

    It uses the same name in each request. An interest or work-queue stream retains its messages by one
    durable consumer of that name, whose acks are flow control responses. For other streams, each request
    creates another consumer, without acks.
    """
    if stream.config.retention is RetentionPolicy.LIMITS:
        return body, f"{name}-{engine.consumers.unused_name(stream)}"
    config = structs.replace(
        body.config,
        direct=False,
        durable_name=name,
        ack_policy=AckPolicy.FLOW_CONTROL,
        ack_wait=0,
        max_deliver=0,
        inactive_threshold=0,
    )
    present = stream.consumers.get(name)
    if present is not None:  # its start position differs from the request's
        config = structs.replace(
            config,
            deliver_policy=present.config.deliver_policy,
            opt_start_seq=present.config.opt_start_seq,
            opt_start_time=present.config.opt_start_time,
        )
    return structs.replace(body, config=config), name


def create_consumer(
    engine: JetStreamEngine, stream: StreamReplica, body: ConsumerCreateRequest, name: str, now: int
) -> Generator[int, None, ConsumerReplica]:
    """Creates the requested consumer, or returns the present one with the requested configuration. Yields
    work while the stream's group commits it; without a group, it yields nothing.

    name: "" for an ephemeral with a generated name. Raises JetStreamApiError for invalid configurations,
    10148 and 10149 for the action, 10013, 10026, 10104.
    """
    # A generated name is not part of the configuration.
    config = structs.replace(body.config, name=name)
    name = name or engine.consumers.unused_name(stream)
    while engine.consumers.is_proposed(stream, name):
        yield PARKED  # another request makes it
    _refuse_offline(stream, name)
    present = stream.consumers.get(name)
    if present is not None:  # pausing has its own request; an update does not change it
        config = structs.replace(config, pause_until=present.config.pause_until)
    if present is None and body.action is ConsumerAction.UPDATE:
        rules.checked(config, stream.config, engine.config, pedantic=body.pedantic)
        raise codes.CONSUMER_DOES_NOT_EXIST.exception()
    asked = config
    config = rules.checked(config, stream.config, engine.config, pedantic=body.pedantic)
    _check_dead_letter_stream(engine, config)
    if present is not None:
        if body.action is ConsumerAction.CREATE and rules.is_left_to_default(asked, stream.config):
            raise codes.CONSUMER_ALREADY_EXISTS.exception()
        return (yield from _updated(engine, present, config, body.action, now))
    _check_capacity(engine, stream, config)
    work_queue.check(stream, config, name)
    if engine.consumers.is_replicated(stream):
        return (yield from engine.consumers.propose(stream, config, name, now))
    try:
        return engine.consumers.create(stream, config, name, now)
    except StoreError as error:
        raise codes.CONSUMER_STORE_FAILED.exception(err=str(error)) from error


def _check_dead_letter_stream(engine: JetStreamEngine, config: ApiConsumerConfig) -> None:
    subject = rules.dead_letter_subject(config)
    if subject and not engine.index.has_interest(subject.encode()):
        raise rules.refuse(f"no stream takes the dead letter subject {subject!r}: create that stream first")


def _updated(
    engine: JetStreamEngine,
    present: ConsumerReplica,
    config: ApiConsumerConfig,
    action: ConsumerAction,
    now: int,
) -> Generator[int, None, ConsumerReplica]:
    is_same = rules.same(present.config, config)
    if is_same and not config.sourcing:
        return present
    if not is_same and action is ConsumerAction.CREATE:
        raise codes.CONSUMER_ALREADY_EXISTS.exception()
    work_queue.check(present.stream, config, present.name)
    if engine.consumers.is_replicated(present.stream) and not is_same:
        yield from present.propose_update(config, now)
        is_same = True
    with engine.containment.changing(present):
        try:
            if not is_same:
                present.update(config, now)
            if config.sourcing and not present.is_driven:
                present.reset(0, now)  # the source continues after what it has stored
        except StoreError as error:
            raise codes.CONSUMER_STORE_FAILED.exception(err=str(error)) from error
    return present


def _check_capacity(engine: JetStreamEngine, stream: StreamReplica, config: ApiConsumerConfig) -> None:
    if config.direct or config.sourcing:
        return
    if not engine.config.has_tier(1):
        raise codes.NO_LIMITS.exception()
    of_stream = stream.config.max_consumers
    if of_stream <= 0:
        of_stream = engine.config.consumers_per_stream_max
    limits = [limit for limit in (of_stream, engine.config.max_consumers) if limit > 0]
    present = sum(not (one.config.direct or one.config.sourcing) for one in stream.consumers.values())
    if limits and present >= min(limits):
        raise codes.MAXIMUM_CONSUMERS_LIMIT.exception()


ENDPOINTS = (
    Endpoint("CONSUMER.CREATE", 1, None, "consumer_create_response", create),
    Endpoint("CONSUMER.DURABLE.CREATE", 2, 2, "consumer_create_response", create_durable),
    Endpoint("CONSUMER.NAMES", 1, 1, "consumer_names_response", names),
    Endpoint("CONSUMER.LIST", 1, 1, "consumer_list_response", list_infos),
    Endpoint("CONSUMER.INFO", 2, 2, "consumer_info_response", info),
    Endpoint("CONSUMER.DELETE", 2, 2, "consumer_delete_response", delete),
    Endpoint("CONSUMER.PAUSE", 2, 2, "consumer_pause_response", pause),
    Endpoint("CONSUMER.RESET", 2, 2, "consumer_reset_response", reset, audited=False),
    Endpoint("CONSUMER.UNPIN", 2, 2, "consumer_unpin_response", unpin),
    Endpoint("CONSUMER.MSG.NEXT", 2, 2, "", next_messages, audited=False, json_errors=False),
)
