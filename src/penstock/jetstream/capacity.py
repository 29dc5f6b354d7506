"""Storage use and limits of an account: bytes, streams, and open batches.

Some limits belong to the account, others to the server and are shared by all its accounts, whose use is
queried each time. Bytes are those of each stream's last note(); reserved bytes are the configured
`max_bytes`; a restore in progress counts as used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.jetstream.limits import FAST_INFLIGHT_PER_STREAM, FAST_INFLIGHT_TOTAL
from penstock.jetstream.tiers import flat, tiered
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AccountInfo, ApiError, ApiStreamConfig, StorageType

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.limits import EngineConfig
    from penstock.jetstream.stream.stream_replica import StreamReplica


class Capacity:
    """Capacity of one account's engine."""

    def __init__(self, engine: JetStreamEngine, engines: Iterable[JetStreamEngine]) -> None:
        """engines: a live view of the server's engines, whose use counts against the server's limits."""
        self._engine = engine
        self._engines = engines
        self._used = dict.fromkeys(StorageType, 0)
        self._accounted: dict[StreamReplica, int] = {}  # each stream's part of it

    @property
    def _config(self) -> EngineConfig:
        return self._engine.config

    # --- what is held --------------------------------------------------------------------------

    def note(self, stream: StreamReplica) -> None:
        """Updates the accounted size of a stream."""
        size = stream.log.bytes
        self._used[stream.config.storage] += size - self._accounted.get(stream, 0)
        self._accounted[stream] = size

    def forget(self, stream: StreamReplica) -> None:
        """Removes a deleted stream from the account's use."""
        self._used[stream.config.storage] -= self._accounted.pop(stream, 0)

    def used(self, storage: StorageType) -> int:
        """Bytes in all streams of this storage, as of each stream's last note()."""
        return self._used[storage]

    def reserved(self, storage: StorageType, without: StreamReplica | None = None) -> int:
        """The sum of max_bytes of the streams of this storage, except `without`."""
        return sum(
            stream.config.max_bytes
            for stream in self._engine.streams.values()
            if stream is not without and stream.config.storage is storage and stream.config.max_bytes > 0
        )

    def fast_batches(self) -> int:
        """The number of open fast batches."""
        return sum(stream.fast.batches.count for stream in self._engine.streams.values())

    def _used_elsewhere(self, storage: StorageType) -> int:
        used = 0  # a plain loop: runs in every tick that stores something
        for engine in self._engines:
            if engine is not self._engine:
                used += engine.capacity.used(storage)
        return used

    def _reserved_elsewhere(self, storage: StorageType) -> int:
        others = (engine for engine in self._engines if engine is not self._engine)
        return sum(engine.capacity.reserved(storage) for engine in others)

    def _fast_batches_elsewhere(self) -> int:
        others = (engine for engine in self._engines if engine is not self._engine)
        return sum(engine.capacity.fast_batches() for engine in others)

    def info(self) -> AccountInfo:
        """The account's use and limits, as `$JS.API.INFO` returns them."""
        info = AccountInfo(
            memory=self._used[StorageType.MEMORY],
            storage=self._used[StorageType.FILE],
            reserved_memory=self.reserved(StorageType.MEMORY),
            reserved_storage=self.reserved(StorageType.FILE),
            streams=len(self._engine.streams),
            consumers=sum(len(stream.consumers) for stream in self._engine.streams.values()),
            limits=flat(self._config),
            domain=self._config.domain,
            api=self._engine.api_stats,
        )
        return tiered(info, self._config.tiers) if self._config.tiers else info

    # --- what is allowed -----------------------------------------------------------------------

    def _limits(self, storage: StorageType) -> tuple[int, int]:
        """The account's own limit, and the server's for all accounts; -1 = no limit."""
        config = self._engine.config
        if storage is StorageType.MEMORY:
            return config.account_memory_max, config.max_memory
        return config.account_storage_max, config.max_storage

    def has_room(self, storage: StorageType, size: int) -> bool:
        """Whether `size` more bytes of this storage fit. Restores in progress count as used."""
        used = self._used[storage] + self._engine.transfers.used(storage) + size
        own, limit = self._limits(storage)
        return not (0 <= own < used or 0 <= limit < used + self._used_elsewhere(storage))

    def admit(self, stream: StreamReplica) -> None:
        """Sets what the stream may store now: whether it rejects publishes, and the size up to which it may
        grow."""
        storage = stream.config.storage
        own, limit = self._limits(storage)
        used = self._used[storage]
        bytes_end = None if own < 0 else self._accounted.get(stream, 0) + own - used
        refusal = stream.durability.failure or self._refusal(storage, own, limit, used)
        if refusal is not stream.refuse_all or bytes_end != stream.bytes_end:
            stream.admit(refusal, bytes_end)

    def _refusal(self, storage: StorageType, own: int, limit: int, used: int) -> ApiError | None:
        """Why the account, with limit `own` of its own and `limit` of the server, cannot store publishes now;
        None when it can."""
        config = self._engine.config
        if config.tiers and not config.has_tier(1):
            return codes.NO_LIMITS
        if 0 <= own <= used:
            return codes.ACCOUNT_RESOURCES_EXCEEDED
        return codes.INSUFFICIENT_RESOURCES if 0 <= limit <= used + self._used_elsewhere(storage) else None

    def check(self, config: ApiStreamConfig, present: StreamReplica | None) -> None:
        """Checks the limits for a new stream, or for an update of `present`.

        Raises JetStreamApiError 10120 without a limit for its tier, 10113 and 10122 for its max_bytes, 10027
        for one stream too many, 10028 and 10047 when the reservations exceed the limits.
        """
        if not self._config.has_tier(1):
            raise codes.NO_LIMITS.exception()
        is_memory = config.storage is StorageType.MEMORY
        own = self._config.memory_max_stream_bytes if is_memory else self._config.storage_max_stream_bytes
        if self._config.max_bytes_required and config.max_bytes <= 0:
            raise codes.STREAM_MAX_BYTES_REQUIRED.exception()
        if 0 < own < config.max_bytes:
            raise codes.STREAM_MAX_STREAM_BYTES_EXCEEDED.exception()
        if present is None and 0 <= self._config.max_streams <= len(self._engine.streams):
            raise codes.MAXIMUM_STREAMS_LIMIT.exception()
        own_limit, limit = self._limits(config.storage)
        if limit < 0 or config.max_bytes <= 0:
            return
        wanted = self.reserved(config.storage, present) + config.max_bytes
        if 0 <= own_limit < wanted or wanted + self._reserved_elsewhere(config.storage) > limit:
            if is_memory:
                raise codes.MEMORY_RESOURCES_EXCEEDED.exception()
            raise codes.STORAGE_RESOURCES_EXCEEDED.exception()

    def may_start_fast_batch(self, count: int) -> bool:
        """Whether one more fast batch of a stream that has `count` fits the limits of the stream and of the
        server."""
        own_max = self._config.batch_inflight_per_stream_max or FAST_INFLIGHT_PER_STREAM
        total_max = self._config.batch_inflight_total_max or FAST_INFLIGHT_TOTAL
        return count < own_max and self.fast_batches() + self._fast_batches_elsewhere() < total_max
