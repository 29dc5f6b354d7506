"""A transcript with a server, recorded so that those of two servers can be compared.

Times, ids (that of the server in `cluster`) and versions are left out, and the wording of JSON errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from tests.support.nats_servers import running_server

TIMES = {
    "created",
    "ts",
    "first_ts",
    "last_ts",
    "last_active",
    "pause_remaining",
    "pinned_ts",
    "_nats.ver",
    "_nats.level",
    "cluster",
}
MS = 1_000_000
QUIET_S = 0.08  # nothing more is coming
Answer = Any


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        value = {key: "some" if key == "pinned_client_id" and item else item for key, item in value.items()}
        return {key: comparable(item) for key, item in sorted(value.items()) if key not in TIMES}
    return [comparable(item) for item in value] if isinstance(value, list) else value


class Transcript:
    """Talks to one server and writes down what it says."""

    def __init__(self, client: Client, stream: str = "S") -> None:
        self.client = client
        self.stream = stream
        self.heard: list[tuple[str, Answer]] = []
        self._ack_subjects: dict[str, str] = {}  # the last one that was used, by consumer

    async def api(self, subject: str, body: Any = b"") -> None:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        message = await self.client.request("$JS.API." + subject, payload, timeout=5)
        answer = comparable(json.loads(message.data))
        if "error" in answer:
            answer = {"type": answer["type"], "error": answer["error"]}
            if answer["error"]["err_code"] == 10025:
                del answer["error"]["description"]
        self.heard.append((f"{subject} {body!r}", answer))

    async def create(self, name: str, *, action: str = "", **config: Any) -> None:
        body = {"stream_name": self.stream, "config": {"name": name, **config}, "action": action}
        await self.api(f"CONSUMER.CREATE.{self.stream}.{name}", body)

    async def publish(self, *subjects: str) -> None:
        for subject in subjects:
            await self.client.request(subject, b"x" * 10, timeout=5)

    async def pull(self, name: str, body: Any = b"") -> list[Any]:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        expires_ns = body.get("expires", 0) if isinstance(body, dict) else 0
        quiet_s = QUIET_S + min(expires_ns / 1e9, 0.3)
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{name}", payload, reply=inbox)
        messages = []
        try:
            while True:
                messages.append(await subscription.next_msg(timeout=quiet_s))
        except nats.errors.TimeoutError:
            await subscription.unsubscribe()
        self.heard.append((f"pull {name} {body!r}", [describe(message) for message in messages]))
        return messages

    async def ack(self, message: Any, body: bytes = b"") -> None:
        self._ack_subjects[message.reply.split(".")[3]] = message.reply
        await self.client.publish(message.reply, body)

    async def confirmed(self, subject: str, body: bytes) -> None:
        try:
            reply = await self.client.request(subject, body, timeout=QUIET_S)
            self.heard.append((f"ack {body!r}", reply.data))
        except nats.errors.Error as error:
            self.heard.append((f"ack {body!r}", type(error).__name__))

    async def info(self, name: str) -> None:
        await self.acks_are_applied(name)
        await self.api(f"CONSUMER.INFO.{self.stream}.{name}")

    async def acks_are_applied(self, name: str) -> None:
        """The official server applies acks when it comes to them, in their order: a body that is no ack is
        answered behind those before it, and changes nothing."""
        await self.client.flush()
        if name not in self._ack_subjects:
            await asyncio.sleep(0.02)  # answers to flow control have nothing that could be waited for
            return
        with contextlib.suppress(nats.errors.NoRespondersError):  # the consumer has gone
            await self.client.request(self._ack_subjects[name], b"no ack", timeout=5)


def describe(message: Any) -> tuple[Any, ...]:
    subject = "inbox" if message.subject.startswith("_INBOX") else message.subject
    reply = re.sub(r"\.\d{19}\.", ".time.", message.reply)
    header = {str(key): value for key, value in (message.headers or {}).items()}
    if "Nats-Pin-Id" in header:
        header["Nats-Pin-Id"] = "some"
    return subject, reply, message.data, header


Part = Callable[[Transcript], Awaitable[None]]
Streams = dict[str, dict[str, Any]]


async def say_the_same(directory: Path, streams: Streams, parts: tuple[Part, ...], at_least: int) -> None:
    """Asserts that both servers say the same in a transcript of these parts, about streams they begin with.

    streams: names and configurations. at_least: how much there is to compare.
    """
    with (
        running_server("official", directory / "a") as one,
        running_server("penstock", directory / "b") as other,
    ):
        official, ours = await asyncio.gather(
            *(converse(server.url, streams, parts) for server in (one, other))
        )
    assert len(official) >= at_least
    for expected, said in zip(official, ours, strict=True):
        assert said == expected


async def converse(url: str, streams: Streams, parts: tuple[Part, ...]) -> list[tuple[str, Answer]]:
    client = await nats.connect(url, allow_reconnect=False)
    say = Transcript(client)
    for name, config in streams.items():
        body = json.dumps({"name": name, **config}).encode()
        await client.request(f"$JS.API.STREAM.CREATE.{name}", body, timeout=5)
    for part in parts:
        await part(say)
    await client.close()
    return say.heard
