"""A client that speaks about the consumers of a stream of its own, and what it reads from their messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.nats_servers import until
from tests.support.talk import Talk

SECOND = 1_000_000_000
MS = 1_000_000
QUIET_S = 0.15  # nothing comes any more


class ConsumerTalk(Talk):
    """What is asked about the consumers of one stream."""

    def pull_subject(self, consumer: str) -> str:
        return f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}"

    async def pull(self, consumer: str, body: Any = b"") -> list[Any]:
        """Messages until the pull ended: by a status, or because its batch is full."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        batch = body.get("batch", 1) if isinstance(body, dict) else int(body or 1)
        payload = json.dumps(body).encode() if isinstance(body, dict) else body
        await self.client.publish(self.pull_subject(consumer), payload, reply=inbox)
        messages: list[Any] = []
        while len([message for message in messages if message.reply]) < batch:
            messages.append(await subscription.next_msg(timeout=5))
            if status(messages[-1]) and not status(messages[-1]).startswith("100"):
                break
        await subscription.unsubscribe()
        return messages

    async def info(self, consumer: str) -> Any:
        await self.client.flush()
        return await self.api(f"CONSUMER.INFO.{self.name}.{consumer}")

    async def until_info(self, consumer: str, **fields: int) -> None:
        """Returns when the consumer's info says so: the official server applies acks later."""

        async def says() -> bool:
            info = await self.info(consumer)
            return all(info[name] == value for name, value in fields.items())

        await until(says, 5)

    async def advisories(self, kind: str) -> Any:
        subscription = await self.client.subscribe(f"$JS.EVENT.{kind}.{self.name}.*")
        await self.client.flush()
        return subscription

    async def fill(self, count: int, token: str = "a") -> None:
        for number in range(1, count + 1):
            await self.pub(token, b"%d" % number)


@asynccontextmanager
async def talking(url: str) -> AsyncIterator[ConsumerTalk]:
    """About a stream that it has made on the server."""
    client = await nats.connect(url, allow_reconnect=False)
    talk = ConsumerTalk(client)
    await talk.create()
    yield talk
    await client.close()


def status(message: Any) -> str:
    """Code and text of a status, empty for a stream's message."""
    header = headers_of(message)
    return f"{header['Status']} {header.get('Description', '')}" if "Status" in header else ""


def headers_of(message: Any) -> dict[str, str]:
    return {str(getattr(key, "value", key)): value for key, value in (message.headers or {}).items()}


def sequence(message: Any) -> int:
    return int(message.reply.split(".")[5])


def deliveries(message: Any) -> int:
    return int(message.reply.split(".")[4])


def sequences(messages: list[Any]) -> list[int]:
    return [sequence(message) for message in messages if message.reply]


async def quiet(subscription: Any) -> None:
    with pytest.raises(nats.errors.TimeoutError):
        await subscription.next_msg(timeout=QUIET_S)


NOW = {"batch": 10, "no_wait": True}
