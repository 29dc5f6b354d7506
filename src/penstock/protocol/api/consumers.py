"""Consumers: configuration, info, and the requests and responses of `$JS.API.CONSUMER.>`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.protocol.api.base import (
    TYPE_PREFIX,
    ZERO_TIME,
    DurationNs,
    Rfc3339,
    StrEnum,
    always,
    always_list,
)
from penstock.protocol.api.streams import ClusterInfo


class DeliverPolicy(StrEnum):
    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"


class AckPolicy(StrEnum):
    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"


class ReplayPolicy(StrEnum):
    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


class ConsumerAction(StrEnum):
    """Whether CONSUMER.CREATE may create, update, or both."""

    CREATE_OR_UPDATE = ""
    CREATE = "create"
    UPDATE = "update"


class ApiConsumerConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A consumer's configuration. Durations in ns; 0 or absent = the server's default."""

    durable_name: str = ""
    name: str = ""
    description: str = ""
    deliver_policy: DeliverPolicy = always(DeliverPolicy.ALL)
    opt_start_seq: int = 0
    opt_start_time: Rfc3339 | None = None
    ack_policy: AckPolicy = always(AckPolicy.NONE)
    ack_wait: DurationNs = 0
    max_deliver: int = 0
    backoff: list[DurationNs] = []
    filter_subject: str = ""
    filter_subjects: list[str] = []
    replay_policy: ReplayPolicy = always(ReplayPolicy.INSTANT)
    rate_limit_bps: int = 0  # bits per second
    sample_freq: str = ""  # "100" or "100%"
    max_waiting: int = 0
    max_ack_pending: int = 0
    flow_control: bool = False
    headers_only: bool = False
    max_batch: int = 0
    max_expires: DurationNs = 0
    max_bytes: int = 0
    deliver_subject: str = ""
    deliver_group: str = ""
    idle_heartbeat: DurationNs = 0
    inactive_threshold: DurationNs = 0
    num_replicas: int = always(0)
    mem_storage: bool = False
    direct: bool = False
    sourcing: bool = False
    metadata: dict[str, str] = {}
    pause_until: Rfc3339 | None = None
    priority_groups: list[str] = []
    priority_policy: PriorityPolicy = PriorityPolicy.NONE
    priority_timeout: DurationNs = 0


class ConsumerCreateRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of CONSUMER.CREATE and CONSUMER.DURABLE.CREATE."""

    stream_name: str = always("")
    config: ApiConsumerConfig = always(ApiConsumerConfig())
    action: ConsumerAction = ConsumerAction.CREATE_OR_UPDATE
    pedantic: bool = False


class SequenceInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A position: consumer sequence and stream sequence."""

    consumer_seq: int = always(0)
    stream_seq: int = always(0)
    last_active: Rfc3339 | None = None


class PriorityGroupState(msgspec.Struct, omit_defaults=True, kw_only=True):
    group: str = always("")
    pinned_client_id: str = ""
    pinned_ts: Rfc3339 = ""


class ApiConsumerInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    stream_name: str = always("")
    name: str = always("")
    created: Rfc3339 = always(ZERO_TIME)
    config: ApiConsumerConfig = always(ApiConsumerConfig())
    delivered: SequenceInfo
    ack_floor: SequenceInfo
    num_ack_pending: int = always(0)
    num_redelivered: int = always(0)
    num_waiting: int = always(0)
    num_pending: int = always(0)
    cluster: ClusterInfo | None = None
    push_bound: bool = False
    paused: bool = False
    pause_remaining: DurationNs = 0
    ts: Rfc3339 = ""
    priority_groups: list[PriorityGroupState] = []


class ConsumerCreateResponse(ApiConsumerInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_create_response")


class ConsumerInfoResponse(ApiConsumerInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_info_response")


class ConsumerNamesResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_names_response")
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(1024)
    consumers: list[str] = always_list()


class ConsumerListResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_list_response")
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(256)
    consumers: list[ApiConsumerInfo] = always_list()
    missing: list[str] = []
    offline: dict[str, str] = {}


class ConsumerPauseRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Absent or zero time resumes the consumer."""

    pause_until: Rfc3339 | None = None


class ConsumerPauseResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_pause_response")
    paused: bool = always(False)
    pause_until: Rfc3339 = always(ZERO_TIME)
    pause_remaining: DurationNs = 0


class ConsumerResetRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    seq: Annotated[int, msgspec.Meta(ge=0)] = 0  # 0 = the sequence after the ack floor


class ConsumerResetResponse(ApiConsumerInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_reset_response")
    reset_seq: int = always(0)


class ConsumerUnpinRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    group: str = always("")


class ConsumerUnpinResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "consumer_unpin_response")


class PullRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """JSON body of CONSUMER.MSG.NEXT; an empty body is batch 1, decimal text is batch N."""

    batch: int = 0
    expires: DurationNs = 0
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: DurationNs = 0
    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    priority: int = 0
