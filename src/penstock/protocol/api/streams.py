"""Streams: configuration, state, and the requests and responses of `$JS.API.STREAM.>`.

Field names, and which zero values are encoded, follow the official server. Configurations are frozen; change
them with `msgspec.structs.replace`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.protocol.api.base import (
    TYPE_PREFIX,
    ZERO_TIME,
    ApiError,
    DurationNs,
    Rfc3339,
    StrEnum,
    always,
    always_list,
)


class RetentionPolicy(StrEnum):
    LIMITS = "limits"
    INTEREST = "interest"
    WORKQUEUE = "workqueue"


class DiscardPolicy(StrEnum):
    OLD = "old"
    NEW = "new"


class StorageType(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class Compression(StrEnum):
    NONE = "none"
    S2 = "s2"


class PersistMode(StrEnum):
    DEFAULT = "default"
    ASYNC = "async"


class Placement(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Placement of an asset in a cluster."""

    cluster: str = ""
    tags: list[str] = []
    preferred: str = ""


class SubjectTransform(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A subject mapping, in the grammar of `protocol/transforms.py`."""

    src: str = always("")
    dest: str = always("")


class Republish(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Publishes stored messages again under another subject."""

    src: str = ""
    dest: str = always("")
    headers_only: bool = False


class ExternalStream(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Access to a stream in another account or domain."""

    api: str = always("")  # API subject prefix
    deliver: str = always("")  # prefix of the delivery subject


class StreamConsumerSource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An existing durable consumer for a mirror or source."""

    name: str = ""
    deliver_subject: str = ""


class StreamSource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The origin stream of a mirror or source."""

    name: str = always("")
    opt_start_seq: int = 0
    opt_start_time: Rfc3339 | None = None
    filter_subject: str = ""
    subject_transforms: list[SubjectTransform] = []
    external: ExternalStream | None = None
    consumer: StreamConsumerSource | None = None


class ApiStreamConsumerLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Limits and defaults for the consumers of a stream."""

    inactive_threshold: DurationNs = 0
    max_ack_pending: int = 0


class ApiStreamConfig(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A stream's configuration. -1 (or 0 in a request) = no limit; durations in ns."""

    name: str = always("")
    description: str = ""
    subjects: list[str] = []
    retention: RetentionPolicy = always(RetentionPolicy.LIMITS)
    max_consumers: int = always(0)
    max_msgs: int = always(0)
    max_bytes: int = always(0)
    max_age: DurationNs = always(0)
    max_msgs_per_subject: int = always(0)
    max_msg_size: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    discard: DiscardPolicy = always(DiscardPolicy.OLD)
    storage: StorageType = always(StorageType.FILE)
    num_replicas: int = always(0)
    no_ack: bool = False
    duplicate_window: DurationNs = 0
    placement: Placement | None = None
    mirror: StreamSource | None = None
    sources: list[StreamSource] = []
    compression: Compression = always(Compression.NONE)
    first_seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    subject_transform: SubjectTransform | None = None
    republish: Republish | None = None
    allow_direct: bool = always(False)
    mirror_direct: bool = always(False)
    discard_new_per_subject: bool = False
    sealed: bool = always(False)
    deny_delete: bool = always(False)
    deny_purge: bool = always(False)
    allow_rollup_hdrs: bool = always(False)
    consumer_limits: ApiStreamConsumerLimits = always(ApiStreamConsumerLimits())
    allow_msg_ttl: bool = always(False)
    subject_delete_marker_ttl: DurationNs = 0
    allow_msg_counter: bool = False
    allow_atomic: bool = False
    allow_msg_schedules: bool = False
    persist_mode: PersistMode = PersistMode.DEFAULT
    allow_batched: bool = False
    metadata: dict[str, str] = {}


class StreamConfigRequest(ApiStreamConfig, frozen=True, omit_defaults=True, kw_only=True):
    """Body of STREAM.CREATE and STREAM.UPDATE. `pedantic`: refuse instead of adjusting defaults."""

    pedantic: bool = False

    def config(self) -> ApiStreamConfig:
        """The configuration without `pedantic`."""
        return ApiStreamConfig(**{name: getattr(self, name) for name in ApiStreamConfig.__struct_fields__})


class LostStreamData(msgspec.Struct, omit_defaults=True, kw_only=True):
    msgs: list[int] = []
    bytes: int = always(0)


class StreamState(msgspec.Struct, omit_defaults=True, kw_only=True):
    """State of a stream. Times are ZERO_TIME when it is empty."""

    messages: int = always(0)
    bytes: int = always(0)
    first_seq: int = always(0)
    first_ts: Rfc3339 = always(ZERO_TIME)
    last_seq: int = always(0)
    last_ts: Rfc3339 = always(ZERO_TIME)
    num_subjects: int = 0
    subjects: dict[str, int] = {}  # subject -> messages; only with subjects_filter
    num_deleted: int = 0
    deleted: list[int] = []  # only with deleted_details
    lost: LostStreamData | None = None
    consumer_count: int = always(0)


class PeerInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A member of a group. active: ns since it was heard. lag: operations that it is behind. peer: its id.
    pending: assigned and not yet a member, or about to be removed."""

    name: str = always("")
    current: bool = always(False)
    offline: bool = False
    active: DurationNs = always(0)
    lag: int = 0
    peer: str = always("")
    pending: bool = False


class DesiredPeerInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A server that a group is to have."""

    name: str = always("")
    offline: bool = False
    peer: str = always("")


class DesiredClusterOrigin(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What STREAM.CANCEL_MOVE restores."""

    replicas: int = always(0)
    placement: Placement | None = None
    retention: RetentionPolicy | None = None


class DesiredClusterStatus(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What the leader of a group does towards its desired state, or waits for. type: meta, membership,
    snapshot, catchup, quorum, blocked or unavailable."""

    description: str = always("")
    type: str = always("")
    err: str = ""


class DesiredClusterInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The servers that a group is to have, while it is scaled, moved or healed. replicas: absent while its
    leader has yet to choose which members stay."""

    created: Rfc3339 = always(ZERO_TIME)
    name: str = ""
    replicas: list[DesiredPeerInfo] = []
    origin: DesiredClusterOrigin | None = None
    status: DesiredClusterStatus | None = None


class ClusterInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The group of a stream or consumer. replicas: its members without the leader; without a leader, all."""

    name: str = ""
    raft_group: str = ""
    leader: str = ""
    leader_since: Rfc3339 | None = None
    system_account: bool = False
    traffic_account: str = ""
    replicas: list[PeerInfo] = []
    desired: DesiredClusterInfo | None = None


class ApiStreamSourceInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Progress of a mirror or source. seq: last sequence received from the origin. active: ns since the last
    message, -1 = never."""

    name: str = always("")
    external: ExternalStream | None = None
    lag: int = always(0)
    seq: int = 0
    active: DurationNs = always(-1)
    error: ApiError | None = None
    filter_subject: str = ""
    subject_transforms: list[SubjectTransform] = []


class StreamAlternate(msgspec.Struct, omit_defaults=True, kw_only=True):
    name: str = always("")
    domain: str = ""
    cluster: str = ""


class ApiStreamInfo(msgspec.Struct, omit_defaults=True, kw_only=True):
    config: ApiStreamConfig
    created: Rfc3339 = always(ZERO_TIME)
    state: StreamState
    domain: str = ""
    cluster: ClusterInfo | None = None
    mirror: ApiStreamSourceInfo | None = None
    sources: list[ApiStreamSourceInfo] = []
    alternates: list[StreamAlternate] = []
    ts: Rfc3339 = ""


class StreamCreateResponse(ApiStreamInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_create_response")
    did_create: bool = False


class StreamUpdateResponse(ApiStreamInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_update_response")


class StreamInfoRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    offset: int = 0
    deleted_details: bool = False
    subjects_filter: str = ""


class StreamInfoResponse(ApiStreamInfo, omit_defaults=True, kw_only=True):
    """total, offset and limit page through `state.subjects`; all are 0 without subjects_filter."""

    type: str = always(TYPE_PREFIX + "stream_info_response")
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(0)


class StreamNamesRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Body of STREAM.NAMES and STREAM.LIST. subject: only streams whose subjects overlap it."""

    offset: int = 0
    subject: str = ""


class StreamNamesResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_names_response")
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(1024)
    streams: list[str] = always_list()


class StreamListResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_list_response")
    total: int = always(0)
    offset: int = always(0)
    limit: int = always(256)
    streams: list[ApiStreamInfo] = always_list()
    missing: list[str] = []
    offline: dict[str, str] = {}  # name -> reason


class StreamSnapshotRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """no_consumers: omit consumers. chunk_size: bytes per chunk. window_size: maximum unacked bytes.
    jsck: verify checksums; the server always does."""

    deliver_subject: str = ""
    no_consumers: bool = False
    chunk_size: int = 0
    window_size: int = 0
    jsck: bool = False


class StreamSnapshotResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_snapshot_response")
    config: ApiStreamConfig
    state: StreamState


class StreamRestoreRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """state: the stream's state according to the backup. The server uses the archive's state instead."""

    config: StreamConfigRequest
    state: StreamState = msgspec.field(default_factory=StreamState)


class StreamRestoreResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_restore_response")
    deliver_subject: str = always("")


class StreamPurgeRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """filter: only these subjects; seq: only sequences below it; keep: all but the newest `keep` messages."""

    filter: str = ""
    seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    keep: Annotated[int, msgspec.Meta(ge=0)] = 0


class StreamPurgeResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "stream_purge_response")
    success: bool = False
    purged: int = always(0)
