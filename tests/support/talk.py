"""A client that speaks about a stream of its own, for tests that hold every server to a table."""

from __future__ import annotations

import itertools
import json
from typing import Any

numbers = itertools.count(1)


class Talk:
    """What a client asks one server, about a stream of its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.name = f"S{next(numbers)}"

    async def api(self, subject: str, body: Any = b"") -> Any:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        return json.loads((await self.client.request("$JS.API." + subject, payload, timeout=5)).data)

    async def create(self, **settings: Any) -> Any:
        return await self._configure("CREATE", settings)

    async def update(self, **settings: Any) -> Any:
        return await self._configure("UPDATE", settings)

    async def _configure(self, verb: str, settings: dict[str, Any]) -> Any:
        config = {"name": self.name, "subjects": [f"{self.name}.>"], **settings}
        return await self.api(f"STREAM.{verb}.{config['name']}", config)

    async def consumer(self, name: str, **config: Any) -> Any:
        body = {"stream_name": self.name, "config": {"name": name, "ack_policy": "explicit", **config}}
        return await self.api(f"CONSUMER.CREATE.{self.name}.{name}", body)

    async def pub(self, token: str, body: bytes = b"x", **header: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in header.items()}
        subject = f"{self.name}.{token}"
        answer = await self.client.request(subject, body, timeout=5, headers=headers or None)
        return json.loads(answer.data)

    async def take(self, consumer: str) -> None:
        """Pulls one message and has its ack confirmed."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}", b"1", reply=inbox)
        message = await subscription.next_msg(timeout=5)
        await self.client.request(message.reply, b"+ACK", timeout=5)
        await subscription.unsubscribe()

    async def state(self, **body: Any) -> Any:
        return (await self.api(f"STREAM.INFO.{self.name}", body or b""))["state"]

    async def direct(self, body: Any, token: str = "") -> list[tuple[Any, bytes]]:
        """Headers and payloads of everything a direct get is answered with."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        subject = f"$JS.API.DIRECT.GET.{self.name}" + (f".{self.name}.{token}" if token else "")
        await self.client.publish(subject, json.dumps(body).encode() if body else b"", reply=inbox)
        answers = []
        is_batch = "batch" in body or "multi_last" in body
        while True:
            message = await subscription.next_msg(timeout=5)
            headers = {str(getattr(k, "value", k)): v for k, v in (message.headers or {}).items()}
            answers.append((headers, message.data))
            if not is_batch or "Status" in headers:
                await subscription.unsubscribe()
                return answers

    async def status(self, body: Any) -> str:
        [(headers, _)] = await self.direct(body)
        return f"{headers['Status']} {headers['Description']}"


def code(answer: Any) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def text(answer: Any) -> str:
    return str(answer["error"]["description"])
