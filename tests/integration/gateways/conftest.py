"""What the tests of gateways share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway_servers import PAIRS, SuperCluster, super_clusters


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[SuperCluster]:
    """Clusters without servers; they end with the test."""
    async with super_clusters(tmp_path) as made:
        yield made


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The cluster that is dialled, and the one that dials."""
    pair: tuple[str, str] = request.param
    return pair
