"""A fast batch whose stream gets another leader in the middle, on penstock and on the official server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.cluster_load import assert_equal_replicas
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("cluster.raft")

START, APPEND, COMMIT = range(3)


class FastBatch:
    """Publishes a batch to `FAST.a`. answers: what the server said to it. sent: the last sequence."""

    def __init__(self, client: Any, gap: str) -> None:
        self._client = client
        self._inbox = client.new_inbox()
        self._gap = gap
        self.sent = 0
        self.answers: list[dict[str, Any]] = []

    async def listen(self) -> None:
        async def heard(message: Any) -> None:
            # Without a leader the answer is 503, without a text.
            self.answers.append(json.loads(message.data) if message.data else {"unheard": True})

        await self._client.subscribe(f"{self._inbox}.>", cb=heard)

    async def send(self, count: int, operation: int = APPEND) -> None:
        for _ in range(count):
            self.sent += 1
            reply = f"{self._inbox}.id.10.{self._gap}.{self.sent}.{operation}.$FI"
            await self._client.publish("FAST.a", b"%d" % self.sent, reply=reply)
        await self._client.flush()

    def final(self) -> dict[str, Any] | None:
        """The last answer: the ack of the whole batch."""
        return next((one for one in self.answers if one.get("batch") and "seq" in one), None)


@pytest.mark.parametrize("gap", ["ok", "fail"])
async def test_a_fast_batch_survives_a_change_of_the_leader(talk: ClusterTalk, kind: str, gap: str) -> None:
    await talk.create("FAST", allow_batched=True)
    batch = FastBatch(await talk.client(), gap)
    await batch.listen()
    await batch.send(1, START)
    await batch.send(49)
    await until(lambda: len(batch.answers) > 1, 10)
    leader = await talk.leader("FAST")
    stepping = asyncio.create_task(talk.ask("STREAM.LEADER.STEPDOWN.FAST"))
    while not stepping.done():
        await batch.send(1)
        await asyncio.sleep(0.002)
    assert (await stepping).get("success")
    following = asyncio.create_task(talk.leader("FAST", but=leader))
    while not following.done():
        await batch.send(1)
        await asyncio.sleep(0.002)
    await batch.send(20)
    await batch.send(1, COMMIT)
    await until(lambda: batch.final() is not None, 10)
    final, gaps = batch.final() or {}, [one for one in batch.answers if one.get("type") == "gap"]
    stored = [int(one.tag) for one in await assert_equal_replicas(talk, "FAST")]
    print(f"{kind} {gap}: {len(stored)} of {batch.sent} stored, {len(gaps)} gaps, {final}")
    assert stored == sorted(set(stored)), "in order, and none twice"
    assert final["seq"] == len(stored)
    if gap == "ok":
        assert stored[-1] == batch.sent, "the batch went on behind the gap"
    else:
        assert stored == list(range(1, len(stored) + 1)), "nothing is stored behind a gap"
    assert bool(gaps) == (len(stored) < batch.sent)
