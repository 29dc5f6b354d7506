"""pytest fixtures, available wherever penstock is installed.

`nats_server`: a new server with JetStream in memory per test.
`nats_server_factory`: starts servers with any options; all stop at the end of the test.
`nats_cluster`: three server processes with replicated JetStream, which the test kills, pauses and partitions.
`nats_cluster_factory`: starts clusters with any options; all end with the test.

Every pytest run in an environment with penstock imports this module, so it imports only pytest until a
fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.testing.clusters.sync_process_cluster import SyncProcessCluster
    from penstock.testing.embedded import EmbeddedServer


@pytest.fixture
def nats_server_factory() -> Iterator[Callable[..., EmbeddedServer]]:
    """A function that starts a server, with the arguments of `penstock.testing.server`."""
    from penstock.testing import server

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(server(**options))


@pytest.fixture
def nats_server(nats_server_factory: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server with empty in-memory JetStream, stopped after the test: `nats_server.url`."""
    return nats_server_factory(jetstream=True)


@pytest.fixture
def nats_cluster_factory(tmp_path: Path) -> Iterator[Callable[..., SyncProcessCluster]]:
    """A function that starts a cluster, with the arguments of `penstock.testing.sync_cluster`.

    Configuration, logs and stores are below `tmp_path`, which pytest keeps for a while.
    """
    from penstock.testing import sync_cluster

    with ExitStack() as stack:
        numbers = count(1)

        def start(size: int = 3, **options: Any) -> SyncProcessCluster:
            options.setdefault("directory", tmp_path / f"cluster-{next(numbers)}")
            return stack.enter_context(sync_cluster(size, **options))

        yield start


@pytest.fixture
def nats_cluster(nats_cluster_factory: Callable[..., SyncProcessCluster]) -> SyncProcessCluster:
    """Three servers with JetStream, killed after the test: `nats_cluster.urls`."""
    return nats_cluster_factory()
