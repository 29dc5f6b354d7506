"""What an account uses in the cluster, as `$JS.API.INFO` shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from penstock.jetstream.tiers import NONE, tiered
from penstock.protocol.api import AccountInfoResponse, AccountTier, StorageType

if TYPE_CHECKING:
    from penstock.jetstream.capacity import Capacity
    from penstock.jetstream.cluster_use import ClusterUse
    from penstock.jetstream.limits import EngineConfig
    from penstock.jetstream.meta.meta_tables import AccountAssets


def account_info(
    capacity: Capacity, config: EngineConfig, assets: AccountAssets, used: tuple[int, int]
) -> AccountInfoResponse:
    """The info of an account. assets: of the account in the meta state. used: bytes in memory and on disk, of
    all replicas."""
    memory, storage = used
    fields = structs.asdict(capacity.info()) | {
        "streams": len(assets.streams),
        "consumers": sum(len(one) for one in assets.consumers.values()),
        "memory": memory,
        "storage": storage,
        "reserved_memory": assets.reserved(StorageType.MEMORY, None),
        "reserved_storage": assets.reserved(StorageType.FILE, None),
    }
    info = AccountInfoResponse(**fields)
    return tiered(info, config.tiers, _tiers(assets, capacity.cluster_use)) if config.tiers else info


def _tiers(assets: AccountAssets, use: ClusterUse) -> dict[str, AccountTier]:
    """The use of each tier that has streams."""
    by_replicas: dict[int, list[str]] = {}
    for name, stream in assets.streams.items():
        by_replicas.setdefault(max(1, stream.config.num_replicas), []).append(name)
    return {
        f"R{replicas}": AccountTier(
            limits=NONE,
            memory=replicas * use.of_kind((StorageType.MEMORY, replicas)),
            storage=replicas * use.of_kind((StorageType.FILE, replicas)),
            reserved_memory=assets.reserved(StorageType.MEMORY, replicas),
            reserved_storage=assets.reserved(StorageType.FILE, replicas),
            streams=len(names),
            consumers=sum(assets.consumers_of(name) for name in names),
        )
        for replicas, names in by_replicas.items()
    }
