"""Lame duck mode: a server that goes without all its clients reconnecting at once.

Clients that understand it are told (INFO with `ldm`) and move when it suits them; nobody new is accepted.
After the grace period the remaining connections are closed one after the other, spread over what is left
of the duration, at most a second apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.net.reasons import CloseReason

if TYPE_CHECKING:
    from penstock.server.server import Server

PAUSE_MAX_S = 1.0


async def leave(server: Server, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
    """Tells the clients, waits, and closes them; the caller then stops the server.

    Args:
        server: whose clients are to go; it accepts none any more.
        sleep: waits so many seconds.
    """
    options = server.options
    if not server.sessions:
        return
    for session in tuple(server.sessions.values()):
        if session.options.protocol >= 1:
            session.send(server.info_line(session))
    grace_s = options.lame_duck_grace_period_ns / 1e9
    await sleep(grace_s)
    server.log.info("Closing existing clients")
    left = tuple(server.sessions.values())
    spread_s = max(0.0, options.lame_duck_duration_ns / 1e9 - grace_s)
    for session in left:
        server.settle([session])
        session.close(CloseReason.SERVER_SHUTDOWN)
        await sleep(min(PAUSE_MAX_S, spread_s / len(left)))
