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
    from penstock.server.server_context import ServerContext
    from penstock.server.session import InfoLine, Session
    from penstock.server.session_registry import SessionRegistry

PAUSE_MAX_S = 1.0


async def leave(
    context: ServerContext,
    sessions: SessionRegistry,
    info_line: InfoLine,
    process_input: Callable[[list[Session]], None],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Notifies the clients, waits and closes them. The caller then stops the server.

    Args:
        context: options with the durations; log.
        sessions: the clients of a server that accepts no more connections.
        info_line: returns INFO with `ldm` for a client.
        process_input: processes all input read from clients.
        sleep: coroutine function that waits for a number of seconds.
    """
    options = context.options
    if not sessions:
        return
    for session in tuple(sessions.values()):
        if session.takes_info:
            session.send(info_line(session))
    grace_s = options.lame_duck_grace_period_ns / 1e9
    await sleep(grace_s)
    context.log.info("Closing existing clients")
    left = tuple(sessions.values())
    spread_s = max(0.0, options.lame_duck_duration_ns / 1e9 - grace_s)
    for session in left:
        process_input([session])
        session.close(CloseReason.SERVER_SHUTDOWN)
        await sleep(min(PAUSE_MAX_S, spread_s / len(left)))
