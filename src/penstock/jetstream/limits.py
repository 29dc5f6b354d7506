"""Limits of assets and requests, and an engine's configuration. -1 means "no limit"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from penstock.protocol.api import AccountLimits

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

LEVEL_KEY = "_nats.level"
VERSION_KEY = "_nats.ver"
DURABILITY_KEY = "_penstock.durability"  # of replicated streams: what an acknowledgement means

NAME_MAX = 255  # characters of a stream's or consumer's name
DESCRIPTION_MAX = 4096  # bytes
METADATA_MAX = 128 * 1024  # bytes, keys and values together
REPLICAS_MAX = 5
# All that a configuration lists is checked, indexed and returned within one iteration of the event loop.
SUBJECTS_MAX = 10_000  # of a stream; filters of a consumer
BACKOFFS_MAX = 10_000  # of a consumer
SOURCES_MAX = 1000  # of a stream
TRANSFORMS_MAX = 1000  # of all sources of a stream together, or of its mirror
AGE_MIN_NS = 100_000_000  # of max_age and duplicate_window
SEQ_MAX = 2**47  # upper bound of a stream's first sequence; records have room for twice as many
HEADER_MAX = 0xFFFF  # bytes of a header block
NAMES_PAGE = 1024  # entries of one STREAM.NAMES or CONSUMER.NAMES response
LIST_PAGE = 256  # entries of one STREAM.LIST or CONSUMER.LIST response
OWN_TIER = "R1"  # of every stream of a standalone server
SUBJECTS_PAGE = 100_000  # subjects of one STREAM.INFO response
DELETED_DETAILS_MAX = 100_000  # sequences listed by one STREAM.INFO response
MULTI_LAST_MAX = 1024  # subjects that one multi_last request may match
CONSUMERS_PER_STREAM = 1000  # unless the stream or the configuration sets a limit
ATOMIC_INFLIGHT_PER_STREAM = 50  # open atomic batches, unless the configuration sets a limit
ATOMIC_INFLIGHT_TOTAL = 1000
FAST_INFLIGHT_PER_STREAM = 1000  # open fast batches
FAST_INFLIGHT_TOTAL = 50_000


def allows_replicas(config: EngineConfig, replicas: int) -> bool:
    """Whether a server with this configuration has streams and consumers with so many replicas."""
    return replicas <= 1 or config.is_clustered


class EngineConfig(Struct, frozen=True, kw_only=True):
    """JetStream configuration of one account.

    account                      the account's name. Default "$G"
    server_id, server_name       as in INFO; server_name is the `leader` in stream infos
    version                      as in INFO; the `_nats.ver` of assets
    api_level                    the advertised JetStream API level; requests that need more get error 10185
    is_clustered                 whether streams and consumers may have several replicas. Default no
    durability                   of replicated streams, as infos name it; "" (default) without a cluster
    domain                       JetStream domain, "" for none; also served under `$JS.<domain>.API`
    max_memory, max_storage      bytes of all memory streams, of all file streams of the server
    tiers                        limits by a stream's replicas, as in the account's info; if any, a stream
                                 needs its tier among them. A standalone server has only tier R1
    account_memory_max,
    account_storage_max          the account's own limits, as in its info
    max_bytes_required           whether streams must set max_bytes
    memory_max_stream_bytes,
    storage_max_stream_bytes     upper bound of a stream's max_bytes; 0 or less: no limit
    max_streams, max_consumers   of the account
    consumers_per_stream_max     of streams without max_consumers
    max_ack_pending,
    server_max_ack_pending       upper bounds for consumers, of the account and of the server
    max_request_batch            upper bound and default of consumers' max_batch. 0 (default): none
    duplicate_window_max_ns      upper bound of a stream's dedupe window and of its default. 0 (default): none
    duplicate_window_ns          default dedupe window. Default two minutes
    max_payload                  bytes of the largest message of a client. Default 1 MiB
    max_pending                  bytes of a batched direct get without max_bytes
    sync_always                  sync before every ack
    sync_interval_ns             else sync this long after the first unsynced write
    write_retry_ns               time between attempts after a failed write. Default one second
    journal_min_bytes            least size of a consumer's journal that a snapshot replaces
    batch_inflight_per_stream_max,
    batch_inflight_total_max     open batches of a stream, and of all streams of the server; atomic and fast
                                 ones count separately. 0 (default): 50 and 1000 atomic, 1000 and 50,000 fast
    batch_messages_max           messages of an atomic batch. Default 1000
    batch_bytes_max              bytes of the server's open atomic batches. Default 1 GiB
    official_fast_errors         reject fast batches with the official server's error codes, not the ADR's
    batch_timeout_ns             a batch without a message for this long is abandoned. Default ten seconds
    rollup_messages              messages that the roll-ups of one command of a replicated stream remove at
                                 once; the rest takes slices. The same on all servers: what is stored before
                                 the rest is removed has no limits meanwhile. Default 16,384: 2 to 6 ms
    buffered_msgs_max,
    buffered_bytes_max           publishes of a stream that may wait to be stored, and their bytes; 0
                                 (default): 100,000 and 128 MiB during a sync; -1: no limit
    """

    account: str = "$G"
    server_id: str = ""
    server_name: str = ""
    version: str = ""
    api_level: int = 5
    is_clustered: bool = False
    durability: str = ""
    domain: str = ""
    max_memory: int = -1
    max_storage: int = -1
    tiers: Mapping[str, AccountLimits] = field(default_factory=dict)
    account_memory_max: int = -1
    account_storage_max: int = -1
    max_bytes_required: bool = False
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    consumers_per_stream_max: int = CONSUMERS_PER_STREAM
    max_ack_pending: int = -1
    server_max_ack_pending: int = 0
    max_request_batch: int = 0
    duplicate_window_max_ns: int = 0
    duplicate_window_ns: int = 2 * MINUTE_NS
    max_payload: int = 1024 * 1024
    max_pending: int = 64 * 1024 * 1024
    sync_always: bool = False
    sync_interval_ns: int = 2 * MINUTE_NS
    write_retry_ns: int = SECOND_NS
    journal_min_bytes: int = 64 * 1024
    batch_inflight_per_stream_max: int = 0
    batch_inflight_total_max: int = 0
    batch_messages_max: int = 1000
    batch_bytes_max: int = 1024 * 1024 * 1024
    official_fast_errors: bool = False
    batch_timeout_ns: int = 10 * SECOND_NS
    rollup_messages: int = 16 * 1024
    buffered_msgs_max: int = 0
    buffered_bytes_max: int = 0

    @property
    def shown_metadata(self) -> dict[str, str]:
        """What infos of streams add to their metadata."""
        shown = {LEVEL_KEY: str(self.api_level), VERSION_KEY: self.version}
        if self.durability:
            shown[DURABILITY_KEY] = self.durability
        return shown

    def has_tier(self, replicas: int) -> bool:
        """Whether streams with so many replicas have limits."""
        return not self.tiers or f"R{max(1, replicas)}" in self.tiers
