"""What waits in a leader that hands over is answered, on penstock and on the official server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy
from nats.errors import Error as NatsError

from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk

pytestmark = pytest.mark.feature("cluster.raft")

ANSWER_S = 4.0

Ask = Callable[[NatsPy, int], Awaitable[Any]]


class AskingLoad:
    """Requests that follow each other. answers: how many had which outcome. wrong: the first unexpected
    ones."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._goes_on = True

    async def ask(self, client: NatsPy, worker: int, ask: Ask) -> None:
        """One request after the other; each says what its answer is worth: "ok" or an error."""
        number = worker * 100_000
        while self._goes_on:
            number += 1
            try:
                found = await ask(client, number)
            except NatsError as error:
                found = f"{type(error).__name__} for {ask.__name__} {number}"
            self.answers[found.split(" ")[0]] += 1
            if found != "ok" and not found.startswith("10008") and len(self.wrong) < 10:
                self.wrong.append(found)
            await asyncio.sleep(0.002)

    @asynccontextmanager
    async def running(self, clients: list[NatsPy], *asks: Ask) -> AsyncIterator[None]:
        """The requests go on within the block; each of its clients asks each kind."""
        tasks = [
            asyncio.create_task(self.ask(client, 10 * place + kind, ask))
            for place, client in enumerate(clients)
            for kind, ask in enumerate(asks)
        ]
        try:
            yield
        finally:
            self._goes_on = False
            await asyncio.gather(*tasks)

    async def more(self, count: int) -> None:
        """Returns after so many more answers."""
        goal = self.answers.total() + count
        await until(lambda: self.answers.total() >= goal, 30)


async def api(client: NatsPy, subject: str, body: Any = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    found: dict[str, Any] = json.loads(
        (await client.request(f"$JS.API.{subject}", data, timeout=ANSWER_S)).data
    )
    return found


def worth(answer: dict[str, Any], *expected: int) -> str:
    """ok for a success, or for an error that is expected."""
    code = answer.get("error", {}).get("err_code", 0)
    return "ok" if code == 0 or code in expected else f"{code} {answer['error']['description']}"


async def names(client: NatsPy, number: int) -> str:
    return worth(await api(client, "STREAM.NAMES"))


async def missing(client: NatsPy, number: int) -> str:
    return worth(await api(client, f"STREAM.INFO.NONE{number}"), 10059)


async def consumer(client: NatsPy, number: int) -> str:
    """A consumer's life."""
    name = f"d{number}"
    config = {"durable_name": name, "ack_policy": "explicit", "num_replicas": 3}
    body = {"stream_name": "META", "config": config}
    found = worth(await api(client, f"CONSUMER.DURABLE.CREATE.META.{name}", body))
    if found == "ok":
        found = worth(
            await api(client, f"CONSUMER.PAUSE.META.{name}", {"pause_until": "2100-01-01T00:00:00Z"})
        )
    return found if found != "ok" else worth(await api(client, f"CONSUMER.DELETE.META.{name}"))


async def test_requests_are_answered_when_the_meta_leader_steps_down(talk: ClusterTalk, kind: str) -> None:
    await talk.create("META")
    clients = [await talk.client(server) for server in range(3)]
    load = AskingLoad()
    async with load.running(clients, names, missing, consumer):
        for _ in range(4):
            await load.more(60)
            leader = await talk.do_meta_leader()
            answer = await talk.ask("META.LEADER.STEPDOWN")
            assert answer.get("success"), answer

            async def is_other(leader: int = leader) -> bool:
                return await asyncio.to_thread(talk.made.meta_leader) not in (leader, None)

            await until(is_other, 20)
        await load.more(60)
    print(f"{kind}: {dict(load.answers)} {load.wrong}")
    if kind == "penstock":  # the official server drops what its leader had not proposed
        assert load.wrong == []


async def info(client: NatsPy, number: int) -> str:
    return worth(await api(client, "STREAM.INFO.HELD"))


async def consumer_info(client: NatsPy, number: int) -> str:
    return worth(await api(client, "CONSUMER.INFO.HELD.d"))


async def get(client: NatsPy, number: int) -> str:
    return worth(await api(client, "STREAM.MSG.GET.HELD", {"seq": 1}))


async def purge(client: NatsPy, number: int) -> str:
    return worth(await api(client, "STREAM.PURGE.HELD", {"filter": "HELD.purged"}))


async def delete(client: NatsPy, number: int) -> str:
    """Deletes a message that does not exist."""
    return worth(await api(client, "STREAM.MSG.DELETE.HELD", {"seq": 1_000_000}), 10057, 10043)


async def test_requests_are_answered_when_the_leader_of_a_stream_steps_down(
    talk: ClusterTalk, kind: str
) -> None:
    await talk.create("HELD")
    config = {"durable_name": "d", "ack_policy": "explicit"}
    await talk.ask("CONSUMER.DURABLE.CREATE.HELD.d", {"stream_name": "HELD", "config": config})
    clients = [await talk.client(server) for server in range(3)]
    await clients[0].request("HELD.1", b"x")
    load = AskingLoad()
    async with load.running(clients, info, consumer_info, get, purge, delete):
        for _ in range(4):
            await load.more(100)
            leader = await talk.leader("HELD")
            answer = await talk.ask("STREAM.LEADER.STEPDOWN.HELD")
            assert answer.get("success"), answer
            await talk.leader("HELD", but=leader)
        await load.more(100)
    print(f"{kind}: {dict(load.answers)} {load.wrong}")
    if kind == "penstock":  # official members that know no leader say so with 10008
        assert load.answers.keys() == {"ok"}, load.wrong


async def test_acks_are_confirmed_when_the_leader_of_a_stream_steps_down(
    talk: ClusterTalk, kind: str
) -> None:
    await talk.create("ACKED")
    config = {"durable_name": "d", "ack_policy": "explicit", "max_ack_pending": 10_000}
    await talk.ask("CONSUMER.DURABLE.CREATE.ACKED.d", {"stream_name": "ACKED", "config": config})
    clients = [await talk.client(server) for server in range(3)]
    count = 6000
    for number in range(count):
        await clients[0].publish("ACKED.1", b"%d" % number)
    await until(lambda: _has(talk, "ACKED", count), 30)
    outcomes: Counter[str] = Counter()
    again: Counter[str] = Counter()
    confirmed: set[str] = set()
    goes_on = True

    async def work(client: NatsPy) -> None:
        while goes_on:
            inbox = client.new_inbox()
            messages = await client.subscribe(inbox)
            body = b'{"batch": 20, "expires": 2000000000}'
            await client.publish("$JS.API.CONSUMER.MSG.NEXT.ACKED.d", body, reply=inbox)
            try:
                for _ in range(20):
                    message = await messages.next_msg(timeout=2)
                    if not message.reply:
                        break
                    sequence = message.reply.split(".")[5]
                    again["doubled"] += sequence in confirmed
                    try:
                        await client.request(message.reply, b"+ACK", timeout=ANSWER_S)
                        confirmed.add(sequence)
                        outcomes["ok"] += 1
                        await client.publish("ACKED.1", b"more")  # fast servers would run out of messages
                    except NatsError as error:
                        outcomes[type(error).__name__] += 1
                        if kind == "official":  # nor would it answer for the others of the batch
                            break
            except NatsError:
                await asyncio.sleep(0.05)
            await messages.unsubscribe()

    workers = [asyncio.create_task(work(client)) for client in clients for _ in range(2)]
    for _ in range(5):
        goal = outcomes["ok"] + 100
        await until(lambda goal=goal: outcomes["ok"] >= goal, 30)  # type: ignore[misc]
        leader = await talk.leader("ACKED")
        answer = await talk.ask("STREAM.LEADER.STEPDOWN.ACKED")
        assert answer.get("success"), answer
        await talk.leader("ACKED", but=leader)
    goes_on = False
    await asyncio.gather(*workers)
    print(f"{kind}: {dict(outcomes)}, {again['doubled']} confirmed messages came again")
    assert again["doubled"] == 0
    if kind == "penstock":  # the official server leaves them to the client's time-out, or says 503
        assert outcomes["TimeoutError"] == 0


async def _has(talk: ClusterTalk, stream: str, count: int) -> bool:
    return bool((await talk.info(stream))["state"]["messages"] == count)
