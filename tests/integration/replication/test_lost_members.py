"""A cluster without a majority, with a lost disk, and with copies that follow another stream."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, messages_of
from tests.support.histories import violations
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, api_request, publish_sure

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


async def test_a_cluster_without_a_majority_says_so_and_heals_by_itself(talk: ClusterTalk, kind: str) -> None:
    await talk.create("LOST")
    leader = await talk.leader("LOST")
    client = await talk.client(leader)
    advisories: list[dict[str, Any]] = []

    async def note(message: Any) -> None:
        advisories.append(json.loads(message.data))

    await client.subscribe("$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.LOST", cb=note)
    await publish_sure(client, "LOST.1", b"1", "1")
    others = [server for server in range(3) if server != leader]
    for server in others:
        await talk.do(talk.made.kill, server)
    with pytest.raises(NatsTimeout):  # the leader does not know yet; there may be one answer after the other
        await client.request("LOST.2", b"2", timeout=0.2)

    async def has_no_responders() -> bool:
        with suppress(NatsTimeout):
            try:
                await client.request("LOST.3", b"3", timeout=0.5)
            except NoRespondersError:
                return True
        await asyncio.sleep(0.1)
        return False

    began = time.monotonic()
    await until(has_no_responders, 40)
    print(f"{kind}: no responders after {time.monotonic() - began:.1f} s")
    await until(lambda: bool(advisories), 40)
    assert advisories[0]["type"] == "io.nats.jetstream.advisory.v1.stream_quorum_lost"
    assert advisories[0]["stream"] == "LOST"
    assert {one["name"] for one in advisories[0]["replicas"]} >= {"abc"[server] for server in others}

    async def is_unavailable() -> bool:
        with suppress(NatsTimeout):
            codes = [await error_code(client, subject) for subject in ("STREAM.NAMES", "STREAM.MSG.GET.LOST")]
            return codes == [10008, 10008]
        return False

    await until(is_unavailable, 40)
    print(f"{kind}: 10008 after {time.monotonic() - began:.1f} s")
    health = await talk.do_page(leader, "healthz")
    assert health.get("status") != "ok", health
    await talk.do(talk.made.start_server, others[0])
    await publish_sure(client, "LOST.4", b"4", "4")


async def error_code(client: Any, subject: str) -> int:
    """Of the answer to an API request; 0 for none."""
    body = {"seq": 1} if "MSG" in subject else None
    answer = await api_request(client, subject, body, timeout_s=2)
    return int(answer.get("error", {}).get("err_code", 0))


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


@pytest.mark.parametrize("copy", [{"mirror": {"name": "ORIGIN"}}, {"sources": [{"name": "ORIGIN"}]}])
async def test_a_copy_goes_on_without_gap_when_its_leader_is_killed(
    talk: ClusterTalk, copy: dict[str, Any]
) -> None:
    await talk.create("ORIGIN")
    client = await talk.client()
    for number in range(1, 51):
        await publish_sure(client, f"ORIGIN.{number}", b"%d" % number, str(number))
    created = await talk.ask("STREAM.CREATE.COPY", {"name": "COPY", "num_replicas": 3, **copy})
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
            leader = await talk.leader("SCALED")
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
            assert await talk.leader("SCALED") == leader, "it stays"
    assert violations(load.operations, await assert_equal_replicas(talk, "SCALED")) == []
