"""Clusters of three servers with a leaf node, both kinds of server in each position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy

from tests.support.clusters import Cluster, connected, heard
from tests.support.leafs import OfficialNode, PenstockNode
from tests.support.nats_servers import free_port, until

pytestmark = [pytest.mark.feature("cluster.routes"), pytest.mark.feature("cluster.leaf-nodes")]

P, O = "penstock", "official"  # noqa: E741
TRIPLES = [(P, P, P), (O, P, P), (P, O, P), (P, P, O), (O, O, P), (O, P, O), (P, O, O)]
NODES = {P: OfficialNode, O: PenstockNode}  # the leaf node is of the other kind than its hub
COUNT = 20


async def collect(client: NatsPy, subject: str, queue: str = "") -> list[bytes]:
    found: list[bytes] = []

    async def note(message: Any) -> None:
        found.append(message.data)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


async def serve(client: NatsPy, subject: str) -> None:
    async def respond(message: Any) -> None:
        await message.respond(subject.encode())

    await client.subscribe(subject, cb=respond)
    await client.flush()


async def send(clients: Sequence[NatsPy], subject: str) -> list[bytes]:
    """Each client publishes COUNT messages; returns all payloads."""
    sent = [b"%d %d" % (at, number) for at in range(len(clients)) for number in range(COUNT)]
    for at, client in enumerate(clients):
        for payload in sent[at * COUNT : (at + 1) * COUNT]:
            await client.publish(subject, payload)
        await client.flush()
    return sorted(sent)


async def check(clients: Sequence[NatsPy]) -> None:
    """Every message arrives once, and every request is answered. The last client is that of the leaf node."""
    inboxes = [await collect(client, f"at.{i}") for i, client in enumerate(clients)]
    shared = [await collect(client, "all") for client in clients]
    members = [await collect(client, "jobs", "workers") for client in clients]
    for i, client in enumerate(clients):
        await serve(client, f"svc.{i}")
    for client in clients:  # after this, each server knows of all others' subscriptions
        for i, inbox in enumerate(inboxes):
            await heard(client, f"at.{i}", inbox)
    sent = await send(clients, "all")
    await until(lambda: all(len(found) >= len(sent) for found in shared))
    sent_jobs = await send(clients, "jobs")
    await until(lambda: sum(map(len, members)) >= len(sent_jobs))
    await asyncio.sleep(0.05)
    assert [sorted(found) for found in shared] == [sent] * len(clients)
    assert sorted(data for found in members for data in found) == sent_jobs
    own = sorted(data for data in sent_jobs if data.startswith(b"%d " % (len(clients) - 1)))
    assert sorted(members[-1]) == own  # members prefer their own side
    for client in clients:
        for i in range(len(clients)):
            assert (await client.request(f"svc.{i}", b"", timeout=5)).data == b"svc.%d" % i


@pytest.mark.parametrize("triple", TRIPLES, ids="-".join)
async def test_three_servers_and_a_leaf_node_are_one_subject_space(
    cluster: Cluster, tmp_path: Path, triple: tuple[str, str, str]
) -> None:
    leaf_port = free_port()
    first = await cluster.add(triple[0], "A")
    second = await cluster.add(
        triple[1], "B", routes=[first], top=f'leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}'
    )
    third = await cluster.add(triple[2], "C", routes=[first])
    hub: Any = SimpleNamespace(leaf_port=leaf_port)
    leaf = NODES[triple[1]](tmp_path, "L", to=(hub,), listens=False)
    await leaf.start()
    try:
        await connected(first, second, third)
        places = (first, second, third, leaf)
        clients = [await cluster.client(one) for one in places]
        await check(clients)
        for client in clients:
            await client.close()
        await first.stop()
        await first.start()
        await connected(first, second, third)
        clients = [await cluster.client(one) for one in places]
        await check(clients)
        for client in clients:
            await client.close()
    finally:
        await leaf.stop()
