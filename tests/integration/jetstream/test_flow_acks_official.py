"""Consumers with ack policy flow_control: both servers deliver, ask and count the same.

The answers to flow control are their acks, and say in headers what was stored.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.transcript import MS, Streams, Transcript, describe, say_the_same

pytestmark = [pytest.mark.official, pytest.mark.feature("consumer.ack-flow-control")]

SECOND = 1000 * MS
FLOW = {"ack_policy": "flow_control", "deliver_subject": "d"}

CONFIGS: tuple[dict[str, Any], ...] = (
    FLOW,
    {"ack_policy": "flow_control"},
    {**FLOW, "max_ack_pending": -1},
    {**FLOW, "ack_wait": SECOND},
    {**FLOW, "ack_wait": -SECOND},
    {**FLOW, "backoff": [SECOND]},
    {**FLOW, "max_deliver": 2},
    {**FLOW, "max_deliver": 2, "backoff": [SECOND, SECOND, SECOND]},
    {**FLOW, "idle_heartbeat": 5 * SECOND},
    {**FLOW, "flow_control": True, "idle_heartbeat": SECOND, "max_ack_pending": 7, "durable_name": "x"},
    {**FLOW, "deliver_subject": "d.*"},
    {**FLOW, "max_waiting": 5},
    {**FLOW, "headers_only": True, "deliver_group": "g"},
    {**FLOW, "filter_subject": "s.1", "mem_storage": True, "inactive_threshold": 60 * SECOND},
)


async def configuring(say: Transcript) -> None:
    for config in CONFIGS:
        await say.create("x", **config)
        await say.api("CONSUMER.DELETE.S.x")
        body = {"stream_name": "S", "config": {"name": "x", **config}, "pedantic": True}
        await say.api("CONSUMER.CREATE.S.x", body)
        await say.api("CONSUMER.DELETE.S.x")
    await say.create("x", **FLOW)
    for change in (
        {"ack_policy": "all"},
        {"max_ack_pending": 50},
        {"deliver_subject": "e"},
        {"description": "other"},
    ):
        await say.create("x", **{**FLOW, **change})
    await say.api("CONSUMER.DELETE.S.x")


class Receiver:
    """Listens at `d` and answers flow control on request."""

    def __init__(self, say: Transcript) -> None:
        self._say = say
        self._asked: list[str] = []

    async def __aenter__(self) -> Receiver:
        self._subscription = await self._say.client.subscribe("d")
        await self._say.client.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._subscription.unsubscribe()

    async def hear(self, count: int) -> None:
        """The next messages, flow control among them."""
        heard = []
        for _ in range(count):
            message = await self._subscription.next_msg(timeout=5)
            subject, reply, data, header = describe(message)
            if message.reply.startswith("$JS.FC."):
                self._asked.append(message.reply)
                reply = "flow"
            if "Nats-Consumer-Stalled" in header:
                assert header["Nats-Consumer-Stalled"] == self._asked[-1]
                header["Nats-Consumer-Stalled"] = "flow"
            heard.append((subject, reply, data, header))
        self._say.heard.append((f"the next {count}", heard))

    async def answer(self, stream_seq: int | None = None, consumer_seq: int | None = None) -> None:
        """Answers the last request; with what was stored, if anything is said of that."""
        numbers = {"Nats-Last-Consumer": consumer_seq, "Nats-Last-Stream": stream_seq}
        header = {name: str(seq) for name, seq in numbers.items() if seq is not None}
        await self._say.client.publish(self._asked[-1], b"", headers=header or None)
        await self._say.client.flush()


async def delivering(say: Transcript) -> None:
    await say.publish(*[f"s.{n}" for n in range(5)])
    async with Receiver(say) as receiver:
        await say.create("x", **FLOW)
        await receiver.hear(7)  # five messages, a heartbeat, and what asks for the acks
        await say.info("x")
        await say.confirmed("$JS.ACK.S.x.1.1.1.123.0", b"")  # no subscriber
        await say.info("x")
        await receiver.answer(3, 3)
        await say.info("x")
        await receiver.hear(2)
        await receiver.answer(2, 2)  # goes back
        await say.info("x")
        await receiver.hear(2)
        await receiver.answer()  # acks nothing
        await say.info("x")
        await receiver.hear(2)
        await receiver.hear(1)  # a heartbeat names the request that waits
        await receiver.answer(5)
        await say.info("x")
        await receiver.hear(1)
        await receiver.answer(1, 1)  # no request is open
        await say.info("x")
        await say.publish("s.5")
        await receiver.hear(3)
        await say.api("CONSUMER.RESET.S.x")
        await say.info("x")
        await receiver.hear(1)
    await say.api("CONSUMER.DELETE.S.x")


async def filling(say: Transcript) -> None:
    """max_ack_pending asks at once."""
    async with Receiver(say) as receiver:
        await say.create("x", **FLOW, max_ack_pending=2)
        await receiver.hear(3)
        await say.info("x")
        await receiver.answer(2, 2)
        await receiver.hear(3)
        await receiver.answer(3, 3)
        await receiver.hear(2)
        await say.info("x")
    await say.api("CONSUMER.DELETE.S.x")


async def settling(say: Transcript) -> None:
    """What is acked leaves a work queue; the consumer is one that may have it all to itself."""
    say.stream = "W"
    await say.publish(*[f"w.{n}" for n in range(4)])
    async with Receiver(say) as receiver:
        await say.create("y", ack_policy="all", deliver_subject="d")
        await say.create("x", **FLOW)
        await say.create("z", **FLOW)
        await receiver.hear(6)
        await receiver.answer(3, 3)
        await asyncio.sleep(0.05)
        await say.info("x")
        await say.api("STREAM.INFO.W")
        await receiver.hear(2)
    say.stream = "S"


async def test_both_servers_say_the_same(tmp_path: Path) -> None:
    streams: Streams = {"S": {"subjects": ["s.>"]}, "W": {"subjects": ["w.>"], "retention": "workqueue"}}
    await say_the_same(tmp_path, streams, (configuring, delivering, filling, settling), at_least=91)
