"""Three servers with leaf node links: both kinds of server in each position."""

from __future__ import annotations

from itertools import product
from typing import Any

import nats.errors
import pytest

from tests.support.leafs import Leafs, heard, linked
from tests.support.nats_servers import until

KINDS = ("penstock", "official")
TRIPLES = [kinds for kinds in product(KINDS, repeat=3) if "penstock" in kinds]

pytestmark = [
    pytest.mark.feature("cluster.leaf-nodes"),
    pytest.mark.parametrize("kinds", TRIPLES, ids="-".join),
    pytest.mark.parametrize("shape", ["chain", "star"]),
]


async def three(leafs: Leafs, kinds: tuple[str, str, str], shape: str) -> list[Any]:
    """Chain: each server is the leaf node of the one before. Star: two leaf nodes of the first server."""
    first = await leafs.add(kinds[0], "one")
    second = await leafs.add(kinds[1], "two", to=(first,))
    third = await leafs.add(kinds[2], "three", to=(second if shape == "chain" else first,))
    middle, ends = (second, (first, third)) if shape == "chain" else (first, (second, third))
    await linked(middle, count=2)
    await linked(*ends)
    return [first, second, third]


async def collect(client: Any, subject: str, queue: str = "") -> list[bytes]:
    found: list[bytes] = []

    async def note(message: Any) -> None:
        found.append(message.data)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


async def test_a_message_reaches_every_server_once(
    leafs: Leafs, kinds: tuple[str, str, str], shape: str
) -> None:
    servers = await three(leafs, kinds, shape)
    clients = [await leafs.client(one) for one in servers]
    inboxes = [await collect(client, f"in.{i}") for i, client in enumerate(clients)]
    shared = [await collect(client, "all.>") for client in clients]
    members = [await collect(client, "all.>", "workers") for client in clients]
    for client in clients:  # the interest of each server is known at the others
        for i, inbox in enumerate(inboxes):
            await heard(client, f"in.{i}", inbox)
    for found in (*shared, *members):
        found.clear()
    for i, client in enumerate(clients):
        for number in range(20):
            await client.publish(f"all.{i}", b"%d.%d" % (i, number))
        await client.flush()
    expected = sorted(b"%d.%d" % (i, number) for i in range(3) for number in range(20))
    await until(lambda: all(len(one) >= len(expected) for one in shared))
    await until(lambda: sum(map(len, members)) >= len(expected))
    # What would come twice has come by the answer to a request that follows it on the same links.
    for client in clients:
        for i, inbox in enumerate(inboxes):
            inbox.clear()
            await heard(client, f"in.{i}", inbox)
    assert [sorted(found) for found in shared] == [expected] * 3
    assert sorted(data for found in members for data in found) == expected


async def test_requests_cross_three_servers(leafs: Leafs, kinds: tuple[str, str, str], shape: str) -> None:
    servers = await three(leafs, kinds, shape)
    clients = [await leafs.client(one) for one in servers]

    def answering(name: str) -> Any:
        async def answer(message: Any) -> None:
            await message.respond(name.encode())

        return answer

    for i, client in enumerate(clients):
        await client.subscribe(f"ask.{i}", cb=answering(f"server {i}"))
        await client.flush()
    for client, i in product(clients, range(len(clients))):

        async def is_answered(client: Any = client, i: int = i) -> bool:
            try:
                got = await client.request(f"ask.{i}", timeout=1)
            except nats.errors.Error:
                return False
            assert got.data == b"server %d" % i
            return True

        await until(is_answered)
