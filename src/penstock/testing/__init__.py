"""Test support: servers and clusters for tests, and pytest fixtures.

    with penstock.testing.server(jetstream=True) as server:
        subprocess.run(["nats", "-s", server.url, "pub", "hello", "world"])

    async with penstock.testing.cluster(3) as cluster:
        await cluster.kill(await cluster.leader_of("ORDERS"))

`server` runs in a thread of the test. `cluster` and its blocking twin `sync_cluster` start processes, which a
test kills, pauses and partitions.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.clusters.process_cluster import ProcessCluster, cluster
    from penstock.testing.clusters.server_process import ServerProcess
    from penstock.testing.clusters.sync_process_cluster import SyncProcessCluster, sync_cluster
    from penstock.testing.embedded import EmbeddedServer, server

_MODULES = {
    "EmbeddedServer": "embedded",
    "ProcessCluster": "clusters.process_cluster",
    "ServerProcess": "clusters.server_process",
    "SyncProcessCluster": "clusters.sync_process_cluster",
    "cluster": "clusters.process_cluster",
    "server": "embedded",
    "sync_cluster": "clusters.sync_process_cluster",
}

__all__ = [
    "EmbeddedServer",
    "ProcessCluster",
    "ServerProcess",
    "SyncProcessCluster",
    "cluster",
    "server",
    "sync_cluster",
]


def __getattr__(name: str) -> Any:
    # Lazy: pytest imports this package in every run of an environment with penstock.
    if name in _MODULES:
        from importlib import import_module

        from penstock.extras import need, need_python

        need_python("penstock.testing")
        need("penstock.testing", "server")
        return getattr(import_module(f"penstock.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
