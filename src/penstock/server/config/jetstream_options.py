"""JetStream options: the `jetstream` block."""

from __future__ import annotations

from msgspec import Struct

from penstock.errors import ConfigError
from penstock.server.config.option_checks import NS, at_least


class JetStreamOptions(Struct, frozen=True, kw_only=True):
    """The `jetstream` block."""

    store_dir: str | None = None
    """Parent directory of `jetstream/`. None (default) = everything in memory. `store_dir`."""
    max_memory_bytes: int = -1
    """Maximum bytes of all memory streams; -1 (default) = 3/4 of the machine's memory. `max_memory_store`."""
    max_file_bytes: int = -1
    """Maximum bytes of all file streams; -1 (default) = 3/4 of the free disk space. `max_file_store`."""
    domain: str = ""
    """JetStream domain, one subject token. Default none. `domain`."""
    extension_hint: str = ""
    """With leaf nodes and no domain: `will_extend` lets `$JS.API` of the system account pass to a hub.
    Default none. `extension_hint`."""
    unique_tag: str = ""
    """In a cluster: prefix of the tag that must differ between the servers of a stream's replicas. Default
    none. `unique_tag`."""
    sync_interval_ns: int = 120 * NS
    """Fsync interval of file streams, ns, > 0. Default 2 minutes. `sync_interval`."""
    sync_always: bool = False
    """Fsync before every ack. Default off. `sync_interval: always`."""
    sync_replicas: bool = True
    """In a cluster: acknowledge what a majority has synced. False: what it has handed to its operating
    systems, as the official server does; set by a `sync_interval` other than `always`. Default on."""
    cipher: str = "chacha"
    """Cipher of encrypted files: "chacha" (default) or "aes". `cipher`."""
    key: str = ""
    """Encryption key of the files; "" (default) = no encryption. `key`, `ek`, `encryption_key`."""
    prev_key: str = ""
    """Previous key, when `key` changes. `prev_key`, `prev_ek`, `prev_encryption_key`."""
    batch_inflight_per_stream_max: int = 0
    """Maximum open batches per stream; 0 (default) = 50 atomic and 1000 fast ones.
    `limits.batch.max_inflight_per_stream`."""
    batch_inflight_total_max: int = 0
    """Maximum open batches of the server; 0 (default) = 1000 atomic and 50,000 fast ones.
    `limits.batch.max_inflight_total`."""
    batch_messages_max: int = 1000
    """Maximum messages of an atomic batch, > 0. Default 1000. `limits.batch.max_msgs`."""
    batch_bytes_max: int = 1024 * 1024 * 1024
    """Maximum memory of all open atomic batches, bytes, > 0; further messages are refused (10210). Default 1
    GiB. `limits.batch.max_bytes`."""
    batch_timeout_ns: int = 10 * NS
    """Idle time after which a batch is abandoned, ns, > 0. Default 10 s.
    `limits.batch.timeout`."""
    duplicate_window_max_ns: int = 0
    """Maximum duplicate window of a stream, and the default one if below two minutes; 0 (default) = no limit.
    `limits.duplicate_window`."""
    ack_pending_max: int = 0
    """Maximum unacked messages of a consumer; 0 (default) = no limit. `limits.max_ack_pending`."""
    ha_assets_max: int = 0
    """In a cluster: maximum streams with more than one replica on a server; requests that this server takes
    place no more there. 0 (default) or less = no limit. `limits.max_ha_assets`."""
    request_batch_max: int = 0
    """Maximum batch of a pull request: upper limit and default of a consumer's `max_batch`; 0 (default) = no
    limit. `limits.max_request_batch`."""
    consumers_per_stream_max: int = 0
    """Maximum consumers of a stream without own limit; 0 (default) = 1000, -1 = no limit.
    `limits.default_max_consumers`."""
    buffered_msgs_max: int = 0
    """Maximum publishes that wait to be stored in a stream; more are refused with 429. -1 = no limit,
    0 (default) = 100,000 while the disk is busy. `max_buffered_msgs`."""
    buffered_bytes_max: int = 0
    """Maximum bytes of these publishes; 0 (default) = 128 MiB. `max_buffered_size`."""
    request_queue_limit: int = 0
    """Maximum API requests that wait for the disk; on overflow all of them are dropped. 0 (default) or less =
    10,000. `request_queue_limit`."""
    info_queue_limit: int = 0
    """The same limit for read-only requests; 0 (default) or less = as `request_queue_limit`.
    `info_queue_limit`."""
    official_fast_errors: bool = False
    """Use the official server's error codes for fast ingest (10205 to 10208) instead of those of ADR-50
    (10203 to 10206, the default). `fast_ingest_errors: official`."""

    def __post_init__(self) -> None:
        if self.prev_key and not self.key:
            raise ConfigError("jetstream.prev_key is set without key; name the key to change to")
        at_least("jetstream.sync_interval", self.sync_interval_ns, 1)
        at_least("jetstream.limits.duplicate_window", self.duplicate_window_max_ns, 0)
        at_least("jetstream.limits.max_ack_pending", self.ack_pending_max, 0)
        at_least("jetstream.limits.max_request_batch", self.request_batch_max, 0)
        at_least("jetstream.limits.default_max_consumers", self.consumers_per_stream_max, -1)
        at_least("jetstream.limits.batch.max_inflight_per_stream", self.batch_inflight_per_stream_max, 0)
        at_least("jetstream.limits.batch.max_inflight_total", self.batch_inflight_total_max, 0)
        at_least("jetstream.limits.batch.max_msgs", self.batch_messages_max, 1)
        at_least("jetstream.limits.batch.max_bytes", self.batch_bytes_max, 1)
        at_least("jetstream.limits.batch.timeout", self.batch_timeout_ns, 1)
        if any(c in self.domain for c in ".*> \t\r\n"):
            raise ConfigError(
                f"jetstream.domain is {self.domain!r}; it must be one token: no '.', '*', '>' or space"
            )

    @property
    def durability(self) -> str:
        """What an acknowledgement of a replicated stream means."""
        return "majority synced" if self.sync_replicas else "majority written"

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in ("key", "prev_key"))
        return f"JetStreamOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
