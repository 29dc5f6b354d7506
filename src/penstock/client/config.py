"""Stream and consumer configurations and infos of the client's API, with durations in seconds.

    StreamConfig(name="ORDERS", subjects=["orders.>"], max_age=7 * 86400)
    make_config(ConsumerConfig, {"ack_wait": timedelta(seconds=30)})

A duration is a number of seconds or a timedelta. The wire structs in `penstock.protocol.api` use nanoseconds;
`to_wire` and the functions after it convert. The other fields equal those of the wire struct of the same
name, which documents them.

Invariant: `from_wire(to_wire(config)) == config` for durations of whole microseconds below 104 days, and of
whole milliseconds below 285 years.

Rejected: nanoseconds in the Python API (`ack_wait=30` would mean 30 ns, and every message would be
redelivered at once); subclasses of the wire structs (a float field cannot override an int field).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload

import msgspec

from penstock.client.keywords import CONFIG, hint
from penstock.errors import MisuseError
from penstock.protocol import api
from penstock.protocol.durations import INT64_MAX, NS_PER_S, format_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DURATIONS = frozenset(
    (
        "ack_wait",
        "active",
        "backoff",
        "duplicate_window",
        "idle_heartbeat",
        "inactive_threshold",
        "max_age",
        "max_expires",
        "priority_timeout",
        "subject_delete_marker_ttl",
    )
)


class StreamConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and defaults for consumers of a stream. inactive_threshold in seconds."""

    inactive_threshold: float = 0
    max_ack_pending: int = 0


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A stream's configuration. -1 (or 0 in a request) means "no limit"; durations in seconds."""

    name: str = ""
    """Printable characters without spaces, dots, wildcards and slashes. Required."""
    description: str = ""
    subjects: list[str] = []
    """What the stream stores: subjects and filters, which no other stream may overlap. A mirror has none."""
    retention: api.RetentionPolicy = api.RetentionPolicy.LIMITS
    """`limits` keeps messages up to the limits; `interest` until all consumers have acked them; `workqueue`
    until one has."""
    max_consumers: int = 0
    max_msgs: int = 0
    """Beyond it, `discard` says what happens; likewise `max_bytes`."""
    max_bytes: int = 0
    max_age: float = 0
    """How long messages are kept; 0: without limit."""
    max_msgs_per_subject: int = 0
    max_msg_size: int = 0
    """Bytes of headers and payload."""
    discard: api.DiscardPolicy = api.DiscardPolicy.OLD
    """At a limit: remove the oldest messages, or refuse new ones."""
    storage: api.StorageType = api.StorageType.FILE
    num_replicas: int = 0
    """1 to 5; 0: one."""
    no_ack: bool = False
    """Publishes get no acks."""
    duplicate_window: float = 0
    """How long message ids are remembered; 0: two minutes, or `max_age` if that is less."""
    placement: api.Placement | None = None
    mirror: api.StreamSource | None = None
    """Copy this stream, and nothing else."""
    sources: list[api.StreamSource] = []
    """Streams whose messages are copied into this one."""
    compression: api.Compression = api.Compression.NONE
    """Of the files of messages."""
    first_seq: int = 0
    """Sequence of the first message; 0: 1."""
    subject_transform: api.SubjectTransform | None = None
    """Store messages under other subjects than they were published to."""
    republish: api.Republish | None = None
    """Publish every stored message again under another subject."""
    allow_direct: bool = True
    """Default true, as in the official clients: messages can be read without a consumer."""
    mirror_direct: bool = False
    """A mirror answers direct gets for its origin."""
    discard_new_per_subject: bool = False
    """With `discard` new: refuse messages of a subject at `max_msgs_per_subject`."""
    sealed: bool = False
    """Refuse all changes. It can not be undone."""
    deny_delete: bool = False
    """Refuse deletes of messages."""
    deny_purge: bool = False
    """Refuse purges."""
    allow_rollup_hdrs: bool = False
    """Messages may replace all earlier ones of their subject or stream (`Nats-Rollup`)."""
    consumer_limits: StreamConsumerLimits = StreamConsumerLimits()
    allow_msg_ttl: bool = False
    """Messages may have a `ttl` of their own."""
    subject_delete_marker_ttl: float = 0
    """Store a marker for so long when `max_age` removes the last message of a subject."""
    allow_msg_counter: bool = False
    """Subjects are counters (ADR-49)."""
    allow_atomic: bool = False
    """Allow `JetStream.atomic_batch`."""
    allow_msg_schedules: bool = False
    """Allow `delay` and `at` of `JetStream.publish` (ADR-51)."""
    persist_mode: api.PersistMode = api.PersistMode.DEFAULT
    """`async` acks before a message is written."""
    allow_batched: bool = False
    """Allow `JetStream.fast_ingest`."""
    metadata: dict[str, str] = {}


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's configuration. Durations in seconds; 0 means the server's default."""

    durable_name: str = ""
    """Name of a consumer that stays until it is deleted."""
    name: str = ""
    """Name of any consumer; generated if it has none."""
    description: str = ""
    deliver_policy: api.DeliverPolicy = api.DeliverPolicy.ALL
    """The message it begins with."""
    opt_start_seq: int = 0
    """With `deliver_policy` by_start_sequence."""
    opt_start_time: str | None = None
    """With `deliver_policy` by_start_time: a datetime with a time zone, or RFC 3339 text."""
    ack_policy: api.AckPolicy = api.AckPolicy.NONE
    """Default of `create_consumer`: explicit. `all`: an ack includes all earlier messages."""
    ack_wait: float = 0
    """How long an ack may take until the message is delivered again; 0: 30 s."""
    max_deliver: int = 0
    """Deliveries of a message in all; 0 or -1: without limit."""
    backoff: list[float] = []
    """Waits of the first, second, ... redelivery, in place of `ack_wait`."""
    filter_subject: str = ""
    """Deliver only messages whose subject matches."""
    filter_subjects: list[str] = []
    """Several, which may not overlap."""
    replay_policy: api.ReplayPolicy = api.ReplayPolicy.INSTANT
    """`original`: at the pace at which messages were stored."""
    rate_limit_bps: int = 0
    """Bits a second, of a push consumer."""
    sample_freq: str = ""
    """Share of acks that are reported by advisories, such as '100%'."""
    max_waiting: int = 0
    """Open pull requests; 0: 512."""
    max_ack_pending: int = 0
    """Messages delivered and not acked; 0: 1000; -1: without limit."""
    flow_control: bool = False
    """Push consumers: wait for the client's answer now and then."""
    headers_only: bool = False
    """Deliver messages without their payload; `Nats-Msg-Size` has its size."""
    max_batch: int = 0
    """Most messages of a pull request."""
    max_expires: float = 0
    """Longest expiry of a pull request."""
    max_bytes: int = 0
    """Most bytes of a pull request."""
    deliver_subject: str = ""
    """Makes it a push consumer; `JetStream.subscribe` sets it."""
    deliver_group: str = ""
    """Queue group of a push consumer."""
    idle_heartbeat: float = 0
    """Interval of heartbeats of a push consumer."""
    inactive_threshold: float = 0
    """Delete it when it was not used for so long; 0: 5 s if it has no durable name, else never."""
    num_replicas: int = 0
    """0: as the stream."""
    mem_storage: bool = False
    """Keep its state in memory."""
    direct: bool = False
    """Set by servers, for mirrors and sources."""
    sourcing: bool = False
    """Set by servers, for mirrors and sources."""
    metadata: dict[str, str] = {}
    pause_until: str | None = None
    """Deliver nothing before: a datetime with a time zone, or RFC 3339 text."""
    priority_groups: list[str] = []
    """Groups of pull requests (ADR-42)."""
    priority_policy: api.PriorityPolicy = api.PriorityPolicy.NONE
    priority_timeout: float = 0
    """How long a pinned client may be silent."""


class StreamSourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """State of a mirror or source. seq: last copied sequence of the origin. active: seconds since the last
    message, -1 if there was none."""

    name: str
    external: api.ExternalStream | None
    lag: int
    seq: int
    active: float
    error: api.ApiError | None
    filter_subject: str
    subject_transforms: list[api.SubjectTransform]


class StreamInfo(msgspec.Struct, kw_only=True):
    """Configuration and state of a stream."""

    config: StreamConfig
    created: str
    state: api.StreamState
    domain: str
    cluster: api.ClusterInfo | None
    mirror: StreamSourceInfo | None
    sources: list[StreamSourceInfo]
    alternates: list[api.StreamAlternate]
    ts: str


class ConsumerInfo(msgspec.Struct, kw_only=True):
    """Configuration and state of a consumer. pause_remaining: seconds, 0 when it is not paused."""

    stream_name: str
    name: str
    created: str
    config: ConsumerConfig
    delivered: api.SequenceInfo
    ack_floor: api.SequenceInfo
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int
    cluster: api.ClusterInfo | None
    push_bound: bool
    paused: bool
    pause_remaining: float
    ts: str
    priority_groups: list[api.PriorityGroupState]


class ConsumerPause(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to pause or resume. pause_remaining: seconds."""

    paused: bool
    pause_until: str
    pause_remaining: float


Config = TypeVar("Config", StreamConfig, ConsumerConfig)


def make_config(kind: type[Config], settings: dict[str, Any], base: Config | None = None) -> Config:
    """Return `base` (or the defaults) updated with `settings`.

    settings: field names and values; timedelta, datetime and enum values as text are converted. Raises
    MisuseError for an unknown field or an invalid value.
    """
    for name in settings:
        if name not in kind.__struct_fields__:
            advice = hint(name, kind.__struct_fields__, CONFIG)
            raise MisuseError(f"{kind.__name__} has no setting {name!r}{advice}")
    values = msgspec.to_builtins(base) if base is not None else {}
    for name, value in settings.items():
        values[name] = plain_value(value)
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise MisuseError(f"{kind.__name__}: {error}") from None


def plain_value(value: Any) -> Any:
    """Convert to a JSON value: timedelta to seconds, datetime to RFC3339, structs to dicts."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise MisuseError(f"{value!r} has no time zone; use datetime.now(UTC) or the like")
        return format_time((value - _EPOCH) // _MICROSECOND * 1000)
    if isinstance(value, list | tuple):
        return [plain_value(one) for one in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return value


# --- to the wire -----------------------------------------------------------------------------------


def to_ns(seconds: float | timedelta, name: str = "duration") -> int:
    """Convert seconds or a timedelta to nanoseconds.

    Raises MisuseError for another type, and for more than 292 years: the caller probably passed nanoseconds.
    """
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise MisuseError(f"{name} is {seconds!r}; it is a number of seconds or a timedelta")
    # Compare in seconds: multiplying a huge float would overflow to infinity.
    if abs(seconds) > INT64_MAX / NS_PER_S:
        raise MisuseError(
            f"{name} is {seconds!r} seconds, more than 292 years; durations are not nanoseconds"
        )
    return seconds * NS_PER_S if isinstance(seconds, int) else round(seconds * NS_PER_S)


@overload
def to_wire(config: StreamConfig) -> api.ApiStreamConfig: ...
@overload
def to_wire(config: ConsumerConfig) -> api.ApiConsumerConfig: ...
def to_wire(config: StreamConfig | ConsumerConfig) -> api.ApiStreamConfig | api.ApiConsumerConfig:
    """Convert to the wire struct. Raises MisuseError for a value that it cannot hold."""
    fields = {name: getattr(config, name) for name in config.__struct_fields__}
    for name in _DURATIONS & fields.keys():
        value = fields[name]
        fields[name] = [to_ns(one, name) for one in value] if name == "backoff" else to_ns(value, name)
    limits = fields.get("consumer_limits")
    if limits is not None:
        ns = to_ns(limits.inactive_threshold, "consumer_limits.inactive_threshold")
        fields["consumer_limits"] = api.ApiStreamConsumerLimits(
            inactive_threshold=ns, max_ack_pending=limits.max_ack_pending
        )
    values = {name: plain_value(value) for name, value in fields.items()}
    try:
        if isinstance(config, StreamConfig):
            return msgspec.convert(values, api.ApiStreamConfig)
        return msgspec.convert(values, api.ApiConsumerConfig)
    except msgspec.ValidationError as error:
        raise MisuseError(f"{type(config).__name__}: {error}") from None


# --- from the wire ---------------------------------------------------------------------------------


def _seconds(ns: int) -> float:
    """Nanoseconds as seconds; whole seconds stay ints. Negative values mean "never" and are unchanged."""
    if ns < 0:
        return ns
    whole, rest = divmod(ns, NS_PER_S)
    return whole if not rest else ns / NS_PER_S


def _fields(struct: msgspec.Struct, names: tuple[str, ...]) -> dict[str, Any]:
    """The named fields of a wire struct, durations in seconds."""
    fields = {name: getattr(struct, name) for name in names}
    for name in _DURATIONS & fields.keys():
        value = fields[name]
        fields[name] = [_seconds(one) for one in value] if name == "backoff" else _seconds(value)
    return fields


def stream_config(config: api.ApiStreamConfig) -> StreamConfig:
    """Convert a wire struct to the client's, as do the functions below."""
    fields = _fields(config, StreamConfig.__struct_fields__)
    limits = StreamConsumerLimits.__struct_fields__
    fields["consumer_limits"] = StreamConsumerLimits(**_fields(config.consumer_limits, limits))
    return StreamConfig(**fields)


def consumer_config(config: api.ApiConsumerConfig) -> ConsumerConfig:
    return ConsumerConfig(**_fields(config, ConsumerConfig.__struct_fields__))


def _source_info(info: api.ApiStreamSourceInfo) -> StreamSourceInfo:
    return StreamSourceInfo(**_fields(info, StreamSourceInfo.__struct_fields__))


def stream_info(info: api.ApiStreamInfo) -> StreamInfo:
    fields = {name: getattr(info, name) for name in StreamInfo.__struct_fields__}
    fields["config"] = stream_config(info.config)
    fields["mirror"] = _source_info(info.mirror) if info.mirror is not None else None
    fields["sources"] = [_source_info(one) for one in info.sources]
    return StreamInfo(**fields)


def consumer_info(info: api.ApiConsumerInfo) -> ConsumerInfo:
    fields = {name: getattr(info, name) for name in ConsumerInfo.__struct_fields__}
    fields["config"] = consumer_config(info.config)
    fields["pause_remaining"] = _seconds(info.pause_remaining)
    return ConsumerInfo(**fields)


def consumer_pause(answer: api.ConsumerPauseResponse) -> ConsumerPause:
    return ConsumerPause(
        paused=answer.paused,
        pause_until=answer.pause_until or "",
        pause_remaining=_seconds(answer.pause_remaining),
    )
