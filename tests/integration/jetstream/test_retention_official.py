"""Interest and work-queue streams: the same transcript with both servers, the same messages left.

Left out is where penstock is stricter or tidier on purpose: a filtered
consumer of a shared work queue can't be updated to take everything (the official server lets it); what no
consumer takes leaves a stream that turns to interest at once, and what a deleted consumer had given up goes
with it (there both wait for the next restart).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest

from tests.support.nats_servers import find_official_server
from tests.support.transcript import MS, Answer, Transcript, comparable

pytestmark = [
    pytest.mark.feature("stream.work-queue", "stream.interest", "stream.limits-always"),
    pytest.mark.official,
    pytest.mark.skipif(find_official_server() is None, reason="no official nats-server"),
    # As conftest.py does for tests of the official server alone: it may miss the 80 ms a pull is listened to.
    pytest.mark.flaky(reruns=1),
]

SETTLED_S = 0.06  # the official server applies acks when it comes to them


class Retaining(Transcript):
    """A transcript about the stream called after its retention, which also says what is left in it."""

    async def begin(self, retention: str, **settings: Any) -> None:
        config = {"name": self.stream, "subjects": [f"{self.stream}.>"], "retention": retention, **settings}
        await self.api(f"STREAM.CREATE.{self.stream}", config)

    async def send(self, *tokens: str, **header: str) -> None:
        for token in tokens:
            headers = {name.replace("_", "-"): value for name, value in header.items()}
            answer = await self.client.request(f"{self.stream}.{token}", b"x", timeout=5, headers=headers)
            self.heard.append((f"publish {token}", json.loads(answer.data)))

    async def left(self) -> None:
        await self.client.flush()
        await asyncio.sleep(SETTLED_S)
        request = json.dumps({"deleted_details": True, "subjects_filter": ">"}).encode()
        message = await self.client.request(f"$JS.API.STREAM.INFO.{self.stream}", request, timeout=5)
        self.heard.append(("left", comparable(json.loads(message.data))["state"]))

    async def take(self, name: str, batch: int = 10, body: bytes = b"") -> list[Any]:
        """Pulls and acks. Returns once the acks are applied, since a publish behind them may overtake them.

        In the official server it always may; in ours, when one read brings both.
        """
        messages = await self.pull(name, {"batch": batch, "no_wait": True})
        messages = [message for message in messages if message.reply]
        for message in messages:
            await self.ack(message, body)
        await self.acks_are_applied(name)
        return messages


async def work_queue_rules(say: Retaining) -> None:
    """Errors 10084, 10098, 10099, 10100 and 10101."""
    await say.begin("workqueue")
    s = say.stream
    explicit = {"ack_policy": "explicit"}
    for name, config in (
        ("none", {"ack_policy": "none"}),
        ("all", {"ack_policy": "all"}),
        ("push", {"ack_policy": "none", "deliver_subject": "d"}),
        ("new", {**explicit, "deliver_policy": "new"}),
        ("last", {**explicit, "deliver_policy": "last"}),
        ("seq", {**explicit, "deliver_policy": "by_start_sequence", "opt_start_seq": 3}),
        ("a", {**explicit, "filter_subject": f"{s}.a"}),
        ("b", {**explicit, "filter_subjects": [f"{s}.b", f"{s}.c"]}),
        ("every", explicit),
        ("every", {**explicit, "filter_subject": f"{s}.>"}),
        ("every", {**explicit, "filter_subject": f"{s}.*"}),
        ("every", {**explicit, "filter_subjects": [f"{s}.d", f"{s}.c"]}),
        ("every", {**explicit, "filter_subject": f"{s}.d", "num_replicas": 3}),
        ("d", {**explicit, "filter_subject": f"{s}.d"}),
        ("d", {**explicit, "filter_subject": f"{s}.a"}),
        ("d", {**explicit, "filter_subject": f"{s}.e"}),
        ("d", {**explicit, "filter_subject": f"{s}.e", "deliver_policy": "new"}),
    ):
        await say.create(name, **config)


async def unfiltered_work_queue(say: Retaining) -> None:
    await say.begin("workqueue", max_consumers=2)
    await say.create("one", ack_policy="explicit")
    await say.create("two", ack_policy="explicit")
    await say.create("two", ack_policy="explicit", filter_subject=f"{say.stream}.a")
    await say.create("one", ack_policy="explicit", max_ack_pending=5)


async def work_queue_acks(say: Retaining) -> None:
    """Every way to ack; what is none."""
    await say.begin("workqueue")
    await say.send(*"abcdefghij")
    await say.left()
    await say.create("w", ack_policy="explicit", ack_wait=60_000 * MS)
    messages = await say.pull("w", {"batch": 10, "no_wait": True})
    bodies = [b"", b"+ACK", b"-NAK 60s", b"+WPI", b"+TERM", b"+TERM why", b"+OK", b"nonsense"]
    for message, body in zip(messages, bodies, strict=False):
        await say.ack(message, body)
    await say.left()
    await say.confirmed(messages[8].reply, b"+ACK")
    await say.left()
    await say.confirmed(messages[0].reply, b"+ACK")
    await say.info("w")
    await say.api(f"CONSUMER.DELETE.{say.stream}.w")
    await say.left()
    await say.create("x", ack_policy="explicit")
    await say.take("x")
    await say.left()
    await say.info("x")


async def work_queue_max_deliver(say: Retaining) -> None:
    """What is given up stays until it is acked."""
    await say.begin("workqueue")
    await say.send("a", "b")
    await say.create("w", ack_policy="explicit", max_deliver=1, ack_wait=100 * MS)
    messages = await say.pull("w", {"batch": 2, "no_wait": True})
    await asyncio.sleep(0.4)
    await say.left()
    await say.pull("w", {"batch": 2, "no_wait": True})
    await say.ack(messages[1])
    await say.left()
    await say.ack(messages[0], b"+TERM")
    await say.left()


async def work_queue_partitions(say: Retaining) -> None:
    await say.begin("workqueue")
    for token in "ab":
        await say.create(token, ack_policy="explicit", filter_subject=f"{say.stream}.{token}")
    await say.send("a", "b", "c", "a", "b", "c")
    await say.take("b")
    await say.left()
    await say.take("a", 1)
    await say.left()
    await say.api(f"CONSUMER.DELETE.{say.stream}.a")
    await say.api(f"STREAM.PURGE.{say.stream}", {"filter": f"{say.stream}.c"})
    await say.left()
    await say.create("c", ack_policy="explicit", filter_subjects=[f"{say.stream}.a", f"{say.stream}.c"])
    await say.take("c")
    await say.left()


async def interest(say: Retaining) -> None:
    """Messages are stored while a consumer is interested and removed when all have acked."""
    await say.begin("interest")
    await say.send("a", "b")
    await say.send("a", Nats_Msg_Id="one")
    await say.send("a", Nats_Msg_Id="one")
    await say.send("a", Nats_Expected_Last_Sequence="3")
    await say.send("a", Nats_Expected_Last_Sequence="3")
    await say.left()
    s = say.stream
    await say.create("all", ack_policy="explicit")
    await say.create("b", ack_policy="all", filter_subject=f"{s}.b")
    await say.create("none", ack_policy="none", filter_subject=f"{s}.c")
    await say.create("new", ack_policy="explicit", deliver_policy="new")
    await say.send(*"abcabcabc")
    await say.left()
    await say.take("all")
    await say.left()
    await say.take("new", 4)
    await say.left()
    await say.pull("none", {"batch": 2, "no_wait": True})
    await say.left()
    messages = await say.pull("b", {"batch": 3, "no_wait": True})
    await say.ack(messages[1])
    await say.left()
    await say.take("new")
    await say.left()
    for name in ("none", "b", "all"):
        await say.api(f"CONSUMER.DELETE.{s}.{name}")
        await say.left()
    await say.send("x")
    await say.api(f"CONSUMER.DELETE.{s}.new")
    await say.left()


async def interest_filters(say: Retaining) -> None:
    """Filters that change; subjects that no consumer takes."""
    await say.begin("interest")
    s = say.stream
    await say.create("f", ack_policy="explicit", filter_subjects=[f"{s}.a", f"{s}.b.*"])
    await say.send("a", "b", "b.1", "c", "a")
    await say.left()
    await say.create("f", ack_policy="explicit", filter_subject=f"{s}.a")
    await say.left()
    await say.create("g", ack_policy="explicit", filter_subject=f"{s}.c")
    await say.send("a", "b.1", "c")
    await say.left()
    await say.api(f"CONSUMER.DELETE.{s}.f")
    await say.left()


async def interest_given_up(say: Retaining) -> None:
    await say.begin("interest")
    await say.create("a", ack_policy="explicit", max_deliver=1, ack_wait=100 * MS)
    await say.create("b", ack_policy="explicit")
    await say.send("x", "y")
    messages = await say.pull("a", {"batch": 2, "no_wait": True})
    await say.take("b")
    await asyncio.sleep(0.4)
    await say.left()
    await say.ack(messages[1])
    await say.left()
    await say.ack(messages[0])
    await say.left()


async def limits_apply(say: Retaining) -> None:
    await say.begin("interest", max_msgs=3, discard="new", max_msgs_per_subject=2)
    await say.send("a", "a", "a", "a")
    await say.create("c", ack_policy="explicit")
    await say.send("a", "b", "c", "d", "a")
    await say.left()
    await say.take("c", 2)
    await say.send("d", "d", "e", "f")
    await say.left()
    await say.api(f"STREAM.PURGE.{say.stream}", {"keep": 1})
    await say.left()
    await say.info("c")


async def old_ones_go(say: Retaining) -> None:
    await say.begin("workqueue", max_msgs=3)
    await say.create("c", ack_policy="explicit")
    await say.send("a", "b", "c", "d", "e")
    await say.left()
    await say.pull("c", {"batch": 2, "no_wait": True})
    await say.send("f", "g", "h")
    await say.left()
    await asyncio.sleep(SETTLED_S)
    await say.info("c")


async def other_retention(say: Retaining) -> None:
    """Limits and interest may be exchanged, work queues stay what they are (10052)."""
    await say.begin("limits")
    config = {"name": say.stream, "subjects": [f"{say.stream}.>"]}
    await say.send("a", "b", "c", "d")
    await say.create("c", ack_policy="explicit")
    messages = await say.pull("c", {"batch": 3, "no_wait": True})
    for message in messages[:2]:
        await say.ack(message)
    await say.left()
    await say.api(f"STREAM.UPDATE.{say.stream}", {**config, "retention": "workqueue"})
    await say.api(f"STREAM.UPDATE.{say.stream}", {**config, "retention": "interest"})
    await say.left()
    await say.take("c")
    await say.left()
    await say.api(f"STREAM.UPDATE.{say.stream}", {**config, "retention": "limits"})
    await say.send("e")
    await say.take("c")
    await say.left()
    await say.api(f"CONSUMER.DELETE.{say.stream}.c")
    await say.api(f"STREAM.UPDATE.{say.stream}", {**config, "retention": "interest"})
    await say.left()


PARTS: list[Callable[[Retaining], Awaitable[None]]] = [
    work_queue_rules,
    unfiltered_work_queue,
    work_queue_acks,
    work_queue_max_deliver,
    work_queue_partitions,
    interest,
    interest_filters,
    interest_given_up,
    limits_apply,
    old_ones_go,
    other_retention,
]


async def asked(url: str, part: Callable[[Retaining], Awaitable[None]]) -> AsyncIterator[tuple[str, Answer]]:
    client = await nats.connect(url, allow_reconnect=False)
    say = Retaining(client, part.__name__)
    await part(say)
    await client.close()
    for line in say.heard:
        yield line


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
async def test_both_servers_keep_the_same(urls: dict[str, str], part: Callable[[Retaining], Any]) -> None:
    async def lines(url: str) -> list[tuple[str, Answer]]:
        return [line async for line in asked(url, part)]

    official, ours = await asyncio.gather(*(lines(url) for url in urls.values()))
    for expected, said in zip(official, ours, strict=True):
        assert said == expected
