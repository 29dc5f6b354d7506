"""Reloads of a server that the test has in its hands, and of processes of a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from penstock.errors import ConfigError
from penstock.server.config.server_options import ServerOptions
from penstock.server.reload import apply_reload
from penstock.server.server import Server
from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import until

RELOADED = "Reloaded server configuration"


async def reload(server: Server, load: Callable[[], ServerOptions]) -> bool:
    """Are the options that `load` gives in force?"""
    try:
        await apply_reload(server, load)
    except ConfigError:
        return False
    return True


async def reload_members(cluster: SyncProcessCluster, change: Callable[[str], str], *members: int) -> None:
    """Changes the configuration of servers of a cluster, by default of all, and reloads one after the other.
    One whose configuration does not change is left alone."""
    for index in members or range(len(cluster.servers)):
        server = cluster.servers[index]
        path = cluster.directory / f"{server.name}.conf"
        text = path.read_text()
        if change(text) == text:
            continue
        path.write_text(change(text))
        before = server.log.count(RELOADED)
        os.kill(server.pid, signal.SIGHUP)
        await until(lambda: asyncio.sleep(0.02, server.log.count(RELOADED) > before), 10)  # noqa: B023
