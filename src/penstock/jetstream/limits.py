"""What a JetStream engine is told about its server: names, levels, limits. Frozen; -1 means "no limit"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from penstock.protocol.api import AccountLimits

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

NAME_MAX = 255  # characters of a stream's or consumer's name
DESCRIPTION_MAX = 4096  # bytes
METADATA_MAX = 128 * 1024  # bytes, keys and values together
REPLICAS_MAX = 5
# What a configuration lists is checked, indexed and answered within one turn of the event loop.
SUBJECTS_MAX = 10_000  # of a stream; filters of a consumer
BACKOFFS_MAX = 10_000  # of a consumer
SOURCES_MAX = 1000  # of a stream
TRANSFORMS_MAX = 1000  # of all sources of a stream together, or of its mirror
AGE_MIN_NS = 100_000_000  # of max_age and duplicate_window
SEQ_MAX = 2**47  # a stream begins or goes on below it; records have room for twice as many
HEADER_MAX = 0xFFFF  # bytes of a header block
NAMES_PAGE = 1024  # entries of one STREAM.NAMES or CONSUMER.NAMES response
LIST_PAGE = 256  # entries of one STREAM.LIST or CONSUMER.LIST response
OWN_TIER = "R1"  # of every stream of a server that stands alone
SUBJECTS_PAGE = 100_000  # subjects of one STREAM.INFO response
DELETED_DETAILS_MAX = 100_000  # sequences listed by one STREAM.INFO response
MULTI_LAST_MAX = 1024  # subjects one multi_last request may match
CONSUMERS_PER_STREAM = 1000  # where neither the stream nor the configuration names a limit
ATOMIC_INFLIGHT_PER_STREAM = 50  # atomic batches that may be open, unless the configuration says otherwise
ATOMIC_INFLIGHT_TOTAL = 1000
FAST_INFLIGHT_PER_STREAM = 1000  # the same of fast ingest
FAST_INFLIGHT_TOTAL = 50_000


class EngineConfig(Struct, frozen=True, kw_only=True):
    """One account's JetStream, as its server configures it.

    account: the account's name. Default "$G".
    server_id, server_name: as in INFO. server_name is the `leader` in stream infos.
    version: as in INFO; the `_nats.ver` of assets.
    api_level: the JetStream API level advertised; requests that need more are refused with 10185.
    domain: JetStream domain, "" for none; also served under `$JS.<domain>.API`.
    max_memory, max_storage: bytes all memory, all file streams of the server together may hold.
    tiers: limits by a stream's replicas, as the account's info shows them; where there are some, only streams
    whose tier is among them may be. A server that stands alone has one of each stream: tier R1.
    account_memory_max, account_storage_max: what the account itself is limited to, as its info tells.
    max_bytes_required: must streams have max_bytes?
    memory_max_stream_bytes, storage_max_stream_bytes: the most a stream's max_bytes may be, 0 or less for no
    limit.
    max_streams, max_consumers: assets of the account. consumers_per_stream_max: of streams that set no
    max_consumers.
    max_ack_pending, server_max_ack_pending: upper bounds for consumers, of the account and of the server.
    max_request_batch: upper bound of consumers' max_batch, and their default. 0 (default) = none.
    duplicate_window_max_ns: upper bound of a stream's dedupe window, and of its default. 0 (default) = none.
    duplicate_window_ns: default dedupe window of a stream. Default two minutes.
    max_payload: bytes of the largest message a client may send. Default 1 MiB.
    max_pending: bytes one batched direct get may answer with when the request names no max_bytes.
    sync_always: fsync before every ack. sync_interval_ns: else fsync this long after a first unsynced write.
    write_retry_ns: after a failed write, how long until the next try. Default one second.
    journal_min_bytes: bytes of a consumer's journal after which a snapshot may replace it.
    batch_inflight_per_stream_max, batch_inflight_total_max: batches that may be open in a stream, and in all
    streams of the server; atomic ones and fast ones count apart. 0 (default): 50 and 1000 atomic, 1000 and
    50,000 fast ones.
    batch_messages_max: messages of an atomic batch. Default 1000.
    batch_bytes_max: bytes that the open atomic batches of the server may hold. Default 1 GiB.
    official_fast_errors: refuse fast batches with the official server's error numbers, not the ADR's.
    batch_timeout_ns: a batch of which nothing came for this long is abandoned. Default ten seconds.
    buffered_msgs_max, buffered_bytes_max: publishes that may wait to be stored in a stream, and their bytes;
    0 (default): 100,000 and 128 MiB while the disk is waited for, -1 = no limit.
    """

    account: str = "$G"
    server_id: str = ""
    server_name: str = ""
    version: str = ""
    api_level: int = 5
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
    buffered_msgs_max: int = 0
    buffered_bytes_max: int = 0

    def has_tier(self, replicas: int) -> bool:
        """Are there limits for streams of so many replicas?"""
        return not self.tiers or f"R{max(1, replicas)}" in self.tiers
