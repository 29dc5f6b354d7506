"""`$JS.API.INFO`: usage and limits of an account. -1 = no limit."""

from __future__ import annotations

import msgspec

from penstock.protocol.api.base import TYPE_PREFIX, always


class AccountLimits(msgspec.Struct, omit_defaults=True, kw_only=True):
    max_memory: int = always(-1)
    max_storage: int = always(-1)
    max_streams: int = always(-1)
    max_consumers: int = always(-1)
    max_ack_pending: int = always(-1)
    memory_max_stream_bytes: int = always(-1)
    storage_max_stream_bytes: int = always(-1)
    max_bytes_required: bool = always(False)


class ApiStats(msgspec.Struct, omit_defaults=True, kw_only=True):
    level: int = always(0)
    total: int = always(0)
    errors: int = always(0)
    inflight: int = 0

    def count(self, *, failed: bool) -> None:
        """Counts one response."""
        self.total += 1
        self.errors += failed


class AccountUse(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Usage and limits."""

    memory: int = always(0)
    storage: int = always(0)
    reserved_memory: int = always(0)
    reserved_storage: int = always(0)
    streams: int = always(0)
    consumers: int = always(0)
    limits: AccountLimits


class AccountTier(AccountUse, omit_defaults=True, kw_only=True):
    """Usage of one replication tier (R1, R3)."""


class AccountInfo(AccountUse, omit_defaults=True, kw_only=True):
    domain: str = ""
    api: ApiStats
    tiers: dict[str, AccountTier] = {}


class AccountInfoResponse(AccountInfo, omit_defaults=True, kw_only=True):
    type: str = always(TYPE_PREFIX + "account_info_response")
