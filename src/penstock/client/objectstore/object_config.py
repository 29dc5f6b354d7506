"""Configuration and status of an object store, and the configuration of its stream (ADR-20)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypedDict

import msgspec

from penstock.client.config import StreamConfig, StreamInfo, make_config, plain_value, to_ns
from penstock.client.keyvalue.key_subjects import check_bucket
from penstock.client.keywords import hint
from penstock.errors import MisuseError
from penstock.protocol import api

STREAM_PREFIX = "OBJ_"
DUPLICATE_WINDOW_S = 120.0


class ObjectStoreSettings(TypedDict, total=False):
    """Keyword arguments of `create_object_store`; `ObjectStoreConfig` documents them."""

    description: str
    ttl: float | timedelta
    max_bytes: int
    storage: api.StorageType | str
    replicas: int
    placement: api.Placement | None
    compression: bool
    allow_batched: bool
    metadata: dict[str, str]


class ObjectStoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An object store's configuration. Durations in seconds or as timedelta; -1 means "no limit"."""

    bucket: str
    """ASCII letters, digits, `-` and `_`. The stream's name is `OBJ_` and this."""
    description: str = ""
    ttl: float = 0
    """How long objects are kept; 0: without limit."""
    max_bytes: int = -1
    """Size of the store; a put beyond it fails with BucketFullError."""
    storage: api.StorageType = api.StorageType.FILE
    replicas: int = 1
    placement: api.Placement | None = None
    compression: bool = False
    allow_batched: bool = False
    """Store chunks by fast ingest: the server acks several at once (ADR-50)."""
    metadata: dict[str, str] = {}


class ObjectStoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of an object store. size: bytes, chunks and metadata included. sealed: it takes no changes."""

    config: ObjectStoreConfig
    size: int
    sealed: bool
    stream_info: StreamInfo

    @property
    def bucket(self) -> str:
        """Name of the store."""
        return self.config.bucket


def stream_of_store(bucket: str) -> str:
    """Name of a store's stream. Raises InvalidBucketError."""
    return STREAM_PREFIX + check_bucket(bucket)


def make_store_config(
    config: ObjectStoreConfig | str, settings: dict[str, Any], base: ObjectStoreConfig | None = None
) -> ObjectStoreConfig:
    """The configuration from a name or configuration and settings of single fields; base: defaults of them.

    Raises MisuseError and InvalidBucketError for what no server would accept.
    """
    known = ObjectStoreSettings.__annotations__
    for name in settings:
        if name not in known:
            raise MisuseError(f"an object store has no setting {name!r}{hint(name, known, {})}")
    start = config if isinstance(config, ObjectStoreConfig) else base
    fields = start.__struct_fields__ if start is not None else ()
    values = {name: plain_value(getattr(start, name)) for name in fields}
    values |= {name: plain_value(value) for name, value in settings.items()}
    if isinstance(config, str):
        values["bucket"] = config
    try:
        made = msgspec.convert(values, ObjectStoreConfig)
    except msgspec.ValidationError as error:
        raise MisuseError(f"object store {values.get('bucket')!r}: {error}") from None
    check_bucket(made.bucket)
    if to_ns(made.ttl, "ttl") < 0:
        raise MisuseError(f"object store {made.bucket!r}: ttl is negative; 0 means none")
    return made


def store_stream_config(config: ObjectStoreConfig, base: StreamConfig | None = None) -> StreamConfig:
    """The configuration of a store's stream. base: the stored one, whose other fields are kept."""
    settings: dict[str, Any] = {
        "name": stream_of_store(config.bucket),
        "description": config.description,
        "subjects": [f"$O.{config.bucket}.C.>", f"$O.{config.bucket}.M.>"],
        "max_age": config.ttl,
        # The ids of chunks matter for the time of a lost connection; the window may not exceed the ttl.
        "duplicate_window": min(config.ttl, DUPLICATE_WINDOW_S) if config.ttl else DUPLICATE_WINDOW_S,
        "max_bytes": config.max_bytes or -1,
        "storage": config.storage,
        "num_replicas": config.replicas,
        "placement": config.placement,
        # A full store refuses chunks, so that no object loses some of its own.
        "discard": api.DiscardPolicy.NEW,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "compression": api.Compression.S2 if config.compression else api.Compression.NONE,
        "allow_batched": config.allow_batched,
        "metadata": config.metadata,
    }
    return make_config(StreamConfig, settings, base)


def store_config_of(stream: StreamConfig) -> ObjectStoreConfig:
    """The store's configuration in that of its stream."""
    return ObjectStoreConfig(
        bucket=stream.name.removeprefix(STREAM_PREFIX),
        description=stream.description,
        ttl=stream.max_age,
        max_bytes=stream.max_bytes,
        storage=stream.storage,
        replicas=stream.num_replicas,
        placement=stream.placement,
        compression=stream.compression is not api.Compression.NONE,
        allow_batched=stream.allow_batched,
        metadata={name: value for name, value in stream.metadata.items() if not name.startswith("_nats.")},
    )


def store_status_of(info: StreamInfo) -> ObjectStoreStatus:
    return ObjectStoreStatus(
        config=store_config_of(info.config),
        size=info.state.bytes,
        sealed=info.config.sealed,
        stream_info=info,
    )


def store_differences(found: StreamConfig, wanted: StreamConfig) -> list[str]:
    """What a stored configuration has otherwise than the wanted one, as `ttl is 5, not 0`."""
    stored, asked = store_config_of(found), store_config_of(wanted)
    names = ObjectStoreConfig.__struct_fields__
    texts = [
        f"{name} is {getattr(stored, name)!r}, not {getattr(asked, name)!r}"
        for name in names
        if getattr(stored, name) != getattr(asked, name)
    ]
    for name in ("allow_direct", "discard", "allow_rollup_hdrs", "sealed"):
        if getattr(found, name) != getattr(wanted, name):
            texts.append(f"the stream's {name} is {getattr(found, name)!r}, not {getattr(wanted, name)!r}")
    return texts
