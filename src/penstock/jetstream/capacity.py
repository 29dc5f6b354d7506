"""Storage use and limits of an account: bytes, streams, and open batches.

Some limits belong to the account, others to the server and are shared by all its accounts, whose use is
queried each time. Bytes are those of each stream's last note(); reserved bytes are the configured
`max_bytes`; a restore in progress counts as used.

In a cluster the limits of an account hold for its streams on all servers (cluster_use.py), those of a server
for what is on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.jetstream.cluster_use import ClusterUse, kind_of
from penstock.jetstream.commands import Admit, LimitBatches, LimitRollups
from penstock.jetstream.inflight import Inflight
from penstock.jetstream.limits import (
    ATOMIC_INFLIGHT_PER_STREAM,
    ATOMIC_INFLIGHT_TOTAL,
    FAST_INFLIGHT_PER_STREAM,
    FAST_INFLIGHT_TOTAL,
    EngineConfig,
)
from penstock.jetstream.stream.rollups import Allowance
from penstock.jetstream.stream.stream_replica import StreamReplica
from penstock.jetstream.stream_table import StreamTable
from penstock.jetstream.tiers import NONE, flat, tiered
from penstock.protocol import error_codes as codes
from penstock.protocol.api import AccountInfo, AccountTier, ApiError, ApiStats, ApiStreamConfig, StorageType


class HasCapacity(Protocol):
    """An account of the server."""

    @property
    def capacity(self) -> Capacity:
        """Its use of storage."""


class Capacity:
    """Capacity of one account's engine.

    table: its streams. inflight: open atomic batches of the server. allowance: what its roll-ups may remove
    at once. restoring: returns the bytes of incomplete streams of a storage. api_stats: shown in infos.
    accounts: a live view of the server's accounts, whose use counts against the server's limits; this one is
    among them once it is open.

    cluster_use: what the account uses in the cluster.
    """

    def __init__(
        self,
        config: EngineConfig,
        table: StreamTable,
        accounts: Iterable[HasCapacity],
        *,
        inflight: Inflight,
        allowance: Allowance,
        restoring: Callable[[StorageType], int],
        api_stats: ApiStats,
    ) -> None:
        self._streams = table.open
        self._accounts = accounts
        self._inflight = inflight
        self._allowance = allowance
        self._restoring = restoring
        self._api_stats = api_stats
        self.cluster_use = ClusterUse()
        self._used = dict.fromkeys(StorageType, 0)
        self._accounted: dict[StreamReplica, int] = {}  # each stream's part of it
        self.configure(config)

    def configure(self, config: EngineConfig) -> None:
        """Applies changed limits to what comes next."""
        self._config = config
        # The account's own limit, and the server's for all accounts; -1 = no limit. (Used in every tick.)
        self._limits = {
            StorageType.MEMORY: (config.account_memory_max, config.max_memory),
            StorageType.FILE: (config.account_storage_max, config.max_storage),
        }
        self._no_tier = None if config.has_tier(1) else codes.NO_LIMITS

    # --- what is used --------------------------------------------------------------------------

    def note(self, stream: StreamReplica) -> None:
        """Updates the accounted size of a stream."""
        size = stream.log.bytes
        self._used[stream.config.storage] += size - self._accounted.get(stream, 0)
        self._accounted[stream] = size
        if stream.group is not None:
            self.cluster_use.note(stream, size)

    def forget(self, stream: StreamReplica) -> None:
        """Removes a deleted stream from the account's use."""
        self._used[stream.config.storage] -= self._accounted.pop(stream, 0)
        self.cluster_use.end_leading(stream)

    def used(self, storage: StorageType) -> int:
        """Bytes in all streams of this storage, as of each stream's last note()."""
        return self._used[storage]

    def reserved(self, storage: StorageType, without: StreamReplica | None = None) -> int:
        """The sum of max_bytes of the streams of this storage, except `without`."""
        return sum(
            stream.config.max_bytes
            for stream in self._streams.values()
            if stream is not without and stream.config.storage is storage and stream.config.max_bytes > 0
        )

    def fast_batches(self) -> int:
        """The number of open fast batches."""
        count = 0  # a plain loop, like those below: they run in every tick that stores something
        for stream in self._streams.values():
            count += stream.fast.batches.count
        return count

    def _used_elsewhere(self, storage: StorageType) -> int:
        used = 0
        for account in self._accounts:
            capacity = account.capacity
            if capacity is not self:
                used += capacity._used[storage]
        return used

    def _reserved_elsewhere(self, storage: StorageType) -> int:
        others = (one.capacity for one in self._accounts if one.capacity is not self)
        return sum(capacity.reserved(storage) for capacity in others)

    def _fast_batches_elsewhere(self) -> int:
        count = 0
        for account in self._accounts:
            capacity = account.capacity
            if capacity is not self:
                count += capacity.fast_batches()
        return count

    def info(self) -> AccountInfo:
        """The account's use and limits, as `$JS.API.INFO` returns them."""
        info = AccountInfo(
            memory=self._used[StorageType.MEMORY],
            storage=self._used[StorageType.FILE],
            reserved_memory=self.reserved(StorageType.MEMORY),
            reserved_storage=self.reserved(StorageType.FILE),
            streams=len(self._streams),
            consumers=sum(len(stream.consumers) for stream in self._streams.values()),
            limits=flat(self._config),
            domain=self._config.domain,
            api=self._api_stats,
        )
        return tiered(info, self._config.tiers, self._tiers()) if self._config.tiers else info

    def _tiers(self) -> dict[str, AccountTier]:
        """The use of each tier on this server."""
        tiers: dict[str, Counter[str]] = {}
        for stream in self._streams.values():
            storage, replicas = kind_of(stream)
            kind = "memory" if storage is StorageType.MEMORY else "storage"
            tiers.setdefault(f"R{replicas}", Counter()).update(
                {
                    "streams": 1,
                    "consumers": len(stream.consumers),
                    kind: self._accounted.get(stream, 0),
                    f"reserved_{kind}": max(0, stream.config.max_bytes),
                }
            )
        return {name: AccountTier(limits=NONE, **used) for name, used in tiers.items()}

    # --- what is allowed -----------------------------------------------------------------------

    def has_room(self, storage: StorageType, size: int) -> bool:
        """Whether `size` more bytes of this storage fit. Restores in progress count as used."""
        here = self._restoring(storage) + size
        used, (own, limit) = self._used[storage] + here, self._limits[storage]
        of_account = used
        if self._config.is_clustered:
            of_account = self.cluster_use.total(storage) + here
            own = own if not self._config.tiers else -1  # its tier is known when it is complete
        return not (0 <= own < of_account or 0 <= limit < used + self._used_elsewhere(storage))

    def admit(self, stream: StreamReplica) -> None:
        """Sets what the stream may store now: whether it rejects publishes, the size up to which it may
        grow, how many batches it may open, and how many messages its roll-ups may remove at once.

        Other streams share all of that, so a command that changes the stream can not depend on it: what is
        set here is a command itself, applied before the next one where it has changed.
        """
        storage = stream.config.storage
        own, limit = self._limits[storage]
        used, size = self._used[storage], self._accounted.get(stream, 0)
        others, copies, no_tier = used - size, 1, self._no_tier
        if stream.group is not None:
            own, others, copies, no_tier = self._in_cluster(stream)
        bytes_end = None if own < 0 else (own - others) // copies
        refusal = stream.durability.failure or no_tier
        if refusal is None:
            if 0 <= own <= others + copies * size:
                refusal = codes.ACCOUNT_RESOURCES_EXCEEDED
            elif 0 <= limit <= used + self._used_elsewhere(storage):
                refusal = codes.INSUFFICIENT_RESOURCES
        if stream.group is not None:
            # What was submitted last may not be applied yet. Roll-ups have a limit of their own: see decision
            # 0032.
            stream.group.submit_changed(Admit(refusal, bytes_end))
            if stream.takes_batches:
                stream.group.submit_changed(self._batch_limits(stream))
            return
        if refusal is not stream.refuse_all or bytes_end != stream.bytes_end:
            stream.admit(refusal, bytes_end)
        if stream.takes_batches:
            limits = self._batch_limits(stream)
            if limits != stream.batch_limits:
                stream.apply(limits, stream.now)
        if stream.rollups.left != self._allowance.left:
            stream.apply(LimitRollups(self._allowance.left), stream.now)

    def _in_cluster(self, stream: StreamReplica) -> tuple[int, int, int, ApiError | None]:
        """For a stream that this server leads: the account's limit, what its other streams use of it, how
        many times a byte of this one counts, and why it may store nothing."""
        config, kind, use = self._config, kind_of(stream), self.cluster_use
        storage, replicas = kind
        if not config.tiers:
            own = self._limits[storage][0]
            if own < 0:
                return own, 0, 1, None
            return own, max(0, use.total(storage) - replicas * use.part_of(stream)), replicas, None
        tier = config.tiers.get(f"R{replicas}")
        if tier is None:
            return -1, 0, 1, codes.NO_LIMITS
        own = tier.max_memory if storage is StorageType.MEMORY else tier.max_storage
        return own, max(0, use.of_kind(kind) - use.part_of(stream)), 1, None

    def check(self, config: ApiStreamConfig, present: StreamReplica | None) -> None:
        """Checks the limits for a new stream, or for an update of `present`.

        Raises JetStreamApiError 10120 without a limit for its tier, 10113 and 10122 for its max_bytes, 10027
        for one stream too many, 10028 and 10047 when the reservations exceed the limits.
        """
        if self._no_tier is not None:
            raise self._no_tier.exception()
        is_memory = config.storage is StorageType.MEMORY
        own = self._config.memory_max_stream_bytes if is_memory else self._config.storage_max_stream_bytes
        if self._config.max_bytes_required and config.max_bytes <= 0:
            raise codes.STREAM_MAX_BYTES_REQUIRED.exception()
        if 0 < own < config.max_bytes:
            raise codes.STREAM_MAX_STREAM_BYTES_EXCEEDED.exception()
        if present is None and 0 <= self._config.max_streams <= len(self._streams):
            raise codes.MAXIMUM_STREAMS_LIMIT.exception()
        own_limit, limit = self._limits[config.storage]
        if limit < 0 or config.max_bytes <= 0:
            return
        wanted = self.reserved(config.storage, present) + config.max_bytes
        if 0 <= own_limit < wanted or wanted + self._reserved_elsewhere(config.storage) > limit:
            if is_memory:
                raise codes.MEMORY_RESOURCES_EXCEEDED.exception()
            raise codes.STORAGE_RESOURCES_EXCEEDED.exception()

    def _batch_limits(self, stream: StreamReplica) -> LimitBatches:
        """The batches that the stream may have open. What it has itself counts on both sides, so that the
        limits stay the same while others open and close none."""
        config, inflight = self._config, self._inflight
        others = inflight.atomic - stream.atomic.staged.count
        atomic_end = config.batch_inflight_per_stream_max or ATOMIC_INFLIGHT_PER_STREAM
        atomic_total = config.batch_inflight_total_max or ATOMIC_INFLIGHT_TOTAL
        fast_end = 0
        if stream.config.allow_batched:
            fast_end = config.batch_inflight_per_stream_max or FAST_INFLIGHT_PER_STREAM
            fast_total = config.batch_inflight_total_max or FAST_INFLIGHT_TOTAL
            others_fast = self.fast_batches() + self._fast_batches_elsewhere() - stream.fast.batches.count
            fast_end = min(fast_end, fast_total - others_fast)
        return LimitBatches(
            atomic_end=max(0, min(atomic_end, atomic_total - others)),
            staged_end=max(0, config.batch_bytes_max - inflight.staged.bytes + stream.atomic.total.bytes),
            fast_end=max(0, fast_end),
            messages_max=config.batch_messages_max,
            timeout_ns=config.batch_timeout_ns,
        )
