"""Direct gets of replicated streams, on penstock and on the official server: no replica shows a part of an
atomic batch, and each is answered while the leader changes, and without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("atomic.commit", "stream.direct-get-batch", "stream.replicas")

SIZE = 10
BATCHES = 60


async def publish_batch(client: Any, number: int) -> None:
    """One message to each subject, all with this number, as a batch."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    for seq in range(1, SIZE + 1):
        headers = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": str(seq)}
        if seq == SIZE:
            headers["Nats-Batch-Commit"] = "1"
        reply = inbox if seq == SIZE else ""
        await client.publish(f"WHOLE.{seq}", b"%d" % number, reply=reply, headers=headers)
    answer = json.loads((await answers.next_msg(timeout=10)).data)
    await answers.unsubscribe()
    assert answer["count"] == SIZE, answer


async def last_of_all(client: Any) -> list[int]:
    """The numbers of the last message of each subject, from one request."""
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$JS.API.DIRECT.GET.WHOLE", b'{"multi_last": ["WHOLE.*"]}', reply=inbox)
    found = []
    while True:
        message = await answers.next_msg(timeout=10)
        status = (message.headers or {}).get("Status")
        if status == "404":  # nothing is stored yet
            return []
        if status is not None:
            assert status == "204", message.headers
            break
        found.append(int(message.data))
    await answers.unsubscribe()
    return found


async def test_no_replica_shows_a_part_of_an_atomic_batch(talk: ClusterTalk) -> None:
    await talk.create("WHOLE", allow_direct=True, allow_atomic=True)
    publisher = await talk.client(0)
    seen: dict[int, set[int]] = {}
    partial: list[list[int]] = []
    is_done = asyncio.Event()

    async def read(server: int) -> None:
        client = await talk.client(server)
        found = seen.setdefault(server, set())
        while not is_done.is_set():
            numbers = await last_of_all(client)
            found.update(numbers)
            if len(set(numbers)) > 1 or len(numbers) not in (0, SIZE):
                partial.append(numbers)

    readers = [asyncio.create_task(read(server)) for server in range(3) for _ in range(2)]
    try:
        for number in range(BATCHES):
            await publish_batch(publisher, number)
    finally:
        is_done.set()
        await asyncio.gather(*readers)
    print(f"seen by the clients of each server: {[len(one) for one in seen.values()]} of {BATCHES}")
    assert partial == []
    assert all(len(one) > 1 for one in seen.values()), "the reads were not beside the writes"


@dataclass
class Reads:
    """What clients that send direct gets have had, by client."""

    answered: list[int]
    lost: list[Exception] = field(default_factory=list)

    async def more(self, count: int = 20) -> None:
        """Returns when each client has had more answers."""
        goals = [one + count for one in self.answered]
        await until(lambda: all(one >= goal for one, goal in zip(self.answered, goals, strict=True)), 10)


@asynccontextmanager
async def reading(talk: ClusterTalk, stream: str, servers: list[int]) -> AsyncIterator[Reads]:
    """Direct gets by clients of these servers during the block."""
    reads = Reads([0] * len(servers))
    is_done = asyncio.Event()

    async def read(index: int, server: int) -> None:
        client = await talk.client(server)
        while not is_done.is_set():
            try:
                message = await client.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq": 1}', timeout=3)
            except NatsError as error:
                reads.lost.append(error)
                continue
            assert message.data == b"one", message
            reads.answered[index] += 1

    readers = [asyncio.create_task(read(index, server)) for index, server in enumerate(servers)]
    try:
        await reads.more()
        yield reads
        await reads.more()
    finally:
        is_done.set()
        await asyncio.gather(*readers)


async def stored(talk: ClusterTalk, name: str) -> list[int]:
    """Creates a stream with a message. Returns its leader, and the other servers."""
    await talk.create(name, allow_direct=True)
    await (await talk.client(0)).request(f"{name}.a", b"one")
    await talk.whole(name)
    leader = await talk.leader(name)
    return [leader, *(one for one in range(3) if one != leader)]


async def test_direct_gets_are_answered_while_the_leader_changes(talk: ClusterTalk) -> None:
    await stored(talk, "STEPS")
    async with reading(talk, "STEPS", [0, 1, 2]) as reads:
        for _ in range(5):
            await talk.ask("STREAM.LEADER.STEPDOWN.STEPS")
            await talk.leader("STEPS")
            await reads.more()
    assert reads.lost == []


async def test_direct_gets_are_answered_while_the_leader_is_killed(talk: ClusterTalk) -> None:
    leader, *others = await stored(talk, "KILLED")
    async with reading(talk, "KILLED", others) as reads:
        await talk.do(talk.made.kill, leader)
        await reads.more()
        await talk.leader("KILLED", but=leader)
        await talk.do(talk.made.start_server, leader)
        await talk.whole("KILLED")
    assert len(reads.lost) <= 2, reads.lost  # one of each client may have been at the server that died


async def test_direct_gets_are_answered_by_the_last_member_of_three(talk: ClusterTalk) -> None:
    leader, other, last = await stored(talk, "LAST")
    async with reading(talk, "LAST", [last]) as reads:
        for one in (leader, other):
            await talk.do(talk.made.kill, one)
            await reads.more()
        await asyncio.sleep(3)
        await reads.more()
        for one in (leader, other):
            await talk.do(talk.made.start_server, one)
        await talk.whole("LAST")
    assert len(reads.lost) <= 2, reads.lost


async def test_direct_gets_are_answered_after_a_stream_lost_replicas(talk: ClusterTalk) -> None:
    await stored(talk, "SMALL")
    async with reading(talk, "SMALL", [0, 1, 2]) as reads:
        config = (await talk.info("SMALL"))["config"] | {"num_replicas": 1}
        answer = await talk.ask("STREAM.UPDATE.SMALL", config)
        assert "error" not in answer, answer
        await reads.more(500)
    # Those of each client that were on the way to one of the two servers, whose end of interest they crossed.
    assert len(reads.lost) <= 6, reads.lost
    assert not any(isinstance(one, NoRespondersError) for one in reads.lost), reads.lost
