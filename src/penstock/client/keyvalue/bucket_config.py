"""Configuration and status of a bucket, and the configuration of its stream (ADR-8).

Rejected: keeping a bucket's configuration apart from its stream's. The stream is what other clients read, so
an update starts from its stored configuration and keeps what a bucket has no name for.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

import msgspec

from penstock.client.config import StreamConfig, StreamInfo, make_config, plain_value, to_ns
from penstock.client.keyvalue.key_subjects import STREAM_PREFIX, check_bucket, stream_of
from penstock.client.keywords import hint
from penstock.errors import HistoryTooLargeError, MisuseError
from penstock.protocol import api
from penstock.protocol.durations import NS_PER_S

HISTORY_MAX = 64
DUPLICATE_WINDOW_S = 120.0
# nats-py's names of settings and their replacements.
_RENAMED = {
    "republish_subject": "republish",
    "direct": "nothing: buckets allow direct gets",
    "max_value": "max_value_size",
}


class KeyValueSettings(TypedDict, total=False):
    """Keyword arguments of `create_key_value` and `update_key_value`; `KeyValueConfig` documents them."""

    description: str
    max_value_size: int
    history: int
    ttl: float | timedelta
    max_bytes: int
    storage: api.StorageType | str
    replicas: int
    placement: api.Placement | None
    republish: api.Republish | None
    mirror: api.StreamSource | str | None
    sources: list[api.StreamSource | str]
    compression: bool
    limit_marker_ttl: float | timedelta
    allow_atomic: bool
    metadata: dict[str, str]


class KeyValueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket's configuration. Durations in seconds or as timedelta; -1 means "no limit"."""

    bucket: str
    """ASCII letters, digits, `-` and `_`. The stream's name is `KV_` and this."""
    description: str = ""
    max_value_size: int = -1
    """Largest value in bytes, headers included."""
    history: int = 1
    """Entries kept per key, 1 to 64."""
    ttl: float = 0
    """How long entries are kept; 0: without limit."""
    max_bytes: int = -1
    """Size of the bucket; a write beyond it fails with BucketFullError."""
    storage: api.StorageType = api.StorageType.FILE
    replicas: int = 1
    placement: api.Placement | None = None
    republish: api.Republish | None = None
    """Publish every entry again under another subject."""
    mirror: api.StreamSource | None = None
    """The bucket to mirror, as its name or a StreamSource. Writes go to that one."""
    sources: list[api.StreamSource] = []
    """Buckets whose entries are copied into this one, as names or StreamSources."""
    compression: bool = False
    limit_marker_ttl: float = 0
    """Allow TTLs of single keys, and store a marker for this time where one expires, so that watches see it;
    at least 1 s. 0: neither (ADR-48)."""
    allow_atomic: bool = False
    """Allow writes of several keys by `KeyValue.batch`."""
    metadata: dict[str, str] = {}


class KeyValueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a bucket. values: stored entries, history and markers included. bytes: their size."""

    config: KeyValueConfig
    values: int
    bytes: int
    stream_info: StreamInfo

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self.config.bucket

    @property
    def history(self) -> int:
        """Entries kept per key."""
        return self.config.history

    @property
    def ttl(self) -> float:
        """How long entries are kept, seconds; 0: without limit."""
        return self.config.ttl


def make_key_value_config(
    config: KeyValueConfig | str, settings: dict[str, Any], base: KeyValueConfig | None = None
) -> KeyValueConfig:
    """The configuration from a name or configuration and settings of single fields; base: defaults of them.

    Raises MisuseError, HistoryTooLargeError and InvalidBucketError for what no server would accept.
    """
    known = KeyValueSettings.__annotations__
    for name in settings:
        if name not in known:
            raise MisuseError(f"a bucket has no setting {name!r}{hint(name, known, _RENAMED)}")
    start = config if isinstance(config, KeyValueConfig) else base
    fields = start.__struct_fields__ if start is not None else ()
    values = {name: plain_value(getattr(start, name)) for name in fields}
    values |= {name: plain_value(value) for name, value in settings.items()}
    if isinstance(config, str):
        values["bucket"] = config
    if isinstance(values.get("mirror"), str):
        values["mirror"] = {"name": values["mirror"]}
    values["sources"] = [
        {"name": one} if isinstance(one, str) else one for one in values.get("sources") or []
    ]
    try:
        made = msgspec.convert(values, KeyValueConfig)
    except msgspec.ValidationError as error:
        raise MisuseError(f"bucket {values.get('bucket')!r}: {error}") from None
    _check(made)
    return made


def _check(config: KeyValueConfig) -> None:
    check_bucket(config.bucket)
    if not 1 <= config.history <= HISTORY_MAX:
        raise HistoryTooLargeError(
            f"bucket {config.bucket!r}: history is {config.history}; it may be 1 to {HISTORY_MAX} entries"
        )
    if config.mirror is not None and config.sources:
        raise MisuseError(f"bucket {config.bucket!r}: it can have a mirror or sources, not both")
    for name in ("ttl", "limit_marker_ttl"):
        if to_ns(getattr(config, name), name) < 0:
            raise MisuseError(f"bucket {config.bucket!r}: {name} is negative; 0 means none")
    if 0 < config.limit_marker_ttl < 1:
        raise MisuseError(
            f"bucket {config.bucket!r}: limit_marker_ttl is {config.limit_marker_ttl:g} s; it is at least 1 s"
        )


def stream_config_of(config: KeyValueConfig, base: StreamConfig | None = None) -> StreamConfig:
    """The configuration of a bucket's stream. base: the stored one, whose other fields are kept."""
    window_s = min(config.ttl, DUPLICATE_WINDOW_S) if config.ttl else DUPLICATE_WINDOW_S
    settings: dict[str, Any] = {
        "name": stream_of(config.bucket),
        "description": config.description,
        "subjects": [] if config.mirror is not None else [f"$KV.{config.bucket}.>"],
        "max_msgs_per_subject": config.history,
        "max_bytes": config.max_bytes or -1,
        "max_age": config.ttl,
        "max_msg_size": config.max_value_size or -1,
        "storage": config.storage,
        "num_replicas": config.replicas,
        "placement": config.placement,
        "republish": config.republish,
        # The oldest entry of a full bucket may be the only one of its key, so that the write fails instead.
        "discard": api.DiscardPolicy.NEW,
        "duplicate_window": window_s,
        # Deletes are markers, which watches and mirrors see; a removed message is not.
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "max_msgs": -1,
        "max_consumers": -1,
        "compression": api.Compression.S2 if config.compression else api.Compression.NONE,
        "mirror": _prefixed(config.mirror) if config.mirror is not None else None,
        "mirror_direct": config.mirror is not None,
        "sources": [_source(one, config.bucket) for one in config.sources],
        # A stream's TTLs can not be disabled; other clients enable them without markers.
        "allow_msg_ttl": config.limit_marker_ttl > 0 or (base is not None and base.allow_msg_ttl),
        "subject_delete_marker_ttl": config.limit_marker_ttl,
        "allow_atomic": config.allow_atomic,
        "metadata": config.metadata,
    }
    return make_config(StreamConfig, settings, base)


def _prefixed(source: api.StreamSource) -> api.StreamSource:
    if source.name.startswith(STREAM_PREFIX):
        return source
    return msgspec.structs.replace(source, name=stream_of(source.name))


def _source(source: api.StreamSource, bucket: str) -> api.StreamSource:
    """A source whose entries are stored below this bucket's subjects, unless it has transforms already."""
    named = _prefixed(source)
    origin = named.name.removeprefix(STREAM_PREFIX)
    if named.subject_transforms or (named.external is not None and origin == bucket):
        return named
    transform = api.SubjectTransform(src=f"$KV.{origin}.>", dest=f"$KV.{bucket}.>")
    return msgspec.structs.replace(named, subject_transforms=[transform])


def config_of(stream: StreamConfig) -> KeyValueConfig:
    """The bucket's configuration in that of its stream."""
    return KeyValueConfig(
        bucket=stream.name.removeprefix(STREAM_PREFIX),
        description=stream.description,
        max_value_size=stream.max_msg_size or -1,
        history=stream.max_msgs_per_subject,
        ttl=stream.max_age,
        max_bytes=stream.max_bytes,
        storage=stream.storage,
        replicas=stream.num_replicas,
        placement=stream.placement,
        republish=stream.republish,
        mirror=stream.mirror,
        sources=stream.sources,
        compression=stream.compression is not api.Compression.NONE,
        limit_marker_ttl=stream.subject_delete_marker_ttl,
        allow_atomic=stream.allow_atomic,
        metadata={name: value for name, value in stream.metadata.items() if not name.startswith("_nats.")},
    )


def status_of(info: StreamInfo) -> KeyValueStatus:
    return KeyValueStatus(
        config=config_of(info.config), values=info.state.messages, bytes=info.state.bytes, stream_info=info
    )


def differences(found: StreamConfig, wanted: StreamConfig) -> list[str]:
    """What a stored configuration has otherwise than the wanted one, as `history is 5, not 1`."""
    stored, asked = config_of(found), config_of(wanted)
    texts = []
    for name in KeyValueConfig.__struct_fields__:
        is_, should = getattr(stored, name), getattr(asked, name)
        if is_ != should:
            texts.append(f"{name} is {_text(is_)}, not {_text(should)}")
    for name in ("allow_direct", "allow_msg_ttl", "discard", "deny_delete", "allow_rollup_hdrs"):
        is_, should = getattr(found, name), getattr(wanted, name)
        if is_ != should:
            texts.append(f"the stream's {name} is {_text(is_)}, not {_text(should)}")
    return texts


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else repr(value)


def whole_seconds(ttl: float | timedelta, what: str) -> int:
    """A TTL of one message, which servers count in whole seconds. Raises MisuseError for another."""
    ns = to_ns(ttl, "ttl")
    if ns < NS_PER_S or ns % NS_PER_S:
        raise MisuseError(f"{what}: ttl is {ns / NS_PER_S:g} s; it is a whole number of seconds, at least 1")
    return ns // NS_PER_S
