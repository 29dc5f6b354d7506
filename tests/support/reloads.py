"""Reloads of a server that the test has in its hands."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import ConfigError
from penstock.server.config.server_options import ServerOptions
from penstock.server.reload import apply_reload
from penstock.server.server import Server


async def reload(server: Server, load: Callable[[], ServerOptions]) -> bool:
    """Are the options that `load` gives in force?"""
    try:
        await apply_reload(server, load)
    except ConfigError:
        return False
    return True
