"""Stream configurations: defaults, bounds, and rules for updates.

`checked` turns a request into a complete configuration; `updated` compares one with the present
configuration. Neither depends on other streams or stored messages: the engine checks those. Texts and codes
are those of the official server (v2.15), because users search for them.

`stream/source_config.py` checks mirrors and sources.
"""

from __future__ import annotations

from msgspec import structs

from penstock.errors import ConfigError, JetStreamApiError
from penstock.jetstream.limits import (
    AGE_MIN_NS,
    DESCRIPTION_MAX,
    DURABILITY_KEY,
    LEVEL_KEY,
    METADATA_MAX,
    NAME_MAX,
    REPLICAS_MAX,
    SECOND_NS,
    SEQ_MAX,
    SUBJECTS_MAX,
    VERSION_KEY,
    EngineConfig,
    allows_replicas,
)
from penstock.jetstream.stream import source_config
from penstock.jetstream.stream.subject_transforms import implied_republish
from penstock.jetstream.subject_claims import bounded
from penstock.kernels.routing.grammar import overlaps_any
from penstock.protocol import error_codes as codes
from penstock.protocol import subjects
from penstock.protocol.api import (
    ApiStreamConfig,
    DiscardPolicy,
    PersistMode,
    Placement,
    RetentionPolicy,
    StorageType,
    StreamConfigRequest,
)
from penstock.protocol.durations import format_duration
from penstock.protocol.numbers import natural
from penstock.protocol.transforms import Transform

REQUIRED_LEVEL_KEY = "_nats.req.level"
SERVER_KEYS = (LEVEL_KEY, VERSION_KEY, DURABILITY_KEY)


class StrictStreamConfigRequest(StreamConfigRequest, frozen=True, forbid_unknown_fields=True):
    """A configuration request. Unknown fields are an error: a misspelt limit must not be ignored."""


def refuse(text: str) -> JetStreamApiError:
    """Error 10052 with a reason."""
    return codes.STREAM_INVALID_CONFIG.exception(err=text)


def checked(request: StreamConfigRequest, engine: EngineConfig) -> ApiStreamConfig:
    """The configuration that a request for a new stream asks for, with defaults filled in.

    Raises JetStreamApiError: 10120 without limits for so many replicas, 10128 and 10052 for the name, 10133
    and 10074 for replicas, 10157 for what pedantic mode does not correct, 10052 with a text for everything
    else.
    """
    if not engine.has_tier(request.num_replicas):
        raise codes.NO_LIMITS.exception()
    config = _checked(request, engine)
    if config.mirror_direct and config.mirror is None:
        raise refuse("stream has no mirror but does have mirror direct")
    if config.sealed:
        raise refuse("stream configuration for create can not be sealed")
    return config


def restored(request: StreamConfigRequest, engine: EngineConfig) -> ApiStreamConfig:
    """The configuration of a restored stream, which may be sealed. Raises like `checked`."""
    config = _checked(request, engine)
    return _sealed(config) if request.sealed else config


def _checked(request: StreamConfigRequest, engine: EngineConfig) -> ApiStreamConfig:
    config = request.config()
    check_name(config.name)
    _check_texts(config)
    config = _with_defaults(config, engine, pedantic=request.pedantic)
    config = _with_markers(config, pedantic=request.pedantic)
    config = _with_schedules(config, pedantic=request.pedantic)
    if config.mirror is not None and config.allow_atomic:
        raise codes.MIRROR_WITH_ATOMIC_PUBLISH.exception()
    _check_ages(config, engine.duplicate_window_max_ns)
    _check_policies(config)
    source_config.check_alone(config)
    _check_subjects(config)
    config = _with_renaming(config, pedantic=request.pedantic)
    if not allows_replicas(engine, config.num_replicas):
        raise codes.STREAM_REPLICAS_NOT_SUPPORTED.exception()
    return structs.replace(config, metadata=_stored_metadata(config))


def updated(present: ApiStreamConfig, request: StreamConfigRequest, engine: EngineConfig) -> ApiStreamConfig:
    """The configuration after an update.

    Raises JetStreamApiError like `checked`, and 10052 for changes of immutable fields.
    """
    config = _checked(request, engine)
    # A default window follows max_age; a configured one is as requested.
    check_unchanged(present, config, sealed=request.sealed)
    if request.sealed:
        config = _sealed(config)
    return config


def renamed(request: StreamConfigRequest, name: str) -> StreamConfigRequest:
    """The request with another stream name."""
    return structs.replace(request, name=name)


def check_name(name: str) -> None:
    """Rejects invalid stream names: 10128 with a path separator, 10052 otherwise."""
    if "/" in name or "\\" in name:
        raise codes.STREAM_NAME_CONTAINS_PATH_SEPARATORS.exception()
    if not subjects.is_valid_name(name):
        raise refuse("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if len(name) > NAME_MAX:
        raise refuse(f"stream name is too long, maximum allowed is {NAME_MAX}")


def with_versions(config: ApiStreamConfig, engine: EngineConfig) -> ApiStreamConfig:
    """The configuration as responses show it, with the server's version and API level in its metadata, and in
    a cluster what an acknowledgement means."""
    metadata = config.metadata | engine.shown_metadata
    return structs.replace(config, metadata=dict(sorted(metadata.items())))


def required_level(config: ApiStreamConfig) -> int:
    """The lowest API level that supports this configuration (ADR-44)."""
    if config.allow_batched:
        return 4
    if (
        config.allow_msg_counter
        or config.allow_atomic
        or config.allow_msg_schedules
        or config.persist_mode is PersistMode.ASYNC
    ):
        return 2
    return 1 if config.allow_msg_ttl or config.subject_delete_marker_ttl else 0


def stored_level(config: ApiStreamConfig) -> int:
    """The API level that a stored configuration requires: a later version may have written it."""
    text = config.metadata.get(REQUIRED_LEVEL_KEY, "0")
    return natural(text) or 0


def same(one: ApiStreamConfig, other: ApiStreamConfig) -> bool:
    """Whether both configure the same stream. (A create request for an existing stream then succeeds.)"""
    return structs.replace(one, metadata=_own(one)) == structs.replace(other, metadata=_own(other))


def _own(config: ApiStreamConfig) -> dict[str, str]:
    return {
        key: value
        for key, value in config.metadata.items()
        if not key.startswith("_nats.") and key != DURABILITY_KEY
    }


def _stored_metadata(config: ApiStreamConfig) -> dict[str, str]:
    metadata = {key: value for key, value in config.metadata.items() if key not in SERVER_KEYS}
    metadata[REQUIRED_LEVEL_KEY] = str(required_level(config))
    return dict(sorted(metadata.items()))


def _check_texts(config: ApiStreamConfig) -> None:
    if len(config.description.encode()) > DESCRIPTION_MAX:
        raise refuse(f"stream description is too long, maximum allowed is {DESCRIPTION_MAX}")
    metadata = _stored_metadata(config)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > METADATA_MAX:
        raise refuse(f"stream metadata exceeds maximum size of {METADATA_MAX} bytes")
    if config.num_replicas < 0:
        raise codes.REPLICAS_COUNT_CANNOT_BE_NEGATIVE.exception()
    if config.num_replicas > REPLICAS_MAX:
        raise refuse(f"maximum replicas is {REPLICAS_MAX}")
    if config.first_seq < 0:
        raise refuse("first sequence can not be negative")
    if config.first_seq >= SEQ_MAX:
        raise refuse(f"first sequence must be below {SEQ_MAX}")


_LIMITS = ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers")


def _with_defaults(config: ApiStreamConfig, engine: EngineConfig, *, pedantic: bool) -> ApiStreamConfig:
    changes: dict[str, object] = {}
    for name in _LIMITS:
        value = getattr(config, name)
        if value < -1 and pedantic:
            raise codes.PEDANTIC.exception(err=f"{name} must be set to -1")
        if value == 0 or value < -1:
            changes[name] = -1
    if config.num_replicas == 0:
        changes["num_replicas"] = 1
    if not config.subjects and config.mirror is None and not config.sources:
        changes["subjects"] = [config.name]
    if config.duplicate_window == 0 and config.mirror is None and not config.sources:
        window = engine.duplicate_window_ns
        if 0 < engine.duplicate_window_max_ns < window:
            if pedantic:
                raise codes.PEDANTIC.exception(err="duplicate window limits are higher than current limits")
            window = engine.duplicate_window_max_ns
        if pedantic and 0 < config.max_age < window:
            raise codes.PEDANTIC.exception(err="duplicate window cannot be bigger than max age")
        changes["duplicate_window"] = min(window, config.max_age) if config.max_age > 0 else window
    if config.placement == Placement():
        changes["placement"] = None
    return structs.replace(config, **changes)


def _with_markers(config: ApiStreamConfig, *, pedantic: bool) -> ApiStreamConfig:
    """Delete markers need TTLs and roll-ups, and enable them."""
    marker_ttl = config.subject_delete_marker_ttl
    if marker_ttl < 0:
        raise refuse("subject delete marker TTL must not be negative")
    if marker_ttl == 0:
        return config
    if marker_ttl < SECOND_NS:
        raise refuse("subject delete marker TTL must be at least 1 second")
    if not pedantic:
        return structs.replace(config, allow_msg_ttl=True, allow_rollup_hdrs=True, deny_purge=False)
    if not config.allow_msg_ttl:
        raise refuse("subject delete marker cannot be set if message TTLs are disabled")
    if not config.allow_rollup_hdrs:
        raise refuse("subject delete marker cannot be set if roll-ups are disabled")
    return config


def _with_schedules(config: ApiStreamConfig, *, pedantic: bool) -> ApiStreamConfig:
    """Schedules need roll-ups, and enable them."""
    if not config.allow_msg_schedules or config.allow_msg_counter:  # the checks of counters reject both
        return config
    if config.mirror is not None:
        raise codes.MIRROR_WITH_MSG_SCHEDULES.exception()
    if config.sources:
        raise codes.SOURCE_WITH_MSG_SCHEDULES.exception()
    if config.discard is DiscardPolicy.NEW:
        raise refuse("message scheduling cannot use discard new")
    if config.allow_rollup_hdrs:
        return config
    if pedantic:
        raise refuse("message scheduling cannot be set if roll-ups are disabled")
    return structs.replace(config, allow_rollup_hdrs=True, deny_purge=False)


def _check_ages(config: ApiStreamConfig, window_max: int) -> None:
    age, window = config.max_age, config.duplicate_window
    if age < 0:
        raise refuse("max age can not be negative")
    if 0 < age < AGE_MIN_NS:
        raise refuse("max age needs to be >= 100ms")
    if window < 0:
        raise refuse("duplicates window can not be negative")
    if 0 < age < window:
        raise refuse("duplicates window can not be larger then max age")
    if 0 < window_max < window:
        limit = format_duration(window_max)
        raise refuse(f"duplicates window can not be larger then server limit of {limit}")
    if 0 < window < AGE_MIN_NS:
        raise refuse("duplicates window needs to be >= 100ms")


def _check_policies(config: ApiStreamConfig) -> None:
    if config.allow_batched and config.mirror is not None:
        raise codes.MIRROR_WITH_BATCH_PUBLISH.exception()
    if config.placement is not None and config.placement.preferred:
        raise refuse("preferred server not permitted in placement")
    if config.deny_purge and config.allow_rollup_hdrs:
        raise refuse("roll-ups require the purge permission")
    if config.allow_msg_counter:
        _check_counter(config)
    if config.discard_new_per_subject:
        if config.discard is not DiscardPolicy.NEW:
            raise refuse("discard new per subject requires discard new policy to be set")
        if config.max_msgs_per_subject <= 0:
            raise refuse("discard new per subject requires max msgs per subject > 0")
    if config.persist_mode is PersistMode.ASYNC:
        if config.storage is not StorageType.FILE:
            raise refuse("async persist mode is only supported on file storage")
        if config.num_replicas > 1:
            raise refuse("async persist mode is not supported on replicated streams")
        if config.allow_atomic:
            raise refuse("async persist mode is not supported with atomic batch publish")


def _check_counter(config: ApiStreamConfig) -> None:
    if config.discard is DiscardPolicy.NEW:
        raise refuse("counter stream cannot use discard new")
    if config.allow_msg_ttl:
        raise refuse("counter stream cannot use message TTLs")
    if config.allow_msg_schedules:
        raise refuse("counter stream cannot use message schedules")
    if config.retention is not RetentionPolicy.LIMITS:
        raise refuse("counter stream can only use limits retention")


def _with_renaming(config: ApiStreamConfig, *, pedantic: bool) -> ApiStreamConfig:
    """Checks the subject transform and republish, and fills in the latter's defaults."""
    transform = config.subject_transform
    if transform is not None:
        if transform.src and not subjects.is_valid_filter(transform.src):
            raise codes.STREAM_TRANSFORM_INVALID_SOURCE.exception(err=f"invalid subject {transform.src}")
        if transform.dest:
            try:
                Transform(transform.src, transform.dest)
            except ConfigError as error:
                raise codes.STREAM_TRANSFORM_INVALID_DESTINATION.exception(err=str(error)) from None
    republish = implied_republish(config)
    if republish is None or config.republish is None:
        return config
    if pedantic and not config.republish.src:
        raise codes.PEDANTIC.exception(err="republish source can not be empty")
    if pedantic and republish.dest != config.republish.dest:
        raise codes.PEDANTIC.exception(err="implicit republish based on subject transform")
    if overlaps_any(config.subjects, republish.dest):
        raise refuse("stream configuration for republish destination forms a cycle")
    try:
        if republish.dest:
            Transform(republish.src, republish.dest)
    except ConfigError:
        text = f"with transform from '{republish.src}' to '{republish.dest}' not valid"
        raise refuse(f"stream configuration for republish {text}") from None
    return structs.replace(config, republish=republish)


_NO_ACK_AREAS = (
    # (subjects, exception, text): a stream on the API's own subjects would respond to requests with pub acks.
    (["$JS.>", "$JSC.>", "$NRG.>"], "$JS.EVENT.>", "jetstream api"),
    (["$SYS.>"], "$SYS.ACCOUNT.>", "system api"),
)


def _check_subjects(config: ApiStreamConfig) -> None:
    count = len(config.subjects)
    if count > SUBJECTS_MAX:
        raise refuse(f"the stream has {count} subjects, at most {SUBJECTS_MAX} are allowed")
    for subject in config.subjects:
        if subjects.is_too_long(subject):
            raise refuse(f"subject is too long, maximum allowed is {subjects.FILTER_MAX} bytes")
        if not subjects.is_valid_filter(subject):
            raise refuse("invalid subject")
        if config.no_ack:
            continue
        if subject == ">":
            raise refuse("capturing all subjects requires no-ack to be true")
        for areas, allowed, name in _NO_ACK_AREAS:
            if overlaps_any(areas, subject) and not subjects.is_subset(subject, allowed):
                raise refuse(f"subjects that overlap with {name} require no-ack to be true")
    with bounded(refuse):
        pair = subjects.any_overlap(config.subjects)
    if pair is not None:
        raise refuse(f'subject "{pair[0]}" overlaps with "{pair[1]}"')


def check_unchanged(present: ApiStreamConfig, config: ApiStreamConfig, *, sealed: bool) -> None:
    """Rejects changes of immutable fields. sealed: the request seals the stream. Raises JetStreamApiError
    10052, 10055."""
    if config.name != present.name:
        raise refuse("stream configuration name must match original")
    if config.storage is not present.storage:
        raise refuse("stream configuration update can not change storage type")
    if config.mirror is not None and config.mirror != present.mirror:
        # but it may be removed: the stream then continues on its own
        raise codes.STREAM_MIRROR_NOT_UPDATABLE.exception()
    work_queues = {present.retention, config.retention}
    if len(work_queues) == 2 and RetentionPolicy.WORKQUEUE in work_queues:
        raise refuse("stream configuration update can not change retention policy to/from workqueue")
    if present.sealed and not sealed:
        raise refuse("stream configuration update can not unseal a sealed stream")
    if present.deny_delete and not config.deny_delete:
        raise refuse("stream configuration update can not cancel deny message deletes")
    if present.deny_purge and not config.deny_purge:
        raise refuse("stream configuration update can not cancel deny purge")
    if present.allow_msg_ttl and not config.allow_msg_ttl:
        raise refuse("message TTL status can not be disabled")
    if present.allow_msg_counter is not config.allow_msg_counter:
        raise refuse("stream configuration update can not change message counter setting")
    if present.allow_msg_schedules and not config.allow_msg_schedules:
        raise refuse("message schedules can not be disabled")
    if present.persist_mode is not config.persist_mode:
        raise refuse("stream configuration update can not change persist mode")


def _sealed(config: ApiStreamConfig) -> ApiStreamConfig:
    """A sealed stream keeps its messages forever."""
    return structs.replace(
        config,
        sealed=True,
        max_age=0,
        discard=DiscardPolicy.NEW,
        deny_delete=True,
        deny_purge=True,
        allow_rollup_hdrs=False,
    )
