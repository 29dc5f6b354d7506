"""Clients that use a stream of a cluster while it is broken, and write down what they saw."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, pairwise
from typing import Any

from nats.aio.client import Client as NatsPy
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from tests.support.histories import Action, Delivery, Operation, Outcome, Stored
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, api_request

READERS = count(1)
REQUEST_S = 2.0
WRONG_LAST = (10071, 10164, 10163)  # the last two: other writes of the subject are in flight


class ClusterLoad:
    """Workers on one stream. operations: what they saw. Times are of the monotonic clock. servers: those that
    the workers are clients of; () for any."""

    def __init__(self, talk: ClusterTalk, stream: str, servers: Sequence[int] = ()) -> None:
        self.stream = stream
        self._servers = servers
        self.operations: list[Operation] = []
        self.deliveries: list[Delivery] = []
        self.confirmed: dict[int, float] = {}
        self.acks: list[float] = []
        self.errors: Counter[str] = Counter()
        self._talk = talk
        self._tags = count(1)
        self._stopping = asyncio.Event()

    @property
    def acked(self) -> int:
        return len(self.acks)

    def counts(self) -> Counter[Outcome]:
        """Outcomes of writes."""
        return Counter(one.outcome for one in self.operations if one.action is not Action.READ)

    @asynccontextmanager
    async def working(self, **workers: int) -> AsyncIterator[None]:
        """Workers during the block: publish=2, cas=3, read=1, consume=1."""
        kinds: dict[str, Callable[[NatsPy, int], Awaitable[None]]] = {
            "publish": self._publish, "cas": self._compare_and_set, "read": self._read,
            "consume": self._consume,
        }  # fmt: skip
        self._stopping.clear()
        tasks = []
        for kind, number in workers.items():
            for index in range(number):
                server = self._servers[len(tasks) % len(self._servers)] if self._servers else None
                client = await self._talk.client(server)
                tasks.append(asyncio.create_task(self._work(kinds[kind], client, index)))
        try:
            yield
        finally:
            self._stopping.set()
            await asyncio.gather(*tasks)

    async def _work(self, step: Callable[[NatsPy, int], Awaitable[None]], client: NatsPy, index: int) -> None:
        while not self._stopping.is_set():
            await step(client, index)

    async def _write(self, client: NatsPy, action: Action, subject: str, expected: int = 0) -> Outcome:
        tag = f"m{next(self._tags)}"
        headers = {"Nats-Msg-Id": tag}
        if action is Action.CAS:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        invoked = time.monotonic()
        outcome, seq, returned = Outcome.UNKNOWN, 0, float("inf")
        try:
            answer = json.loads(
                (await client.request(subject, tag.encode(), timeout=REQUEST_S, headers=headers)).data
            )
        except NoRespondersError:
            outcome, returned = Outcome.FAILED, time.monotonic()
            self.errors["no responders"] += 1
        except (NatsError, OSError) as error:
            self.errors[type(error).__name__] += 1
        else:
            returned = time.monotonic()
            error = answer.get("error")
            if error is None:
                outcome, seq = Outcome.DONE, answer["seq"]
                self.acks.append(returned)
            else:
                code = error.get("err_code", 0)
                is_lost_race = action is Action.CAS and code == WRONG_LAST[0]
                outcome = Outcome.REFUSED if is_lost_race else Outcome.FAILED
                if not is_lost_race:
                    self.errors[f"{code} {error.get('description', '')}"] += 1
        self.operations.append(Operation(action, subject, tag, invoked, returned, outcome, seq, expected))
        if outcome in (Outcome.UNKNOWN, Outcome.FAILED):
            await asyncio.sleep(0.02)
        return outcome

    async def _publish(self, client: NatsPy, index: int) -> None:
        await self._write(client, Action.PUBLISH, f"{self.stream}.p{index}.{len(self.operations) // 2000}")

    def _key(self) -> str:
        return f"{self.stream}.k{len(self.operations) // 2000}"

    async def _compare_and_set(self, client: NatsPy, index: int) -> None:
        key = self._key()
        found = await self._last(client, key)
        if found is not None:
            await self._write(client, Action.CAS, key, found)

    async def _read(self, client: NatsPy, index: int) -> None:
        await self._last(client, self._key())
        await asyncio.sleep(0.005)

    async def _last(self, client: NatsPy, key: str) -> int | None:
        """Reads the last message of a subject. Returns its sequence, 0 = none, None = no answer."""
        invoked = time.monotonic()
        try:
            answer = await api_request(
                client, f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": key}, timeout_s=REQUEST_S
            )
        except (NatsError, OSError) as error:
            self.errors[f"read: {type(error).__name__}"] += 1
            await asyncio.sleep(0.02)
            return None
        returned = time.monotonic()
        code = answer.get("error", {}).get("err_code", 0)
        if code not in (0, 10037):
            self.errors[f"read: {code}"] += 1
            await asyncio.sleep(0.02)
            return None
        seq = answer["message"]["seq"] if not code else 0
        tag = _decoded(answer["message"]["data"]) if not code else ""
        self.operations.append(Operation(Action.READ, key, tag, invoked, returned, Outcome.DONE, seq))
        return seq

    async def _consume(self, client: NatsPy, index: int) -> None:
        await self.fetch(client, 50, 0.5)

    async def fetch(self, client: NatsPy, batch: int, expires_s: float) -> int:
        """Pulls messages of the consumer `d` and confirms each ack. Returns how many there were."""
        requested = time.monotonic()
        inbox = client.new_inbox()
        got = 0
        acks: list[asyncio.Task[None]] = []
        with suppress(NatsError, OSError):
            pulled = await client.subscribe(inbox)
            body = {"batch": batch, "expires": int(expires_s * 1e9)}
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.d"
            await client.publish(subject, json.dumps(body).encode(), reply=inbox)
            while True:
                message = await pulled.next_msg(timeout=expires_s + 0.5)
                if "Status" in (message.headers or {}):
                    break
                got += 1
                seq = int(message.reply.split(".")[-4])
                self.deliveries.append(Delivery(seq, requested))
                acks.append(asyncio.create_task(self._confirm(client, message.reply, seq)))
                if got == batch:
                    break
            await pulled.unsubscribe()
        await asyncio.gather(*acks)
        if not got:
            await asyncio.sleep(0.05)
        return got

    async def _confirm(self, client: NatsPy, reply: str, seq: int) -> None:
        with suppress(NatsError, OSError):
            await client.request(reply, b"+ACK", timeout=REQUEST_S)
            self.confirmed.setdefault(seq, time.monotonic())


def _decoded(data: str) -> str:
    return base64.b64decode(data).decode()


async def reader_at_leader(talk: ClusterTalk, stream: str) -> str:
    """Creates a consumer of all messages that the stream's leader serves: official servers put one without
    replicas on any member, so that it is created until it is there. Returns its name."""
    name = ""

    async def is_at_leader() -> bool:
        nonlocal name
        name = f"reader{next(READERS)}"
        config = {"name": name, "ack_policy": "none", "num_replicas": 1, "inactive_threshold": 60_000_000_000}
        body = {"stream_name": stream, "config": config}
        with suppress(NatsError):
            created = await talk.ask(f"CONSUMER.CREATE.{stream}.{name}", body, timeout_s=5)
            leader = (await talk.info(stream, timeout_s=5)).get("cluster", {}).get("leader")
            if leader and created.get("cluster", {}).get("leader") == leader:
                return True
            await talk.ask(f"CONSUMER.DELETE.{stream}.{name}", timeout_s=5)
        return False

    await until(is_at_leader, 60)
    return name


async def messages_of(talk: ClusterTalk, stream: str, batch: int = 1000) -> list[Stored]:
    """All messages of a stream, as its leader has them."""
    state = (await talk.info(stream))["state"]
    found: list[Stored] = []
    if not state["messages"]:
        return found
    reader = await reader_at_leader(talk, stream)
    client = await talk.client()
    inbox = client.new_inbox()
    pulled = await client.subscribe(inbox)
    while len(found) < state["messages"]:
        wanted = min(batch, state["messages"] - len(found))
        body = {"batch": wanted, "expires": 10_000_000_000}
        await client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{reader}", json.dumps(body).encode(), reply=inbox
        )
        for _ in range(wanted):
            message = await pulled.next_msg(timeout=15)
            status = (message.headers or {}).get("Status")
            assert status is None, f"{status} after {len(found)} messages of {state}"
            found.append(Stored(int(message.reply.split(".")[-4]), message.subject, message.data.decode()))
    assert found[-1].seq == state["last_seq"], (found[-1], state)
    await talk.ask(f"CONSUMER.DELETE.{stream}.{reader}")
    await client.close()
    return found


async def replicas_of(talk: ClusterTalk, stream: str) -> dict[str, list[Stored]]:
    """The messages of each replica of a stream, by server: each leads in turn."""
    await talk.whole(stream)
    group = (await talk.info(stream))["cluster"]
    found = {}
    for name in [group["leader"], *(one["name"] for one in group.get("replicas", ()))]:
        await talk.lead(stream, name)
        found[name] = await messages_of(talk, stream)
    return found


async def assert_equal_replicas(talk: ClusterTalk, stream: str) -> list[Stored]:
    """All replicas have the same messages. Returns them."""
    found = await replicas_of(talk, stream)
    (first, messages), *others = found.items()
    for name, other in others:
        different = set(messages) ^ set(other)
        assert not different, f"{first} and {name} differ in {len(different)}: {sorted(different)[:5]}"
    return messages


def longest_gap_s(times: Sequence[float], since: float) -> float:
    """The longest time without acks that ended after `since`; infinite without a later ack."""
    gaps = [after - before for before, after in pairwise(times) if after > since]
    return max(gaps, default=float("inf"))


async def state_of_consumer(talk: ClusterTalk, stream: str, consumer: str) -> dict[str, Any]:
    """What a consumer says about its progress."""
    info = await talk.ask(f"CONSUMER.INFO.{stream}.{consumer}")
    kept = ("num_pending", "num_ack_pending")
    floors = {name: info[name]["stream_seq"] for name in ("delivered", "ack_floor")}
    return floors | {name: info[name] for name in kept}
