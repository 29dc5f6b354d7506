"""Limits of an account as its info shows them: one set, or one per tier of replicas.

A tier is named by a stream's replicas (`R1`, `R3`); use belongs to it even where the account no longer has
limits for it. All streams of a standalone server have one replica.

The official server omits an unused tier once the account lost another one; this one does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import structs

from penstock.jetstream.limits import EngineConfig
from penstock.protocol.api import AccountInfo, AccountLimits, AccountTier

Info = TypeVar("Info", bound=AccountInfo)

NONE = AccountLimits(
    max_memory=0,
    max_storage=0,
    max_streams=0,
    max_consumers=0,
    max_ack_pending=0,
    memory_max_stream_bytes=0,
    storage_max_stream_bytes=0,
)


def flat(config: EngineConfig) -> AccountLimits:
    """The limits that apply to streams of this server."""
    return AccountLimits(
        max_memory=config.account_memory_max,
        max_storage=config.account_storage_max,
        max_streams=config.max_streams,
        max_consumers=config.max_consumers,
        max_ack_pending=config.max_ack_pending,
        max_bytes_required=config.max_bytes_required,
        memory_max_stream_bytes=config.memory_max_stream_bytes,
        storage_max_stream_bytes=config.storage_max_stream_bytes,
    )


def tiered(info: Info, limits: Mapping[str, AccountLimits], uses: Mapping[str, AccountTier]) -> Info:
    """The info of an account with tiers: use and limits by tier, and no others. uses: of tiers that have
    streams."""
    none = AccountTier(limits=NONE)
    tiers = {
        name: structs.replace(uses.get(name, none), limits=limits.get(name, NONE))
        for name in sorted({*limits, *uses})
    }
    return structs.replace(info, limits=NONE, tiers=tiers)
