"""Servers of a penstock cluster that restart, lose their disks, and get or lose replicas of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.errors import PenstockError
from penstock.testing import ProcessCluster, cluster
from tests.support.nats_servers import until

pytestmark = [pytest.mark.feature("cluster.raft"), pytest.mark.slow]

STEPS_S = 20.0


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ProcessCluster]:
    async with cluster(3, directory=tmp_path) as made:
        await made.wait_ready()
        yield made


class Asking:
    """Requests to the API of one server."""

    def __init__(self, client: penstock.Client) -> None:
        self.client = client

    async def ask(self, verbs: str, body: Any = None, timeout_s: float = 5.0) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        answer = await self.client.request(f"$JS.API.{verbs}", payload, timeout=timeout_s)
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        return found

    async def create(self, name: str, replicas: int) -> dict[str, Any]:
        body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, "storage": "file"}
        made = await self.ask(f"STREAM.CREATE.{name}", body)
        assert "error" not in made, made
        return made

    async def scale(self, name: str, replicas: int) -> None:
        config = (await self.ask(f"STREAM.INFO.{name}"))["config"]
        changed = await self.ask(f"STREAM.UPDATE.{name}", config | {"num_replicas": replicas})
        assert "error" not in changed, changed

    async def info(self, name: str) -> dict[str, Any]:
        try:
            return await self.ask(f"STREAM.INFO.{name}", timeout_s=1.0)
        except (TimeoutError, PenstockError):
            return {}

    async def replicas_are(self, name: str, count: int) -> None:
        """Waits until so many servers have the stream, and all are current."""

        async def is_so() -> bool:
            shown = (await self.info(name)).get("cluster") or {}
            others = shown.get("replicas", [])
            return (
                bool(shown.get("leader"))
                and len(others) == count - 1
                and "desired" not in shown
                and all(one["current"] for one in others)
            )

        for _ in range(int(STEPS_S / 0.2)):
            if await is_so():
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"not {count} replicas: {await self.info(name)}")


async def test_everything_is_there_after_all_servers_were_killed(running: ProcessCluster) -> None:
    async with await running.connect() as client:
        asking = Asking(client)
        await asking.create("R3", 3)
        await asking.create("R1", 1)
        await asking.ask(
            "CONSUMER.CREATE.R3.c",
            {"stream_name": "R3", "config": {"name": "c", "durable_name": "c", "ack_policy": "explicit"}},
        )
        for number in range(50):
            await client.request(f"R3.{number}", b"x")
            await client.request(f"R1.{number}", b"x")
    for server in range(3):
        await running.kill(server)
    for server in range(3):
        await running.start_server(server)
    await running.wait_ready()
    async with await running.connect(2) as client:
        asking = Asking(client)
        await asking.replicas_are("R3", 3)
        await asking.replicas_are("R1", 1)
        assert (await asking.info("R3"))["state"]["messages"] == 50
        assert (await asking.info("R1"))["state"]["messages"] == 50
        consumer = await asking.ask("CONSUMER.INFO.R3.c")
        assert consumer["num_pending"] == 50
        group = (await asking.info("R3"))["cluster"]["raft_group"]
        for server in range(3):
            page = await running.page(server, f"raftz?acc=$G&group={group}")
            assert page["$G"][group]["state"] in ("LEADER", "FOLLOWER")
            assert [*(await running.page(server, "raftz"))["$SYS"]] == ["_meta_"]
            assert await running.page(server, "raftz?acc=nobody") == {}


async def test_a_server_with_a_wiped_disk_gets_its_replicas_again(running: ProcessCluster) -> None:
    async with await running.connect(0) as client:
        asking = Asking(client)
        await asking.create("R3", 3)
        for number in range(50):
            await client.request(f"R3.{number}", b"x")
        leader = await running.leader_of("R3")
        wiped = next(server for server in (1, 2) if server != leader)
        await running.kill(wiped)
        await running.wipe(wiped)
        await running.start_server(wiped)
        await running.wait_ready()
        await asking.replicas_are("R3", 3)

        async def has_left() -> bool:
            size: int = (await running.page(0, "jsz"))["meta_cluster"]["cluster_size"]
            return size == 3

        await until(has_left)  # the member without its disk goes after the new one has come
        # The new member counts: with another server gone, writes go on.
        await running.kill(next(server for server in (1, 2) if server != wiped))
        for _ in range(100):
            try:
                await client.request("R3.after", b"x", timeout=1)
                break
            except (TimeoutError, PenstockError):
                await asyncio.sleep(0.1)
        assert (await asking.info("R3"))["state"]["messages"] >= 51


async def test_a_stream_is_scaled_up_and_down_while_it_is_written(running: ProcessCluster) -> None:
    async with await running.connect(0) as client:
        asking = Asking(client)
        await asking.create("S", 1)
        acked = 0
        is_done = False

        async def write() -> None:
            nonlocal acked
            while not is_done:
                try:
                    answer = await client.request("S.a", b"x", timeout=2)
                except (TimeoutError, PenstockError):
                    continue
                acked += b'"seq"' in answer.data

        writing = asyncio.create_task(write())
        try:
            await until(lambda: acked > 20, 10)
            await asking.scale("S", 3)
            await asking.replicas_are("S", 3)
            before = acked
            await until(lambda: acked > before + 20, 10)
            await asking.scale("S", 1)
            await asking.replicas_are("S", 1)
        finally:
            is_done = True
            await writing
        assert (await asking.info("S"))["state"]["messages"] >= acked


async def test_a_deleted_stream_leaves_nothing_on_a_server_that_was_away(running: ProcessCluster) -> None:
    async with await running.connect(0) as client:
        asking = Asking(client)
        await asking.create("GONE", 3)
        await client.request("GONE.a", b"x")
        await running.kill(2)
        assert (await asking.ask("STREAM.DELETE.GONE")).get("success")
        await running.start_server(2)
        await running.wait_ready()

        def is_empty() -> bool:
            found = running.server(2).store_dir.rglob("*")
            return not any("GONE" in one.name for one in found)

        await until(is_empty, STEPS_S)
        assert (await asking.create("GONE", 3))["state"]["messages"] == 0
