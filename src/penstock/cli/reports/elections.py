"""Waiting until a stream or a consumer has a leader again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from penstock.errors import JetStreamApiError, RequestTimeoutError

POLL_S = 0.1


async def until_led(leader_of: Callable[[], Awaitable[str]], *, but: str, timeout_s: float) -> None:
    """Return when there is a leader other than `but`, or after the timeout: an election may also choose the
    same server again.

    leader_of: asks for the leader. Without one, official servers answer 503 or nothing.

    Raises what `leader_of` raises for other reasons.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if await leader_of() not in ("", but):
                return
        except RequestTimeoutError:
            pass
        except JetStreamApiError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
        await asyncio.sleep(POLL_S)
