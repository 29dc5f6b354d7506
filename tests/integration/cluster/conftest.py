"""What the tests of clusters share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.clusters import PAIRS, Cluster, clusters


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without members; it ends with the test."""
    async with clusters(tmp_path) as made:
        yield made


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Who accepts a route, and who dials."""
    pair: tuple[str, str] = request.param
    return pair
