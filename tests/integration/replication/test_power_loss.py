"""What a majority has acknowledged survives the power failure of one server, and of all at once.

Only on penstock: a disk that loses what was not synced has to be part of the process (power_loss.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from penstock.testing import SyncProcessCluster
from penstock.testing.sim.runner import fresh_seed
from tests.support import power_loss
from tests.support.cluster_load import ClusterLoad, assert_equal_replicas
from tests.support.histories import violations
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, publish_sure, replicated_cluster

pytestmark = [pytest.mark.cluster_faults, pytest.mark.slow, pytest.mark.feature("cluster.power-loss")]


@contextmanager
def failing_cluster(directory: Path, jetstream: str = "") -> Iterator[SyncProcessCluster]:
    """Three servers whose disks can lose what was not synced."""
    with replicated_cluster("penstock", directory, jetstream, command=power_loss.COMMAND) as made:
        yield made


async def lose_power(talk: ClusterTalk, server: int, rng: random.Random) -> int:
    """The server is gone, and what it had not synced, but for a part. Returns how much it lost."""
    made = talk.made
    await talk.do(made.kill, server)
    survives = rng.choice([0.0, 0.5])
    conf = made.directory / f"{made.servers[server].name}.conf"
    return power_loss.lose_power(conf, lambda: rng.random() < survives)


async def acked(load: ClusterLoad, more: int) -> None:
    """Until so many more writes are acknowledged."""
    goal = load.acked + more
    await until(lambda: load.acked >= goal, 60)


async def start_all(talk: ClusterTalk) -> None:
    for server, one in enumerate(talk.made.servers):
        if not one.is_running:
            await talk.do(talk.made.start_server, server)
    await talk.do(talk.made.wait_ready)


async def test_a_power_failure_of_all_servers_loses_nothing_acknowledged(tmp_path: Path) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    lost = []
    with failing_cluster(tmp_path) as made:
        talk = ClusterTalk(made)
        try:
            await talk.create("POWER")
            load = ClusterLoad(talk, "POWER")
            async with load.working(publish=3, cas=2):
                for _ in range(3):
                    await acked(load, 150)
                    lost += [await lose_power(talk, server, rng) for server in range(3)]
                    await start_all(talk)
                await acked(load, 50)
            stored = await assert_equal_replicas(talk, "POWER")
            assert violations(load.operations, stored) == []
        finally:
            await talk.close()
    print(f"{load.acked} acknowledged, lost on the disks: {lost}")
    assert sum(lost), "no disk lost anything: the failure proves nothing"


async def test_a_server_that_lost_power_and_one_that_lags_do_not_go_on_without_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with failing_cluster(tmp_path) as made:
        talk = ClusterTalk(made)
        try:
            await talk.create("LAGS")
            for turn in range(2):
                leader = await talk.leader("LAGS")
                follower, lagging = (server for server in range(3) if server != leader)
                await talk.do(made.kill, lagging)
                client = await talk.client(leader)
                acks = [
                    await publish_sure(client, "LAGS.1", b"%d" % number, f"{turn}.{number}")
                    for number in range(100 * turn, 100 * turn + 100)
                ]
                await lose_power(talk, follower, rng)
                await talk.do(made.kill, leader)
                for server in (follower, lagging):
                    await talk.do(made.start_server, server)
                await talk.leader("LAGS", but=leader)
                client = await talk.client(lagging)
                after = await publish_sure(client, "LAGS.1", b"after", f"after {turn}")
                assert after["seq"] == acks[-1]["seq"] + 1
                await start_all(talk)
            stored = await assert_equal_replicas(talk, "LAGS")
            wanted = [
                *(str(number) for number in range(100)), "after",
                *(str(number) for number in range(100, 200)), "after",
            ]  # fmt: skip
            assert [one.tag for one in stored] == wanted
        finally:
            await talk.close()


async def test_servers_that_do_not_sync_can_lose_what_was_acknowledged(tmp_path: Path) -> None:
    """What `sync_interval` gives up, which also shows that these disks lose what they should."""
    rng = random.Random(0)
    with failing_cluster(tmp_path, 'sync_interval: "1h"') as made:
        talk = ClusterTalk(made)
        try:
            await talk.create("UNSYNCED")
            client = await talk.client()
            for number in range(50):
                await publish_sure(client, "UNSYNCED.1", b"%d" % number, str(number))
            for server in range(3):
                await lose_power(talk, server, rng)
            await start_all(talk)
            try:
                messages = (await talk.info("UNSYNCED", timeout_s=5))["state"]["messages"]
            except (NatsError, KeyError):
                messages = 0
            assert messages < 50
        finally:
            await talk.close()
