"""A cluster without a majority, with a lost disk, and with copies that follow another stream."""

from __future__ import annotations

import json

import pytest
from nats.errors import Error as NatsError

from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, messages_of
from tests.support.histories import violations
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, publish_sure

pytestmark = [pytest.mark.cluster_faults, pytest.mark.slow, pytest.mark.feature("cluster.quorum")]


async def test_without_a_majority_nothing_is_acknowledged_until_one_is_back(talk: ClusterTalk) -> None:
    await talk.create("ALONE")
    client = await talk.client(0)
    await publish_sure(client, "ALONE.1", b"one", "1")
    for server in (1, 2):
        await talk.do(talk.made.kill, server)
    for _ in range(3):
        with pytest.raises(NatsError):
            await client.request("ALONE.2", b"two", timeout=2, headers={"Nats-Msg-Id": "2"})
    await talk.do(talk.made.start_server, 1)
    ack = await publish_sure(client, "ALONE.2", b"two", "2")
    assert ack["seq"] == 2
    await talk.do(talk.made.start_server, 2)
    stored = await assert_equal_replicas(talk, "ALONE")
    assert [one.tag for one in stored] == ["one", "two"]


async def test_a_wiped_server_gets_everything_from_the_others(talk: ClusterTalk) -> None:
    await talk.create("WIPED")
    load = ClusterLoad(talk, "WIPED")
    async with load.working(publish=2):
        await until(lambda: load.acked >= 200, 40)
        await talk.do(talk.made.wipe, await talk.leader("WIPED"))
        goal = load.acked + 200
        await until(lambda: load.acked >= goal, 60)
        for index, one in enumerate(talk.made.servers):
            if not one.is_running:
                await talk.do(talk.made.start_server, index)
        await talk.whole("WIPED", 90)
    assert violations(load.operations, await assert_equal_replicas(talk, "WIPED")) == []


async def test_a_mirror_goes_on_without_gap_when_its_leader_is_killed(talk: ClusterTalk) -> None:
    await talk.create("ORIGIN")
    client = await talk.client()
    for number in range(1, 51):
        await publish_sure(client, f"ORIGIN.{number}", b"%d" % number, str(number))
    created = await talk.ask(
        "STREAM.CREATE.COPY", {"name": "COPY", "num_replicas": 3, "mirror": {"name": "ORIGIN"}}
    )
    assert "error" not in created, created
    try:
        leader = await talk.leader("COPY")
        await talk.do(talk.made.kill, leader)
        for number in range(51, 101):
            await publish_sure(client, f"ORIGIN.{number}", b"%d" % number, str(number))

        async def is_complete() -> bool:
            try:
                return bool((await talk.info("COPY", timeout_s=2))["state"]["messages"] == 100)
            except (NatsError, KeyError):
                return False

        await until(is_complete, 90)
        await talk.do(talk.made.start_server, leader)
        await talk.do(talk.made.wait_ready)
        await talk.whole("COPY")
        copies = [(one.seq, one.tag) for one in await messages_of(talk, "COPY")]
        assert copies == [(number, str(number)) for number in range(1, 101)]
    finally:
        await talk.ask("STREAM.DELETE.COPY")


async def test_an_atomic_batch_is_stored_whole_or_not_at_all(talk: ClusterTalk) -> None:
    await talk.create("BATCHES", allow_atomic=True)
    client = await talk.client()
    leader = await talk.leader("BATCHES")
    for seq in range(1, 11):
        headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": str(seq)}
        if seq == 6:
            await talk.do(talk.made.kill, leader)
            await talk.leader("BATCHES", but=leader)
        if seq == 10:
            headers["Nats-Batch-Commit"] = "1"
        try:
            answer = await client.request(f"BATCHES.{seq}", b"%d" % seq, timeout=3, headers=headers)
        except NatsError:
            continue
        if answer.data and "error" in json.loads(answer.data):
            break
    await talk.do(talk.made.start_server, leader)
    stored = await assert_equal_replicas(talk, "BATCHES")
    assert [one.tag for one in stored] in ([], [str(number) for number in range(1, 11)])


async def test_replicas_come_and_go_under_load(talk: ClusterTalk) -> None:
    await talk.create("SCALED", 1)
    load = ClusterLoad(talk, "SCALED")
    config = {"name": "SCALED", "subjects": ["SCALED.>"]}
    async with load.working(publish=2):
        for replicas in (3, 1, 3):
            goal = load.acked + 100
            await until(lambda goal=goal: load.acked >= goal, 40)  # type: ignore[misc]
            answer = await talk.ask("STREAM.UPDATE.SCALED", {**config, "num_replicas": replicas})
            assert "error" not in answer, answer

            async def is_scaled(replicas: int = replicas) -> bool:
                try:
                    group = (await talk.info("SCALED", timeout_s=2)).get("cluster") or {}
                except NatsError:
                    return False
                others = [one for one in group.get("replicas") or () if one["current"]]
                return len(others) == replicas - 1 and not group.get("desired")

            await until(is_scaled, 60)
    assert violations(load.operations, await assert_equal_replicas(talk, "SCALED")) == []
