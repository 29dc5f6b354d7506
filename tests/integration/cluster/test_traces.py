"""Message traces (ADR-41) across routes, leaf nodes and gateways, in all pairs of both kinds of server.

The official pair is one of them: what is expected is what it does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy

from tests.support.clusters import Cluster, connected, heard
from tests.support.gateway_servers import super_clusters
from tests.support.leafs import Leafs, linked
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("core.message-tracing")

P, O = "penstock", "official"  # noqa: E741
KINDS = pytest.mark.parametrize(
    ("near", "far"),
    [(P, P), (P, O), (O, P), (O, O)],
    ids=["-".join(pair) for pair in ((P, P), (P, O), (O, P), (O, O))],
)
ONLY = {"Nats-Trace-Only": "true"}
ROUTE, GATEWAY, LEAF = 1, 2, 4
COUNT = 30


async def collect(client: NatsPy, subject: str, queue: str = "") -> list[Any]:
    found: list[Any] = []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


def shown(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("ts", "cid")}


async def check(clients: tuple[NatsPy, NatsPy], names: tuple[str, str], kind: int) -> None:
    """Each step of a message from one server to the other is reported once, by the server that took it."""
    (near, far), (near_name, far_name) = clients, names
    traces, taken, jobs = (
        await collect(near, "dest"),
        await collect(far, "a.b"),
        await collect(far, "jobs", "q"),
    )
    await heard(near, "a.b", taken)
    probes = await collect(near, "to.near")
    await heard(far, "to.near", probes)  # the far server knows of `dest`, which was announced before
    taken.clear()

    async def trace(subject: str, extra: dict[str, str]) -> dict[str, Any]:
        traces.clear()
        await near.publish(subject, b"x", headers={"Nats-Trace-Dest": "dest", **extra})
        await until(lambda: len(traces) >= 2)
        await asyncio.sleep(0.02)
        pages = [json.loads(one.data) for one in traces]
        assert len(pages) == 2
        return {page["server"]["name"]: page for page in pages}

    for subject, extra in (("a.b", {}), ("a.b", ONLY), ("jobs", {})):
        pages = await trace(subject, extra)
        first, second = pages[near_name], pages[far_name]
        assert first["hops"] == 1
        assert [shown(event) for event in first["events"]] == [
            {"type": "in", "kind": 0, "name": "near", "acc": "$G", "subj": subject},
            {"type": "eg", "kind": kind, "name": far_name, "hop": "1"},
        ]
        assert "hops" not in second
        assert second["request"]["header"]["Nats-Trace-Hop"] == ["1"]
        last = {"type": "eg", "kind": 0, "name": "far", "sub": subject}
        assert [shown(event) for event in second["events"]] == [
            {"type": "in", "kind": kind, "name": near_name, "acc": "$G", "subj": subject},
            {**last, "queue": "q"} if subject == "jobs" else last,
        ]
    await until(lambda: len(jobs) == 1)
    assert len(taken) == 1  # not the one that was only traced
    assert taken[0].headers["Nats-Trace-Hop"] == "1"


async def check_group(near: NatsPy, far: NatsPy) -> None:
    """Of a queue group on both servers one member gets each message, and the traces tell which."""
    members = [await collect(client, "shared", "q") for client in (near, far)]
    ready = await collect(far, "ready")
    await heard(near, "ready", ready)
    traces = await collect(near, "told")
    probes = await collect(near, "near.ready")
    await heard(far, "near.ready", probes)
    for _ in range(COUNT):
        await near.publish("shared", b"x", headers={"Nats-Trace-Dest": "told"})

    def reached() -> list[str]:
        events = [event for one in traces for event in json.loads(one.data)["events"]]
        return [event["name"] for event in events if event["type"] == "eg" and event["kind"] == 0]

    await until(lambda: sum(map(len, members)) >= COUNT and len(reached()) >= COUNT)
    await asyncio.sleep(0.02)
    assert sum(map(len, members)) == COUNT
    assert sorted(reached()) == ["far"] * len(members[1]) + ["near"] * len(members[0])


async def both(client: Callable[..., Awaitable[NatsPy]], near: Any, far: Any) -> tuple[NatsPy, NatsPy]:
    return await client(near, name="near"), await client(far, name="far")


@KINDS
async def test_a_trace_goes_on_across_a_route(cluster: Cluster, near: str, far: str) -> None:
    first = await cluster.add(near, "A")
    second = await cluster.add(far, "B", routes=[first])
    await connected(first, second)
    clients = await both(cluster.client, first, second)
    await check(clients, ("A", "B"), ROUTE)
    await check_group(*clients)


@KINDS
@pytest.mark.parametrize("side", ["hub", "leaf"])
async def test_a_trace_goes_on_across_a_leaf_node_link(
    tmp_path: Path, near: str, far: str, side: str
) -> None:
    leafs = Leafs(tmp_path)
    try:
        kinds = (near, far) if side == "hub" else (far, near)
        hub = await leafs.add(kinds[0], "hub")
        leaf = await leafs.add(kinds[1], "leaf", to=(hub,), listens=False)
        await linked(hub, leaf)
        first, second = (hub, leaf) if side == "hub" else (leaf, hub)
        names = ("hub", "leaf") if side == "hub" else ("leaf", "hub")
        clients = await both(leafs.client, first, second)
        await check(clients, names, LEAF)
        await check_group(*clients)
    finally:
        await leafs.close()


@KINDS
async def test_a_trace_goes_on_across_a_gateway(tmp_path: Path, near: str, far: str) -> None:
    async with super_clusters(tmp_path) as clusters:
        first, second = await clusters.pair((near, far))
        clients = await both(clusters.client, first, second)
        await check(clients, ("A1", "B1"), GATEWAY)
        await check_group(*clients)


@pytest.mark.official
async def test_hops_are_numbered_through_several_servers(tmp_path: Path) -> None:
    leafs = Leafs(tmp_path)
    try:
        hub = await leafs.add(P, "hub")
        leaf = await leafs.add(P, "leaf", to=(hub,), listens=False)
        other = await leafs.add(O, "other", to=(hub,), listens=False)
        await linked(leaf, other)
        near, far = await both(leafs.client, leaf, other)
        traces, taken = await collect(near, "dest"), await collect(far, "a.b")
        await heard(near, "a.b", taken)
        probes = await collect(near, "to.near")
        await heard(far, "to.near", probes)
        await near.publish("a.b", b"x", headers={"Nats-Trace-Dest": "dest"})
        await until(lambda: len(traces) >= 3)
        pages = [json.loads(one.data) for one in traces]
        hops = {page["server"]["name"]: page["request"]["header"].get("Nats-Trace-Hop") for page in pages}
        assert hops == {"leaf": None, "hub": ["1"], "other": ["1.1"]}
    finally:
        await leafs.close()
