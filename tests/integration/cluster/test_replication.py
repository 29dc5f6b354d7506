"""A replicated state machine on three servers, as processes: kills, stops, power failures, wiped disks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.kv_cluster import KeyValueCluster, KeyValueMember, key_values
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("cluster.raft")


@asynccontextmanager
async def writes(cluster: KeyValueCluster, prefix: str) -> AsyncIterator[None]:
    """Writes go on meanwhile."""
    stop = asyncio.Event()
    task = asyncio.create_task(cluster.write_until(stop, prefix))
    try:
        yield
    finally:
        stop.set()
        await task


async def acknowledged(cluster: KeyValueCluster, more: int = 20) -> None:
    """Until so many more writes are acknowledged."""
    goal = len(cluster.acked) + more
    await until(lambda: len(cluster.acked) >= goal, 30)


@pytest.mark.parametrize("flags", [(), ("unsynced",)])
async def test_what_is_acknowledged_survives_the_kill_of_each_leader(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    async with key_values(tmp_path, flags=flags) as cluster:
        async with writes(cluster, "a"):
            for _ in range(2):
                await acknowledged(cluster)
                leader = await cluster.leader()
                await leader.kill()
                await acknowledged(cluster)
                leader.start()
        await cluster.check()
        assert cluster.longest_gap_s < 10, "elections end"


async def test_what_is_acknowledged_survives_a_power_failure_of_all_servers(tmp_path: Path) -> None:
    async with key_values(tmp_path) as cluster:
        async with writes(cluster, "a"):
            await acknowledged(cluster, 200)
            await asyncio.gather(*(one.ask("power") for one in cluster.members))
            for one in cluster.members:
                await one.wait()
                one.start()
            await acknowledged(cluster)
        await cluster.check()


async def test_a_stopped_leader_is_deposed_and_follows_when_it_goes_on(tmp_path: Path) -> None:
    async with key_values(tmp_path) as cluster:
        old = await cluster.leader()
        async with writes(cluster, "a"):
            await acknowledged(cluster)
            old.signal(signal.SIGSTOP)
            new = await cluster.leader(but=old)
            await acknowledged(cluster)
            old.signal(signal.SIGCONT)
            await acknowledged(cluster)
        assert new is not old
        await cluster.check()


async def test_a_leader_that_ends_cleanly_hands_over_before(tmp_path: Path) -> None:
    async with key_values(tmp_path) as cluster:
        old = await cluster.leader()
        async with writes(cluster, "a"):
            await acknowledged(cluster)
            old.signal(signal.SIGTERM)
            await old.wait()
            await acknowledged(cluster)
            old.start()
        await cluster.check()
        assert "fault" not in old.log


async def member_change(cluster: KeyValueCluster, change: str, member: str) -> None:
    async def is_proposed() -> bool:
        leader = await cluster.leader()
        return await leader.ask("members", f"{change} {member}") == "proposed"

    await until(is_proposed, 30)


async def test_a_server_with_a_wiped_disk_joins_as_a_new_member(tmp_path: Path) -> None:
    async with key_values(tmp_path) as cluster:
        wiped = await follower(cluster)
        old_id = (await wiped.state())["id"]
        async with writes(cluster, "a"):
            await acknowledged(cluster)
            await wiped.kill()
            wiped.wipe()
            wiped.start("join")
            await until(lambda: is_up(wiped), 30)
            new_id = (await wiped.state())["id"]
            await member_change(cluster, "REMOVE", old_id)
            await member_change(cluster, "ADD_LEARNER", new_id)
            await member_change(cluster, "PROMOTE", new_id)
            await acknowledged(cluster)
        assert new_id != old_id
        await cluster.check()
        assert len((await wiped.state())["raftz"]["kv"]["peers"]) == 2


async def is_up(member: KeyValueMember) -> bool:
    return bool(await member.state())


async def follower(cluster: KeyValueCluster) -> KeyValueMember:
    leader = await cluster.leader()
    return next(one for one in cluster.members if one is not leader)
