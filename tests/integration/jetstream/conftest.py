"""Fixtures of the tests of streams and consumers over the wire."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.consumer_talk import ConsumerTalk, talking


@pytest.fixture
async def talk(url: str) -> AsyncIterator[ConsumerTalk]:
    async with talking(url) as talk:
        yield talk


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on a disk. `make test` writes to memory, where a sync takes no time: kills must come
    between a write and its sync too."""
    with tempfile.TemporaryDirectory(prefix="penstock-", dir="/var/tmp") as directory:
        yield Path(directory)
