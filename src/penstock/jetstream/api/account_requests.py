"""`$JS.API.INFO`: the account's use and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.protocol.api import AccountInfoResponse

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine


def info(engine: JetStreamEngine, request: ApiRequest) -> AccountInfoResponse:
    """INFO. As on the official server, a payload is ignored."""
    present = engine.capacity.info()
    return AccountInfoResponse(**msgspec.structs.asdict(present))


ENDPOINTS = (Endpoint("INFO", 0, 0, "account_info_response", info),)
