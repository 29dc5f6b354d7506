"""`$JS.API.INFO`: what the account uses and may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.jetstream.api.api_table import ApiRequest, Endpoint
from penstock.protocol.api import AccountInfoResponse

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine


def info(engine: JetStreamEngine, request: ApiRequest) -> AccountInfoResponse:
    """INFO. A payload is ignored, as the official server does."""
    present = engine.capacity.info()
    return AccountInfoResponse(**msgspec.structs.asdict(present))


ENDPOINTS = (Endpoint("INFO", 0, 0, "account_info_response", info),)
