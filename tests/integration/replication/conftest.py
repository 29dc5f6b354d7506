"""A cluster of three servers of each kind for the tests of a module, whole again after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS
from tests.support.replicated_clusters import ClusterTalk, replicated_cluster


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    """Three ready servers."""
    with replicated_cluster(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def kind(running: SyncProcessCluster, request: pytest.FixtureRequest) -> str:
    """official or penstock."""
    found: str = request.node.callspec.params["running"]
    return found


@pytest.fixture
async def talk(running: SyncProcessCluster) -> AsyncIterator[ClusterTalk]:
    """Clients of the servers. What the test broke is repaired afterwards."""
    made = ClusterTalk(running)
    try:
        yield made
    finally:
        await made.close()
