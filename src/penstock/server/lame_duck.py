"""Lame duck mode: shuts down without all clients reconnecting at once.

The server refuses new connections and sends INFO with `ldm` to clients that support it, so that they
reconnect elsewhere. After the grace period it closes the remaining connections one by one, spread over the
rest of the duration, at most one second apart.
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
    """Notifies the clients, waits and closes them. The caller then stops the server.

    Args:
        server: a server that accepts no more connections.
        sleep: coroutine function that waits for a number of seconds.
    """
    options = server.context.options
    if not server.sessions:
        return
    for session in tuple(server.sessions.values()):
        if session.options.protocol >= 1:
            session.send(server.info_line(session))
    grace_s = options.lame_duck_grace_period_ns / 1e9
    await sleep(grace_s)
    server.context.log.info("Closing existing clients")
    left = tuple(server.sessions.values())
    spread_s = max(0.0, options.lame_duck_duration_ns / 1e9 - grace_s)
    for session in left:
        server.process_input([session])
        session.close(CloseReason.SERVER_SHUTDOWN)
        await sleep(min(PAUSE_MAX_S, spread_s / len(left)))
