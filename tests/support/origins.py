"""Mirrors and sources as a client sees them, on any server: what tests of them ask."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import nats

from tests.support.nats_servers import until


class Stored(NamedTuple):
    """A stored message. source: the parts of its Nats-Stream-Source, without the origin's identity."""

    seq: int
    subject: str
    payload: bytes
    header: bytes
    time: str
    source: list[str]


class Streams:
    """Asks one server by a client of nats.py."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def api(self, subject: str, body: Any = b"", prefix: str = "$JS.API.") -> Any:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        return json.loads((await self.client.request(prefix + subject, payload, timeout=5)).data)

    async def make(self, name: str, *subjects: str, **settings: Any) -> Any:
        """STREAM.CREATE, which must work."""
        made = await self.create(name, *subjects, **settings)
        assert "error" not in made, made
        return made

    async def create(self, name: str, *subjects: str, **settings: Any) -> Any:
        return await self.api(f"STREAM.CREATE.{name}", _config(name, subjects, settings))

    async def update(self, name: str, *subjects: str, **settings: Any) -> Any:
        return await self.api(f"STREAM.UPDATE.{name}", _config(name, subjects, settings))

    async def delete(self, name: str) -> Any:
        return await self.api(f"STREAM.DELETE.{name}")

    async def pub(self, subject: str, body: bytes = b"x", **header: str) -> Any:
        headers = {name.replace("_", "-"): value for name, value in header.items()}
        return json.loads((await self.client.request(subject, body, timeout=5, headers=headers or None)).data)

    async def info(self, name: str, **body: Any) -> Any:
        return await self.api(f"STREAM.INFO.{name}", body or b"")

    async def state(self, name: str) -> tuple[int, int, int]:
        """(messages, first sequence, last sequence)"""
        state = (await self.info(name))["state"]
        return state["messages"], state["first_seq"], state["last_seq"]

    async def reaches(self, name: str, last_seq: int, timeout_s: float = 30) -> None:
        """Waits until the stream's last sequence is this one."""

        async def there() -> bool:
            return bool((await self.state(name))[2] >= last_seq)

        await until(there, timeout_s)
        assert (await self.state(name))[2] == last_seq

    async def get(self, name: str, seq: int) -> Stored | None:
        answer = await self.api(f"STREAM.MSG.GET.{name}", {"seq": seq})
        if "error" in answer:
            return None
        message = answer["message"]
        header = base64.b64decode(message.get("hdrs", ""))
        source = []
        for line in header.split(b"\r\n"):
            if line.startswith(b"Nats-Stream-Source: "):
                source = line.decode().split(" ")[1:6]
        payload = base64.b64decode(message.get("data", ""))
        return Stored(seq, message["subject"], payload, header, message["time"], source)

    async def all(self, name: str) -> list[Stored]:
        _, first, last = await self.state(name)
        found = [await self.get(name, seq) for seq in range(max(first, 1), last + 1)]
        return [one for one in found if one is not None]


def _config(name: str, subjects: tuple[str, ...], settings: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, **({"subjects": list(subjects)} if subjects else {}), **settings}


@asynccontextmanager
async def streams_on(url: str, *, keep: bool = False, **login: Any) -> AsyncIterator[Streams]:
    """Those of that server; in the end they are deleted, unless they are to be kept."""
    client = await nats.connect(url, allow_reconnect=False, **login)
    streams = Streams(client)
    yield streams
    for name in [] if keep else (await streams.api("STREAM.NAMES"))["streams"] or []:
        await streams.delete(name)
    await streams.client.close()  # a test may have connected again
