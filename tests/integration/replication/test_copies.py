"""Mirrors and sources of origins on other servers of a cluster, on penstock and the official server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("sourcing.mirror", "sourcing.sources")

ONLY = {"a": ["x"], "c": ["y"]}
"""Tags that leave two servers to choose from, by the one that the other tag does not allow."""


def has(talk: ClusterTalk, stream: str, messages: int) -> Callable[[], Awaitable[bool]]:
    """Whether a stream has so many messages, beginning with sequence 1."""

    async def check() -> bool:
        state = (await talk.info(stream))["state"]
        return (state["messages"], state["first_seq"], state["last_seq"]) == (messages, 1, messages)

    return check


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_copy_begins_with_what_its_origin_has(talk: ClusterTalk, replicas: int) -> None:
    """Each pair of an origin with one replica and a copy; some of them are on different servers."""
    client = await talk.client()
    for name, tags in ONLY.items():
        origin = f"O{name}{replicas}"
        await talk.create(origin, 1, placement={"tags": tags})
        for number in range(20):
            await client.request(f"{origin}.{number % 2}", b"%d" % number)
        for at, wanted in ONLY.items():
            copies: dict[str, dict[str, Any]] = {
                f"M{at}{origin}": {"mirror": {"name": origin}},
                f"T{at}{origin}": {"sources": [{"name": origin, "filter_subject": f"{origin}.1"}]},
            }
            for copy, fields in copies.items():
                await talk.create(copy, replicas, subjects=[], placement={"tags": wanted}, **fields)
        for number in range(4):
            await client.request(f"{origin}.{number % 2}", b"later")
        for at in ONLY:
            await until(has(talk, f"M{at}{origin}", 24), 20)
            await until(has(talk, f"T{at}{origin}", 12), 20)
