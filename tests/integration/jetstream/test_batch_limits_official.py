"""What batches are limited by, configured the same way on both servers: open ones, and their silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import penstock.client
from penstock.client import Client
from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS

CONF = "jetstream { limits { batch { max_inflight_per_stream: 2, max_msgs: 3, timeout: 500ms } } }"
ADVISORY = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S"


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_as_configured(request.param, CONF, tmp_path_factory.mktemp("limits")) as port:
        yield f"nats://127.0.0.1:{port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with penstock.client.connect(url, request_timeout=5) as client:
        js = client.jetstream()
        await js.create_stream("S", subjects=["s.>"], storage="memory", allow_atomic=True, allow_batched=True)
        yield client
        await js.delete_stream("S")


async def put(client: Client, batch_id: str, seq: int, commit: str = "") -> Any:
    """One message of an atomic batch, and its answer; None for the empty one."""
    headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(seq)}
    if commit:
        headers["Nats-Batch-Commit"] = commit
    answer = await client.request("s.a", b"x", headers=headers)
    return json.loads(answer.data) if answer.data else None


class Fast:
    """Messages of fast batches, answer by answer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._inbox = client.new_inbox()

    async def __aenter__(self) -> Fast:
        self._answers = await self._client.subscribe(f"{self._inbox}.>")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._answers.unsubscribe()

    async def ask(self, batch_id: str, seq: int, operation: int) -> Any:
        reply = f"{self._inbox}.{batch_id}.10.fail.{seq}.{operation}.$FI"
        await self._client.publish("s.a", b"x", reply=reply)
        while True:  # a second batch of a stream gets its first flow acks one by one
            answer = await self._answers.next(timeout=5)
            if f".{batch_id}.10.fail.{seq}." in answer.subject:
                return json.loads(answer.data)


@pytest.mark.feature("atomic.inflight", "fast-ingest.inflight")
async def test_a_batch_too_many_is_refused_and_the_other_kind_is_counted_by_itself(client: Client) -> None:
    """As many atomic ones as fast ones, each with its own number."""
    async with Fast(client) as fast:
        for batch_id in "ab":
            assert (await fast.ask(batch_id, 1, 0))["type"] == "ack"
            assert await put(client, batch_id, 1) is None
        refused = (await fast.ask("c", 1, 0))["error"]
        assert (refused["code"], refused["err_code"]) == (429, 10211)
        refused = (await put(client, "c", 1))["error"]
        assert (refused["code"], refused["err_code"]) == (429, 10210)
        assert (await fast.ask("a", 2, 3))["count"] == 1
        assert (await put(client, "a", 2, "1"))["count"] == 2
        assert (await fast.ask("c", 1, 0))["type"] == "ack"
        assert await put(client, "c", 1) is None


@pytest.mark.feature("atomic.max-messages")
async def test_a_batch_has_so_many_messages(client: Client) -> None:
    for seq in (1, 2, 3):
        assert await put(client, "b", seq) is None
    refused = (await put(client, "b", 4, "1"))["error"]
    assert refused["err_code"] == 10199 and refused["description"].endswith(": 3")


@pytest.mark.feature("atomic.timeout", "fast-ingest.timeout")
async def test_silent_batches_end_without_an_answer(client: Client) -> None:
    """The end of an atomic batch has an advisory."""
    advisories = await client.subscribe(ADVISORY)
    async with Fast(client) as fast:
        assert (await fast.ask("quiet", 1, 0))["type"] == "ack"
        assert await put(client, "silent", 1) is None
        reported = []
        async with asyncio.timeout(10):
            while not reported:
                advisory = json.loads((await advisories.next(timeout=10)).data)
                reported += [advisory["reason"]] if advisory["batch"] == "silent" else []
        assert reported == ["timeout"]
        assert (await put(client, "silent", 2))["error"]["err_code"] == 10176
        answer = await fast.ask("quiet", 2, 1)
        assert answer["error"]["err_code"] in (10206, 10208)
        assert "unknown" in answer["error"]["description"]
