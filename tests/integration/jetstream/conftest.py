"""Fixtures of the tests of streams and consumers over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.consumer_talk import ConsumerTalk, talking


@pytest.fixture
async def talk(url: str) -> AsyncIterator[ConsumerTalk]:
    async with talking(url) as talk:
        yield talk
