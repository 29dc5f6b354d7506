"""What is acknowledged survives the loss of a leader, on penstock and on the official server."""

from __future__ import annotations

import asyncio
import json
import statistics
import time

import pytest
from nats.aio.client import Client as NatsPy
from nats.aio.subscription import Subscription

from tests.support.cluster_load import (
    ClusterLoad,
    assert_equal_replicas,
    longest_gap_s,
    state_of_consumer,
)
from tests.support.histories import consumer_violations, not_linearizable, violations
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("cluster.raft")


async def more_acks(load: ClusterLoad, number: int, timeout_s: float = 40.0) -> None:
    """Until so many more writes are acknowledged."""
    goal = load.acked + number
    await until(lambda: load.acked >= goal, timeout_s)


async def durable(talk: ClusterTalk, stream: str, **fields: object) -> None:
    """Creates the consumer `d`."""
    config = {"durable_name": "d", "ack_policy": "explicit", **fields}
    answer = await talk.ask(f"CONSUMER.DURABLE.CREATE.{stream}.d", {"stream_name": stream, "config": config})
    assert "error" not in answer, answer


async def test_nothing_acknowledged_is_lost_or_doubled_when_a_leader_is_killed(
    talk: ClusterTalk, kind: str
) -> None:
    await talk.create("KILLED")
    await durable(talk, "KILLED")
    load = ClusterLoad(talk, "KILLED")
    async with load.working(publish=2, cas=2, consume=1):
        await more_acks(load, 200)
        leader = await talk.leader("KILLED")
        killed = time.monotonic()
        await talk.do(talk.made.kill, leader)
        await more_acks(load, 200)
        await talk.do(talk.made.start_server, leader)
        await more_acks(load, 100)
    gap_s = longest_gap_s(load.acks, killed)
    print(f"{kind}: {gap_s:.1f} s without acks, {load.counts()}, {dict(load.errors)}")
    assert gap_s < 10
    await talk.do(talk.made.wait_ready)
    stored = await assert_equal_replicas(talk, "KILLED")
    assert violations(load.operations, stored) == []
    if kind == "penstock":  # the official server answers from a leader that was deposed
        assert not_linearizable(load.operations, stored) == ([], [])
    client = await talk.client()
    while await load.fetch(client, 500, 1.0):
        pass
    assert consumer_violations(load.deliveries, load.confirmed, [one.seq for one in stored]) == []


async def test_consumers_are_the_same_on_every_replica(talk: ClusterTalk) -> None:
    await talk.create("PROGRESS")
    await durable(talk, "PROGRESS")
    client = await talk.client()
    for number in range(50):
        await client.request(f"PROGRESS.{number}", b"x")
    load = ClusterLoad(talk, "PROGRESS")
    assert await load.fetch(client, 20, 2.0) == 20
    inbox = client.new_inbox()
    pending = await client.subscribe(inbox)
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.PROGRESS.d", b'{"batch": 5}', reply=inbox)
    for _ in range(5):
        await pending.next_msg(timeout=5)
    wanted = {"delivered": 25, "ack_floor": 20, "num_pending": 25, "num_ack_pending": 5}
    for name in "abc":
        await talk.lead("PROGRESS", name)
        answer = {}

        async def is_same(answer: dict[str, object] = answer) -> bool:
            answer.update(await state_of_consumer(talk, "PROGRESS", "d"))
            return answer == wanted

        try:
            await until(is_same, 10)
        except TimeoutError:
            raise AssertionError(f"{name} says {answer}, expected {wanted}") from None


async def waiting_pull(talk: ClusterTalk, client: NatsPy, stream: str) -> Subscription:
    """The inbox of a pull request that waits at consumer d."""
    inbox = client.new_inbox()
    waiting = await client.subscribe(inbox)
    body = json.dumps({"batch": 1, "expires": 30_000_000_000}).encode()
    await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.d", body, reply=inbox)
    await client.flush()

    async def is_waiting() -> bool:
        return bool((await talk.ask(f"CONSUMER.INFO.{stream}.d"))["num_waiting"])

    await until(is_waiting)
    return waiting


async def test_a_waiting_pull_request_hears_that_its_stream_is_deleted(talk: ClusterTalk) -> None:
    """As when its consumer is: clients end then, and wait for the next leader after a leadership change."""
    await talk.create("ENDED")
    await durable(talk, "ENDED")
    client = await talk.client()
    waiting = await waiting_pull(talk, client, "ENDED")
    assert (await talk.ask("STREAM.DELETE.ENDED")).get("success")
    message = await waiting.next_msg(timeout=10)
    assert (message.headers["Status"], message.headers["Description"]) == ("409", "Consumer Deleted")


async def test_a_waiting_pull_request_hears_of_a_leader_change(talk: ClusterTalk) -> None:
    await talk.create("WAITING")
    await durable(talk, "WAITING")
    client = await talk.client()
    await client.request("WAITING.1", b"x")
    load = ClusterLoad(talk, "WAITING")
    assert await load.fetch(client, 1, 2.0) == 1
    waiting = await waiting_pull(talk, client, "WAITING")
    answer = await talk.ask("CONSUMER.LEADER.STEPDOWN.WAITING.d")
    assert answer.get("success"), answer
    message = await waiting.next_msg(timeout=10)
    assert (message.headers["Status"], message.headers["Description"]) == ("409", "Leadership Change")
    await talk.leader("WAITING")
    await client.request("WAITING.2", b"y", timeout=5)
    for _ in range(20):
        if await load.fetch(client, 1, 1.0):
            break
    assert [one.seq for one in load.deliveries] == [1, 2], "nothing acknowledged comes again"


async def step_down_beside_writes(talk: ClusterTalk, kind: str) -> ClusterLoad:
    """Five step-downs while four clients publish. Checks that writes go on, and what was stored."""
    await talk.create("STEPS")
    load = ClusterLoad(talk, "STEPS")
    gaps = []
    async with load.working(publish=4):
        for _ in range(5):
            await more_acks(load, 50)
            asked = time.monotonic()
            answer = await talk.ask("STREAM.LEADER.STEPDOWN.STEPS")
            assert answer.get("success"), answer
            await more_acks(load, 50)
            gaps.append(longest_gap_s(load.acks, asked))
            await talk.whole("STEPS")
    print(f"{kind}: {', '.join(f'{one:.3f}' for one in gaps)} s without acks, {dict(load.errors)}")
    if kind == "penstock":  # the official server answers nothing that it has not proposed
        assert statistics.median(gaps) < 0.2
    assert violations(load.operations, await assert_equal_replicas(talk, "STEPS")) == []
    return load


async def test_writes_go_on_when_a_leader_steps_down(talk: ClusterTalk, kind: str) -> None:
    await step_down_beside_writes(talk, kind)


async def test_no_publish_in_flight_is_lost_when_a_leader_steps_down(talk: ClusterTalk, kind: str) -> None:
    load = await step_down_beside_writes(talk, kind)
    if kind == "penstock":
        assert load.errors["TimeoutError"] == 0, "a publish in flight to the old leader is lost"


async def test_a_stopped_leader_hands_over(talk: ClusterTalk, kind: str) -> None:
    await talk.create("HANDED")
    leader = await talk.leader("HANDED")
    load = ClusterLoad(talk, "HANDED", [one for one in range(3) if one != leader])
    async with load.working(publish=2):
        await more_acks(load, 50)
        stopped = time.monotonic()
        stopping = asyncio.create_task(talk.do(talk.made.stop, leader))
        await more_acks(load, 200)
        await stopping
        await talk.do(talk.made.start_server, leader)
        await more_acks(load, 50)
    gap_s = longest_gap_s(load.acks, stopped)
    print(f"{kind}: {gap_s:.2f} s without acks, {load.counts()}, {dict(load.errors)}")
    assert gap_s < (1 if kind == "penstock" else 5)
    assert violations(load.operations, await assert_equal_replicas(talk, "HANDED")) == []


@pytest.mark.feature("cluster.quorum")
async def test_the_cluster_gets_another_meta_leader_when_its_leader_is_killed(
    talk: ClusterTalk, kind: str
) -> None:
    leader = await talk.do_meta_leader()
    killed = time.monotonic()
    await talk.do(talk.made.kill, leader)

    async def is_other() -> bool:
        return await asyncio.to_thread(talk.made.meta_leader) not in (None, leader)

    await until(is_other, 20)
    print(f"{kind}: {time.monotonic() - killed:.1f} s without a meta leader")
    assert time.monotonic() - killed < 10
    await talk.create("LATER", 1)
