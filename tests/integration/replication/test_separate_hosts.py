"""Servers on hosts of their own, between which packets get lost: an end of a connection learns nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.testing import SyncProcessCluster
from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, longest_gap_s
from tests.support.histories import not_linearizable, violations
from tests.support.nats_servers import KINDS, until
from tests.support.network_namespaces import NamespaceNetwork, namespaces
from tests.support.replicated_clusters import ClusterTalk, replicated_cluster

pytestmark = [pytest.mark.cluster_faults, pytest.mark.slow, pytest.mark.feature("cluster.quorum")]

NOTICED_S = 40.0  # official servers notice a silent connection after two pings of their own


@pytest.fixture(scope="module")
def network() -> Iterator[NamespaceNetwork]:
    """Three hosts."""
    with namespaces(3) as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, network: NamespaceNetwork
) -> Iterator[SyncProcessCluster]:
    """A server on each host."""
    directory: Path = tmp_path_factory.mktemp(request.param)
    with replicated_cluster(request.param, directory, network=network) as made:
        yield made


@pytest.fixture
async def talk(running: SyncProcessCluster, network: NamespaceNetwork) -> AsyncIterator[ClusterTalk]:
    made = ClusterTalk(running)
    try:
        yield made
    finally:
        network.unblock()
        await made.close()


async def judge(talk: ClusterTalk, load: ClusterLoad) -> None:
    stored = await assert_equal_replicas(talk, load.stream)
    assert violations(load.operations, stored) == []
    assert not_linearizable(load.operations, stored)[0] == []


async def test_lost_packets_of_a_leader_cost_no_acknowledged_message(
    talk: ClusterTalk, network: NamespaceNetwork
) -> None:
    await talk.create("LOSSY")
    load = ClusterLoad(talk, "LOSSY")
    async with load.working(publish=2, cas=2, read=1):
        for percent in (5, 20, 40):
            await talk.do(network.lose, await talk.leader("LOSSY"), percent)
            await asyncio.sleep(3)
            network.unblock()
        goal = load.acked + 100
        await until(lambda: load.acked >= goal, 60)
    await judge(talk, load)


async def test_a_leader_that_ends_unseen_is_replaced_and_comes_back(talk: ClusterTalk) -> None:
    """Its host is cut off, so that the others get no end of its connections, and then it is killed."""
    await talk.create("UNSEEN")
    leader = await talk.leader("UNSEEN")
    others = [server for server in range(3) if server != leader]
    load = ClusterLoad(talk, "UNSEEN", others)
    async with load.working(publish=2, cas=2, read=1):
        await until(lambda: load.acked > 50, 30)
        began = time.monotonic()
        talk.made.partition([[leader], others])
        await talk.do(talk.made.kill, leader)
        goal = load.acked + 50
        await until(lambda: load.acked >= goal, NOTICED_S)
        print(f"without acks: {longest_gap_s(load.acks, began):.1f} s")
        talk.made.heal()
        await talk.do(talk.made.start_server, leader)
        await talk.whole("UNSEEN")
        goal = load.acked + 50
        await until(lambda: load.acked >= goal, 30)
    await judge(talk, load)


async def test_a_host_that_was_cut_off_for_long_catches_up_when_packets_pass_again(talk: ClusterTalk) -> None:
    """TCP waits ever longer before it sends a lost packet again; the servers do not wait for that."""
    await talk.create("LONG")
    leader = await talk.leader("LONG")
    others = [server for server in range(3) if server != leader]
    load = ClusterLoad(talk, "LONG", others)
    async with load.working(publish=2, cas=1):
        talk.made.partition([[leader], others])
        await asyncio.sleep(25)
        assert load.acked > 50
        talk.made.heal()
        began = time.monotonic()
        await talk.whole("LONG")
        print(f"current {time.monotonic() - began:.1f} s after packets passed again")
    await judge(talk, load)
