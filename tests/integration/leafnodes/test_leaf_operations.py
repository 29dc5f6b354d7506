"""Loops, duplicates, isolation, limits, reload and monitoring of leaf nodes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats.errors
import pytest

from tests.integration.leafnodes.test_leafnodes import collect
from tests.support.leafs import PAIRS, Leafs, heard, linked
from tests.support.nats_servers import until
from tests.support.raw_routes import exchange

pytestmark = pytest.mark.feature("cluster.leaf-nodes")

PAIR = pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
KINDS = pytest.mark.parametrize("kind", ["penstock", pytest.param("official", marks=pytest.mark.official)])


@PAIR
async def test_a_loop_is_found_and_ended(leafs: Leafs, kinds: tuple[str, str]) -> None:
    """A server that is leaf node of a hub and of that hub's leaf node: one link ends, the others stay."""
    first = await leafs.add(kinds[0], "one")
    second = await leafs.add(kinds[1], "two", to=(first,))
    await linked(first, second)
    third = await leafs.add(kinds[0], "three", to=(second, first), listens=False)
    await until(lambda: "Loop detected for leafnode account" in third.log() + first.log() + second.log())
    if "official" in kinds:
        return  # it closes every link at once, for half a minute
    got = await collect(await leafs.client(second), "x")
    publisher = await leafs.client(first)
    await heard(publisher, "x", got)
    for _ in range(20):
        await publisher.publish("x", b"")
    await until(lambda: len(got) >= 20)
    await asyncio.sleep(0.2)
    assert len(got) == 20


@KINDS
async def test_a_second_connection_of_a_leaf_node_replaces_the_first(leafs: Leafs, kind: str) -> None:
    node = await leafs.add(kind, "hub")
    connect = b'CONNECT {"name":"X","cluster":"X","remote_account":"$G","headers":true}\r\nPING\r\n'
    reader, writer = await asyncio.open_connection("127.0.0.1", node.leaf_port)
    writer.write(connect)
    await asyncio.wait_for(reader.readuntil(b"PONG\r\n"), 10)
    again, other = await asyncio.open_connection("127.0.0.1", node.leaf_port)
    other.write(connect)
    await asyncio.wait_for(again.readuntil(b"PONG\r\n"), 10)
    rest = await asyncio.wait_for(reader.read(), 10)
    assert b"-ERR 'Duplicate Remote LeafNode Connection'" in rest
    await linked(node)
    writer.close()
    other.close()


@PAIR
async def test_isolated_leaf_nodes_get_no_interest_of_others(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await leafs.pair(kinds, {}, {"remote": "request_isolation: true"})
    other = await leafs.add(kinds[1], "other", to=(hub,), listens=False)
    await linked(hub, count=2)
    await collect(await leafs.client(other), "theirs")
    got = await collect(await leafs.client(hub), "own")
    await heard(await leafs.client(leaf), "own", got)
    interest = [subject for one in await leaf.leafs() for subject in one["subscriptions_list"]]
    assert "own" in interest
    assert "theirs" not in interest
    assert sorted(one.get("is_isolated", False) for one in await hub.leafs()) == [False, True]


@PAIR
async def test_imports_of_services_and_streams_reach_over_the_link(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    """The hub's account A imports a service and a stream of B; the leaf node is bound to A."""
    top = """accounts {
        A { users: [{user: a, password: a}], imports: [
            {service: {account: B, subject: ask}, to: "ask.b"}, {stream: {account: B, subject: "news.>"}} ] }
        B { users: [{user: b, password: b}], exports: [{service: ask}, {stream: "news.>"}] } }"""
    hub, leaf = await leafs.pair(kinds, {"top": top}, {"user": "a:a@"})
    provider, client = await leafs.client(hub, user="b", password="b"), await leafs.client(leaf)

    async def answer(message: Any) -> None:
        await message.respond(b"yes")

    await provider.subscribe("ask", cb=answer)
    await provider.flush()

    async def is_answered() -> bool:
        try:
            return (await client.request("ask.b", b"", timeout=1)).data == b"yes"
        except nats.errors.Error:
            return False

    await until(is_answered)
    got = await collect(client, "news.*")
    await heard(provider, "news.x", got)


@PAIR
async def test_mappings_of_the_hub_apply_to_messages_of_leaf_nodes(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    hub, leaf = await leafs.pair(kinds, {"top": 'mappings = { "in.*": "out.{{wildcard(1)}}" }'})
    got = await collect(await leafs.client(hub), "out.7")
    grouped = await collect(await leafs.client(hub), "out.7", "q")
    publisher = await leafs.client(leaf)
    await heard(publisher, "in.7", got)
    assert grouped


async def test_an_account_has_a_limit_of_leaf_nodes(leafs: Leafs) -> None:
    """The official server takes the limit from tokens only."""
    top = "accounts { A { users: [{user: a, password: a}], limits { max_leafnodes: 1 } } }"
    hub = await leafs.add("penstock", "hub", top=top)
    await leafs.add("penstock", "one", to=(hub,), listens=False, user="a:a@")
    await linked(hub)
    got = await exchange(hub.leaf_port, b'CONNECT {"user":"a","pass":"a","name":"X"}\r\n')
    assert b"-ERR 'maximum account active connections exceeded'" in got


@PAIR
async def test_a_reload_adds_and_removes_remotes(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub = await leafs.add(kinds[0], "hub")
    leaf = await leafs.add(kinds[1], "leaf", to=(hub,), listens=True)
    await linked(hub, leaf)
    leaf.write(remotes=False)
    await leaf.reload()
    await linked(hub, leaf, count=0)
    leaf.write()
    await leaf.reload()
    await linked(hub, leaf)
    leaf.write(remote="disabled: true")
    await leaf.reload()
    await linked(hub, leaf, count=0)


@KINDS
async def test_monitoring_shows_links(leafs: Leafs, kind: str) -> None:
    other = "official" if kind == "penstock" else "penstock"
    hub, leaf = await leafs.pair((kind, other), {}, {"remote": 'deny_imports: "no"'})
    got = await collect(await leafs.client(leaf), "a")
    await heard(await leafs.client(hub), "a", got)
    [entry] = await hub.leafs()
    assert (entry["name"], entry["is_spoke"], entry["account"]) == ("leaf", False, "$G")
    assert entry["out_msgs"] > 0
    assert "a" in entry["subscriptions_list"]
    page = await hub.page("varz")
    assert page["leafnodes"] == 1
    assert page["leaf"]["port"] == hub.leaf_port
    shown = (await leaf.page("varz"))["leaf"]["remotes"]
    assert [(one["local_account"], one["urls"], one["deny"]) for one in shown] == [
        ("$G", [f"127.0.0.1:{hub.leaf_port}"], {"imports": ["no"]})
    ]


@PAIR
async def test_events_tell_of_leaf_nodes(leafs: Leafs, kinds: tuple[str, str]) -> None:
    """The counts of an account have its leaf nodes; the side that dialled tells of a connection."""
    top = """accounts { A { users: [{user: a, password: a}] }, $SYS { users: [{user: s, password: s}] } }"""
    hub = await leafs.add(kinds[0], "hub", top=top)
    leaf = await leafs.add(
        kinds[1], "leaf", to=(hub,), listens=False, user="a:a@", remote="account: A, disabled: true", top=top
    )
    counts = await collect(await leafs.client(hub, user="s", password="s"), "$SYS.ACCOUNT.A.SERVER.CONNS")
    connects = await collect(await leafs.client(leaf, user="s", password="s"), "$SYS.ACCOUNT.A.CONNECT")
    leaf.write(remote="account: A", top=top)
    await leaf.reload()
    await linked(hub, leaf)
    await until(lambda: bool(counts) and json.loads(counts[-1].data)["leafnodes"] == 1)
    await until(lambda: bool(connects))
    assert json.loads(connects[-1].data)["client"]["kind"] == "Leafnode"
