"""Types of the settings of streams and consumers, as keyword arguments. `StreamConfig` and `ConsumerConfig`
document the fields.

They accept what the configurations convert: a timedelta for seconds, a datetime for a time, and the text of
an enum's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from penstock.client.config import StreamConsumerLimits
from penstock.protocol import api


class StreamSettings(TypedDict, total=False):
    """Keyword arguments of `create_stream` and `update_stream`; `StreamConfig` documents them."""

    name: str
    description: str
    subjects: list[str]
    retention: api.RetentionPolicy | Literal["limits", "interest", "workqueue"]
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: float | timedelta
    max_msgs_per_subject: int
    max_msg_size: int
    discard: api.DiscardPolicy | Literal["old", "new"]
    storage: api.StorageType | Literal["file", "memory"]
    num_replicas: int
    no_ack: bool
    duplicate_window: float | timedelta
    placement: api.Placement | None
    mirror: api.StreamSource | None
    sources: list[api.StreamSource]
    compression: api.Compression | Literal["none", "s2"]
    first_seq: int
    subject_transform: api.SubjectTransform | None
    republish: api.Republish | None
    allow_direct: bool
    mirror_direct: bool
    discard_new_per_subject: bool
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    consumer_limits: StreamConsumerLimits
    allow_msg_ttl: bool
    subject_delete_marker_ttl: float | timedelta
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    persist_mode: api.PersistMode | Literal["default", "async"]
    allow_batched: bool
    metadata: dict[str, str]


class OrderedConsumerSettings(TypedDict, total=False):
    """Keyword arguments of `ordered_consumer`; `ConsumerConfig` documents them."""

    deliver_policy: (
        api.DeliverPolicy
        | Literal["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
    )
    opt_start_seq: int
    opt_start_time: datetime | str | None
    filter_subject: str
    filter_subjects: list[str]
    replay_policy: api.ReplayPolicy | Literal["instant", "original"]
    headers_only: bool
    inactive_threshold: float | timedelta
    metadata: dict[str, str]


class ConsumerSettings(OrderedConsumerSettings, total=False):
    """Keyword arguments of `create_consumer` and `update_consumer`; `ConsumerConfig` documents them."""

    durable_name: str
    name: str
    description: str
    ack_policy: api.AckPolicy | Literal["none", "all", "explicit", "flow_control"]
    ack_wait: float | timedelta
    max_deliver: int
    backoff: Sequence[float | timedelta]
    rate_limit_bps: int
    sample_freq: str
    max_waiting: int
    max_ack_pending: int
    flow_control: bool
    max_batch: int
    max_expires: float | timedelta
    max_bytes: int
    deliver_subject: str
    deliver_group: str
    idle_heartbeat: float | timedelta
    num_replicas: int
    mem_storage: bool
    direct: bool
    sourcing: bool
    pause_until: datetime | str | None
    priority_groups: list[str]
    priority_policy: api.PriorityPolicy | Literal["none", "overflow", "pinned_client", "prioritized"]
    priority_timeout: float | timedelta
