"""Consumer configurations: defaults, bounds, and rules for updates.

`checked` turns a request into a complete configuration; `check_update` compares it with the present one.
Neither depends on the messages in the stream. Codes and texts are those of the official server (v2.15).

Configurations of unsupported features are rejected, never accepted and ignored.
"""

from __future__ import annotations

import re

from msgspec import structs

from penstock.errors import JetStreamApiError, MisuseError
from penstock.jetstream.limits import (
    BACKOFFS_MAX,
    DESCRIPTION_MAX,
    LEVEL_KEY,
    METADATA_MAX,
    NAME_MAX,
    SUBJECTS_MAX,
    VERSION_KEY,
    EngineConfig,
    allows_replicas,
)
from penstock.jetstream.stream_config import REQUIRED_LEVEL_KEY
from penstock.jetstream.subject_claims import bounded
from penstock.kernels.routing.grammar import overlaps_any
from penstock.protocol import error_codes as codes
from penstock.protocol import subjects
from penstock.protocol.api import (
    AckPolicy,
    ApiConsumerConfig,
    ApiStreamConfig,
    DeliverPolicy,
    PriorityPolicy,
    RetentionPolicy,
)
from penstock.protocol.durations import (
    NS_PER_MS,
    NS_PER_S,
    format_duration,
    format_time,
    parse_time,
    parse_time_or_zero,
)
from penstock.protocol.numbers import natural

ACK_WAIT_NS = 30 * NS_PER_S
FLOW_HEARTBEAT_NS = NS_PER_S  # required by ack policy flow_control
MAX_ACK_PENDING = 1000
MAX_WAITING = 512
INACTIVE_THRESHOLD_NS = 5 * NS_PER_S  # default for consumers without a durable name
HEARTBEAT_MIN_NS = 100 * NS_PER_MS
EXPIRES_MIN_NS = NS_PER_MS
INT64_MAX = 2**63 - 1

PINNED_TIMEOUT_NS = 120 * NS_PER_S  # default time without a request after which a pin ends
KEY_TOKEN = "penstock.key_token"  # consumer metadata: key-shared delivery
KEY_TOKEN_MAX = 255
DEAD_LETTER_KEY = "penstock.dead_letter"  # consumer metadata: see dead_letters.py
GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")

_TIMED_POLICIES = (AckPolicy.EXPLICIT, AckPolicy.ALL)  # messages not acked in time are redelivered

_ASSET_NAME = "consumer {what} can not contain '.', '*', '>', '\\', '/'"


def refuse(text: str) -> JetStreamApiError:
    """Error 10012 with a reason."""
    return codes.CONSUMER_CREATE.exception(err=text)


def name_in_use() -> JetStreamApiError:
    """Error 10013: the deliver subject of a consumer with subscribers cannot change."""
    return codes.CONSUMER_NAME_EXIST.exception()


def filters_of(config: ApiConsumerConfig) -> list[str]:
    """The filter subjects; empty for all."""
    return [config.filter_subject] if config.filter_subject else list(config.filter_subjects)


def is_push(config: ApiConsumerConfig) -> bool:
    return bool(config.deliver_subject)


def checked(
    request: ApiConsumerConfig, stream: ApiStreamConfig, engine: EngineConfig, *, pedantic: bool = False
) -> ApiConsumerConfig:
    """The configuration that a request asks for on `stream`, with defaults filled in.

    Raises JetStreamApiError with the official server's codes, and 10012 for unsupported features.
    """
    config = _with_defaults(request, stream, engine, pedantic=pedantic)
    _check_names(config)
    _check_replicas(config, stream, engine)
    _check_waits(config)
    if is_push(config):
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    _check_bounds(config, stream, engine)
    _check_filters(config)
    _check_start(config)
    _check_texts(config)
    _check_groups(config)
    _check_dead_letter(config, stream)
    _check_key_token(config)
    config = structs.replace(config, pause_until=_checked_pause(config))
    return structs.replace(config, metadata=_stored_metadata(config))


def check_update(present: ApiConsumerConfig, config: ApiConsumerConfig) -> None:
    """Rejects changes of immutable fields (10012), and a backoff longer than max_deliver (10116)."""
    fixed = (
        ("deliver_policy", "deliver policy can not be updated"),
        ("mem_storage", "storage type can not be updated"),
        ("direct", "direct can not be updated"),
        ("sourcing", "sourcing can not be updated"),
        ("opt_start_seq", "start sequence can not be updated"),
        ("ack_policy", "ack policy can not be updated"),
        ("replay_policy", "replay policy can not be updated"),
        ("idle_heartbeat", "heart beats can not be updated"),
        ("flow_control", "flow control can not be updated"),
    )
    for name, text in fixed:
        if getattr(present, name) != getattr(config, name):
            raise refuse(text)
    if _start_ns(present) != _start_ns(config):
        raise refuse("start time can not be updated")
    if is_push(config) and not is_push(present):
        raise refuse("can not update pull consumer to push based")
    if is_push(present) and not is_push(config):
        raise refuse("can not update push consumer to pull based")
    if present.max_waiting != config.max_waiting:
        raise refuse("max waiting can not be updated")


def same(one: ApiConsumerConfig, other: ApiConsumerConfig) -> bool:
    """Whether both configure the same consumer, apart from the server's own metadata."""
    return structs.replace(one, metadata=_own(one)) == structs.replace(other, metadata=_own(other))


def with_versions(config: ApiConsumerConfig, engine: EngineConfig) -> ApiConsumerConfig:
    """The configuration as responses show it, with the server's version and API level in its metadata."""
    metadata = config.metadata | {LEVEL_KEY: str(engine.api_level), VERSION_KEY: engine.version}
    return structs.replace(config, metadata=dict(sorted(metadata.items())))


def ack_waits_ns(config: ApiConsumerConfig) -> list[int]:
    """Ack wait by number of deliveries; empty without redelivery."""
    if config.ack_policy not in _TIMED_POLICIES:
        return []
    return list(config.backoff) or [config.ack_wait]


def sample_percent(config: ApiConsumerConfig) -> int:
    """How many of 100 acks make a metric."""
    if not config.sample_freq:  # called for each batch of acks
        return 0
    return min(natural(config.sample_freq.removesuffix("%")) or 0, 100)


def key_token(config: ApiConsumerConfig) -> int:
    """Key-shared delivery: the position of the key's token in the subject, from 1; 0 without."""
    return natural(config.metadata.get(KEY_TOKEN, "0")) or 0


def dead_letter_subject(config: ApiConsumerConfig) -> str:
    """The subject of dead letters; "" when dead-lettering is not configured."""
    return config.metadata.get(DEAD_LETTER_KEY, "")


def inactive_threshold_ns(config: ApiConsumerConfig) -> int:
    """How long the consumer may be unused before it is removed; 0: no limit."""
    if config.inactive_threshold:
        return config.inactive_threshold
    return 0 if config.durable_name else INACTIVE_THRESHOLD_NS


def _with_defaults(
    config: ApiConsumerConfig, stream: ApiStreamConfig, engine: EngineConfig, *, pedantic: bool
) -> ApiConsumerConfig:
    changes: dict[str, object] = {}
    floors = {
        "max_deliver": -1,
        "max_waiting": 0,
        "max_ack_pending": -1,
        "max_batch": 0,
        "max_expires": 0,
        "max_bytes": 0,
        "idle_heartbeat": 0,
        "inactive_threshold": 0,
        "priority_timeout": 0,
    }
    for name, lowest in floors.items():
        if getattr(config, name) < lowest:
            if pedantic:
                rule = "must be set to -1" if lowest else "must not be negative"
                raise codes.PEDANTIC.exception(err=f"{name} {rule}")
            changes[name] = lowest
    config = structs.replace(config, **changes)
    changes = {}
    uses_acks = config.ack_policy is not AckPolicy.NONE
    if config.max_deliver == 0:
        changes["max_deliver"] = -1
    if not is_push(config) and config.max_waiting == 0:
        changes["max_waiting"] = MAX_WAITING
    ack_wait = config.ack_wait or (ACK_WAIT_NS if config.ack_policy in _TIMED_POLICIES else 0)
    if config.backoff:
        if pedantic and ack_wait != config.backoff[0]:
            raise codes.PEDANTIC.exception(err="first backoff value has to equal batch AckWait")
        changes["ack_wait"] = config.backoff[0]
    else:
        changes["ack_wait"] = ack_wait
    if config.max_ack_pending == 0 and stream.consumer_limits.max_ack_pending:
        changes["max_ack_pending"] = stream.consumer_limits.max_ack_pending
    elif config.max_ack_pending == 0 and uses_acks:
        bounds = (MAX_ACK_PENDING, engine.server_max_ack_pending, engine.max_ack_pending)
        changes["max_ack_pending"] = min(bound for bound in bounds if bound > 0)
    if pedantic:
        _check_limits_named(config, stream)
    if engine.max_request_batch > 0 and not is_push(config) and config.max_batch == 0:
        if pedantic:
            raise codes.PEDANTIC.exception(
                err="max_request_batch must be set if it's JetStream limits are set"
            )
        changes["max_batch"] = engine.max_request_batch
    if config.priority_policy is PriorityPolicy.PINNED_CLIENT and config.priority_timeout == 0:
        changes["priority_timeout"] = PINNED_TIMEOUT_NS
    if config.ack_policy is AckPolicy.FLOW_CONTROL and not pedantic:
        changes["flow_control"] = True
        changes["idle_heartbeat"] = FLOW_HEARTBEAT_NS
    threshold = config.inactive_threshold or stream.consumer_limits.inactive_threshold
    if threshold == 0 and not config.durable_name:
        threshold = INACTIVE_THRESHOLD_NS
    changes["inactive_threshold"] = threshold
    return structs.replace(config, **changes)


def _check_limits_named(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    """A pedantic request must name the values that the stream limits. Raises JetStreamApiError 10157."""
    for name in ("max_ack_pending", "inactive_threshold"):
        if getattr(stream.consumer_limits, name) > 0 and getattr(config, name) == 0:
            raise codes.PEDANTIC.exception(err=f"{name} must be set if it's configured in stream limits")


def is_left_to_default(config: ApiConsumerConfig, stream: ApiStreamConfig) -> bool:
    """Whether the configuration leaves its inactive threshold to the server.

    The official server compares the request with the stored configuration, and only the latter has the
    default. So creating such a consumer twice is rejected, which clients rely on to find out that a name is
    taken.
    """
    return not (config.durable_name or config.inactive_threshold or stream.consumer_limits.inactive_threshold)


def _check_names(config: ApiConsumerConfig) -> None:
    for what, name in (("name", config.name), ("durable name", config.durable_name)):
        if name and not subjects.is_valid_name(name):
            raise codes.STREAM_INVALID_CONFIG.exception(err=_ASSET_NAME.format(what=what))
        if len(name) > NAME_MAX:
            raise codes.CONSUMER_NAME_TOO_LONG.exception(max=NAME_MAX)
    if config.durable_name and config.name and config.name != config.durable_name:
        raise codes.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH.exception()


def _check_replicas(config: ApiConsumerConfig, stream: ApiStreamConfig, engine: EngineConfig) -> None:
    if config.num_replicas < 0:
        raise codes.REPLICAS_COUNT_CANNOT_BE_NEGATIVE.exception()
    if not allows_replicas(engine, config.num_replicas):
        raise codes.STREAM_REPLICAS_NOT_SUPPORTED.exception()
    if config.num_replicas > stream.num_replicas:
        raise codes.CONSUMER_REPLICAS_EXCEEDS_STREAM.exception()
    if stream.retention is not RetentionPolicy.LIMITS and config.num_replicas not in (0, stream.num_replicas):
        raise codes.CONSUMER_REPLICAS_SHOULD_MATCH_STREAM.exception()


def _check_waits(config: ApiConsumerConfig) -> None:
    if len(config.backoff) > BACKOFFS_MAX:
        count = len(config.backoff)
        raise refuse(f"the consumer has {count} backoff values, at most {BACKOFFS_MAX} are allowed")
    if any(wait < 0 for wait in config.backoff):
        raise codes.CONSUMER_BACK_OFF_NEGATIVE.exception()
    if config.ack_wait < 0:
        raise codes.CONSUMER_ACK_WAIT_NEGATIVE.exception()
    if config.ack_policy is AckPolicy.FLOW_CONTROL:
        _check_flow_policy(config)
    if config.backoff and config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise codes.CONSUMER_MAX_DELIVER_BACKOFF.exception()


def _check_flow_policy(config: ApiConsumerConfig) -> None:
    """Flow control responses are its acks: requires flow control, and excludes settings about other acks."""
    if not is_push(config):
        raise codes.CONSUMER_ACK_FC_REQUIRES_PUSH.exception()
    if not config.flow_control:
        raise codes.CONSUMER_ACK_FC_REQUIRES_FC.exception()
    if config.idle_heartbeat != FLOW_HEARTBEAT_NS:
        raise codes.STREAM_INVALID_CONFIG.exception(err="flow control ack policy heartbeat needs to be 1s")
    if config.max_ack_pending <= 0:
        raise codes.CONSUMER_ACK_FC_REQUIRES_MAX_ACK_PENDING.exception()
    if config.ack_wait or config.backoff:
        raise codes.CONSUMER_ACK_FC_REQUIRES_NO_ACK_WAIT.exception()
    if config.max_deliver > 0:
        raise codes.CONSUMER_ACK_FC_REQUIRES_NO_MAX_DELIVER.exception()


def _check_push(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    if subjects.has_wildcard(config.deliver_subject):
        raise codes.CONSUMER_DELIVER_TO_WILDCARDS.exception()
    if not subjects.is_valid_subject(config.deliver_subject):
        raise codes.CONSUMER_INVALID_DELIVER_SUBJECT.exception()
    if overlaps_any(stream.subjects, config.deliver_subject):
        raise codes.CONSUMER_DELIVER_CYCLE.exception()
    if config.max_waiting:
        raise codes.CONSUMER_PUSH_MAX_WAITING.exception()
    if config.max_ack_pending > 0 and config.ack_policy is AckPolicy.NONE:
        raise codes.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED.exception()
    if 0 < config.idle_heartbeat < HEARTBEAT_MIN_NS:
        raise codes.CONSUMER_SMALL_HEARTBEAT.exception()
    if config.flow_control and not config.idle_heartbeat:
        raise codes.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS.exception()


def _check_pull(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    if config.ack_policy is AckPolicy.NONE and stream.retention is RetentionPolicy.WORKQUEUE:
        raise codes.CONSUMER_PULL_REQUIRES_ACK.exception()
    if config.rate_limit_bps:
        raise codes.CONSUMER_PULL_WITH_RATE_LIMIT.exception()
    if config.idle_heartbeat:
        raise codes.CONSUMER_HB_REQUIRES_PUSH.exception()
    if config.flow_control:
        raise codes.CONSUMER_FC_REQUIRES_PUSH.exception()
    if 0 < config.max_expires < EXPIRES_MIN_NS:
        raise codes.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL.exception()
    if config.direct:
        raise codes.CONSUMER_DIRECT_REQUIRES_PUSH.exception()


def _check_bounds(config: ApiConsumerConfig, stream: ApiStreamConfig, engine: EngineConfig) -> None:
    batch_max = engine.max_request_batch
    if not is_push(config) and 0 < batch_max < config.max_batch:
        raise codes.CONSUMER_MAX_REQUEST_BATCH_EXCEEDED.exception(limit=batch_max)
    of_stream = stream.consumer_limits.max_ack_pending
    for limit in (engine.server_max_ack_pending, engine.max_ack_pending, of_stream):
        if 0 < limit < config.max_ack_pending:
            raise codes.CONSUMER_MAX_PENDING_ACK_EXCESS.exception(limit=limit)
    threshold = stream.consumer_limits.inactive_threshold
    if 0 < threshold < config.inactive_threshold:
        raise codes.CONSUMER_INACTIVE_THRESHOLD_EXCESS.exception(limit=format_duration(threshold))
    if config.direct and config.durable_name:
        raise codes.CONSUMER_DIRECT_REQUIRES_EPHEMERAL.exception()


def _check_filters(config: ApiConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise codes.CONSUMER_DUPLICATE_FILTER_SUBJECTS.exception()
    if not all(config.filter_subjects):
        raise codes.CONSUMER_EMPTY_FILTER.exception()
    filters = filters_of(config)
    if len(filters) > SUBJECTS_MAX:
        raise refuse(f"the consumer has {len(filters)} filter subjects, at most {SUBJECTS_MAX} are allowed")
    if not all(subjects.is_valid_filter(one) for one in filters):
        raise codes.STREAM_INVALID_CONFIG.exception(err="invalid subject")
    with bounded(refuse):
        if subjects.any_subset(filters):
            raise codes.CONSUMER_OVERLAPPING_SUBJECT_FILTERS.exception()


_POLICY_NAMES = {
    DeliverPolicy.ALL: "all",
    DeliverPolicy.LAST: "last",
    DeliverPolicy.NEW: "new",
    DeliverPolicy.LAST_PER_SUBJECT: "last per subject",
    DeliverPolicy.BY_START_SEQUENCE: "by start sequence",
    DeliverPolicy.BY_START_TIME: "by start time",
}


def _check_start(config: ApiConsumerConfig) -> None:
    policy = config.deliver_policy
    rule = f"consumer delivery policy is deliver {_POLICY_NAMES[policy]}, but optional "
    if not 0 <= config.opt_start_seq < 2**64:
        raise codes.CONSUMER_INVALID_POLICY.exception(err="the start sequence is out of range")
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        if config.opt_start_seq == 0:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start sequence is not set")
        if config.opt_start_time:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start time is also set")
    elif policy is DeliverPolicy.BY_START_TIME:
        if not config.opt_start_time:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start time is not set")
        if config.opt_start_seq:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start start sequence is also set")
    else:
        if config.opt_start_seq:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start sequence is also set")
        if config.opt_start_time:
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "start time is also set")
        if policy is DeliverPolicy.LAST_PER_SUBJECT and not filters_of(config):
            raise codes.CONSUMER_INVALID_POLICY.exception(err=rule + "filter subject is not set")
    try:
        _start_ns(config)
    except MisuseError as error:
        raise codes.INVALID_JSON.exception(err=str(error)) from None


def _check_texts(config: ApiConsumerConfig) -> None:
    if len(config.description.encode()) > DESCRIPTION_MAX:
        raise codes.CONSUMER_DESCRIPTION_TOO_LONG.exception(max=DESCRIPTION_MAX)
    if config.sample_freq and natural(config.sample_freq.removesuffix("%")) is None:
        text = f'strconv.Atoi: parsing "{config.sample_freq.removesuffix("%")}": invalid syntax'
        raise codes.CONSUMER_INVALID_SAMPLING.exception(err=text)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items())
    if size > METADATA_MAX:
        raise codes.CONSUMER_METADATA_LENGTH.exception(limit=f"{METADATA_MAX // 1024}KB")


def _check_groups(config: ApiConsumerConfig) -> None:
    if config.priority_policy is PriorityPolicy.NONE:
        if config.priority_groups:
            raise codes.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE.exception()
        if config.priority_timeout:
            raise codes.CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE.exception()
        return
    if is_push(config):
        raise codes.CONSUMER_PUSH_WITH_PRIORITY_GROUP.exception()
    if not config.priority_groups:
        raise codes.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP.exception()
    for group in config.priority_groups:
        if not group:
            raise codes.CONSUMER_EMPTY_GROUP_NAME.exception()
        if not GROUP_NAME.fullmatch(group):
            raise codes.CONSUMER_INVALID_GROUP_NAME.exception()


def check_reset(config: ApiConsumerConfig, seq: int, first_by_time: int) -> None:
    """Rejects (10204) a reset to stream sequence `seq` that the deliver policy does not allow.

    first_by_time: the first sequence at or after opt_start_time.
    """
    policy = config.deliver_policy
    if policy is DeliverPolicy.ALL:
        return
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        if seq < config.opt_start_seq:
            raise codes.CONSUMER_INVALID_RESET.exception(err="below start seq")
    elif policy is DeliverPolicy.BY_START_TIME:
        if seq < first_by_time:
            raise codes.CONSUMER_INVALID_RESET.exception(err="below start time")
    else:
        raise codes.CONSUMER_INVALID_RESET.exception(err="not allowed")


def _check_dead_letter(config: ApiConsumerConfig, stream: ApiStreamConfig) -> None:
    """Rejects a dead letter subject that the consumer itself would deliver, which would be a loop."""
    subject = dead_letter_subject(config)
    if not subject:
        return
    what = f"{DEAD_LETTER_KEY} {subject!r}"
    if not subjects.is_valid_subject(subject):
        raise refuse(f"{what} is not a valid subject to publish to")
    if config.ack_policy is not AckPolicy.EXPLICIT:
        raise refuse(f"{what} needs ack policy explicit")
    filters = filters_of(config) or [">"]
    if any(subjects.matches(one, subject) for one in stream.subjects) and any(
        subjects.matches(one, subject) for one in filters
    ):
        raise refuse(f"{what} would be delivered by this consumer: name a subject of another stream")


def _check_key_token(config: ApiConsumerConfig) -> None:
    text = config.metadata.get(KEY_TOKEN)
    if text is None:
        return
    if not 1 <= (natural(text) or 0) <= KEY_TOKEN_MAX:
        raise refuse(f"{KEY_TOKEN} {text!r} is not the position of a subject token: 1 to {KEY_TOKEN_MAX}")
    if config.ack_policy is not AckPolicy.EXPLICIT:
        raise refuse(f"{KEY_TOKEN} needs ack policy explicit: the next message of a key waits for the ack")


def _start_ns(config: ApiConsumerConfig) -> int | None:
    return parse_time(config.opt_start_time) if config.opt_start_time else None


def start_ns(config: ApiConsumerConfig) -> int:
    """opt_start_time in ns; 0 when there is none."""
    return _start_ns(config) or 0


def pause_until_ns(config: ApiConsumerConfig) -> int:
    """When the pause ends, in ns, possibly in the past; 0 when the consumer is not paused."""
    return parse_time_or_zero(config.pause_until)


def _checked_pause(config: ApiConsumerConfig) -> str | None:
    try:
        until = pause_until_ns(config)
    except MisuseError as error:
        raise codes.INVALID_JSON.exception(err=str(error)) from None
    return format_time(until) if until else None


def _own(config: ApiConsumerConfig) -> dict[str, str]:
    return {key: value for key, value in config.metadata.items() if not key.startswith("_nats.")}


def _stored_metadata(config: ApiConsumerConfig) -> dict[str, str]:
    metadata = {key: value for key, value in config.metadata.items() if key not in (LEVEL_KEY, VERSION_KEY)}
    newer = config.pause_until or config.priority_policy is not PriorityPolicy.NONE or config.priority_groups
    level = 4 if config.ack_policy is AckPolicy.FLOW_CONTROL else 1 if newer else 0
    metadata[REQUIRED_LEVEL_KEY] = str(level)
    return dict(sorted(metadata.items()))
