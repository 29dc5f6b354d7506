"""Direct gets while atomic batches are stored: no replica shows a part of a batch. On penstock and on the
official server."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import nats
import pytest

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
    """The numbers of the last message of each subject, from one request. Asks again when no answer comes: on
    a starved machine a replica changes its role, and a request in flight to it is lost."""
    for _ in range(2):
        with suppress(nats.errors.TimeoutError):
            return await ask_for_all(client, 3)
    return await ask_for_all(client, 10)


async def ask_for_all(client: Any, timeout_s: float) -> list[int]:
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    await client.publish("$JS.API.DIRECT.GET.WHOLE", b'{"multi_last": ["WHOLE.*"]}', reply=inbox)
    found = []
    while True:
        message = await answers.next_msg(timeout=timeout_s)
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
