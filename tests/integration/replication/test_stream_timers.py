"""Timers of streams without traffic in a cluster, on penstock and the official server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

SECOND_NS = 1_000_000_000


def has(talk: ClusterTalk, stream: str, subject: str, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether a subject of a stream has at least so many messages; 0: none."""

    async def check() -> bool:
        state = (await talk.ask(f"STREAM.INFO.{stream}", {"subjects_filter": subject}))["state"]
        found: int = (state.get("subjects") or {}).get(subject, 0)
        return found >= count if count else not found

    return check


@pytest.mark.feature("stream.max-age")
@pytest.mark.parametrize("replicas", [1, 3])
async def test_messages_expire_one_after_the_other(talk: ClusterTalk, replicas: int) -> None:
    name = f"AGED{replicas}"
    await talk.create(name, replicas, max_age=SECOND_NS, duplicate_window=SECOND_NS)
    client = await talk.client()
    for _ in range(4):
        await client.request(f"{name}.a", b"")
        await asyncio.sleep(0.2)  # servers keep real time
    await until(has(talk, name, f"{name}.a", 0), 20)


@pytest.mark.feature("stream.message-ttl")
async def test_markers_follow_messages_with_a_time_to_live_and_expire_too(talk: ClusterTalk) -> None:
    await talk.create("TTL", allow_msg_ttl=True, subject_delete_marker_ttl=2 * SECOND_NS, max_age=SECOND_NS)
    client = await talk.client()
    for subject in ("TTL.a", "TTL.b"):
        await client.request(subject, b"")
        await asyncio.sleep(0.3)  # servers keep real time
    for subject in ("TTL.a", "TTL.b"):
        await until(has(talk, "TTL", subject, 0), 20)


@pytest.mark.feature("stream.schedules")
@pytest.mark.parametrize("steps_down", [False, True])
async def test_schedules_go_on(talk: ClusterTalk, steps_down: bool) -> None:
    name = f"TIMED{int(steps_down)}"
    await talk.create(name, allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    client = await talk.client()
    headers = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": f"{name}.made"}
    await client.request(f"{name}.schedule", b"", headers=headers)
    if steps_down:
        before = await talk.leader(name)
        await talk.ask(f"STREAM.LEADER.STEPDOWN.{name}")
        await talk.leader(name, but=before)
    await until(has(talk, name, f"{name}.made", 3), 20)
