"""Servers for the tests of leaf nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.leafs import Leafs, leaf_servers


@pytest.fixture
async def leafs(tmp_path: Path) -> AsyncIterator[Leafs]:
    """No servers yet; all that a test starts stop at its end."""
    async with leaf_servers(tmp_path) as made:
        yield made
