"""JetStream across leaf nodes, by domains, in each pair of servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from nats.js.api import ConsumerConfig, ExternalStream, StreamConfig, StreamSource
from nats.js.errors import NotFoundError

import penstock.client
from penstock.net.reasons import CloseReason
from tests.support.leafs import PAIRS, Leafs, linked
from tests.support.nats_servers import until

pytestmark = [
    pytest.mark.feature("cluster.domains"),
    pytest.mark.parametrize("kinds", PAIRS, ids="-".join),
]


def store(leafs: Leafs, domain: str) -> dict[str, Any]:
    """Settings of a server with a domain."""
    where = leafs.directory / f"store-{domain}"
    return {"top": f'jetstream {{ store_dir: "{where}", domain: {domain} }}'}


async def domains(leafs: Leafs, kinds: tuple[str, str]) -> tuple[Any, Any, Any, Any]:
    """Clients at hub and leaf node, and the servers."""
    hub, leaf = await leafs.pair(kinds, store(leafs, "hub"), store(leafs, "spoke"))
    return await leafs.client(hub), await leafs.client(leaf), hub, leaf


async def reach(client: Any, domain: str) -> Any:
    """JetStream of a domain, once it answers."""
    context = client.jetstream(domain=domain)

    async def answers() -> bool:
        try:
            return (await context.account_info()).domain == domain
        except nats.errors.Error:
            return False

    await until(answers)
    return context


async def test_each_side_reaches_both_domains(leafs: Leafs, kinds: tuple[str, str]) -> None:
    at_hub, at_leaf, _, _ = await domains(leafs, kinds)
    for client, own, other in ((at_hub, "hub", "spoke"), (at_leaf, "spoke", "hub")):
        far = await reach(client, other)
        await far.add_stream(name=f"FROM_{own}", subjects=[f"{own}.to.{other}"])
        assert (await client.jetstream().account_info()).domain == own
        assert f"FROM_{own}" not in [one.config.name for one in await client.jetstream().streams_info()]
        ack = await client.jetstream().publish(f"{own}.to.{other}", b"x", stream=f"FROM_{own}")
        assert (ack.stream, ack.seq, ack.domain) == (f"FROM_{own}", 1, other)
        with pytest.raises(NotFoundError):
            await client.jetstream().stream_info(f"FROM_{own}")


async def test_consumers_deliver_across_the_link_with_the_stored_subject(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    at_hub, at_leaf, _, _ = await domains(leafs, kinds)
    for client, near, other in ((at_leaf, at_hub, "hub"), (at_hub, at_leaf, "spoke")):
        local = near.jetstream()
        await local.add_stream(name=f"S_{other}", subjects=[f"s.{other}.>"])
        for i in range(30):
            await local.publish(f"s.{other}.{i}", b"%d" % i)
        far = await reach(client, other)
        pull = await far.pull_subscribe("", durable="pull", stream=f"S_{other}")
        got = await pull.fetch(30, timeout=5)
        assert [one.subject for one in got] == [f"s.{other}.{i}" for i in range(30)]
        for one in got:
            await one.ack_sync()
        info = await local.consumer_info(f"S_{other}", "pull")
        assert (info.num_ack_pending, info.ack_floor.stream_seq) == (0, 30)
        seen: list[Any] = []

        async def note(message: Any, seen: list[Any] = seen) -> None:
            seen.append(message)
            await message.ack()

        config = ConsumerConfig(flow_control=True, idle_heartbeat=1, durable_name="push")
        await far.subscribe("", durable="push", stream=f"S_{other}", cb=note, config=config)
        await until(lambda seen=seen: len(seen) == 30)
        assert [one.subject for one in seen] == [f"s.{other}.{i}" for i in range(30)]
        await far.subscribe(f"s.{other}.7", stream=f"S_{other}", cb=note, ordered_consumer=True)
        await until(lambda seen=seen: len(seen) == 31)


async def test_buckets_and_objects_of_the_hub_from_the_leaf_node(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    _, at_leaf, hub, leaf = await domains(leafs, kinds)
    await reach(at_leaf, "hub")
    async with penstock.client.connect(hub.url) as one, penstock.client.connect(leaf.url) as two:
        near, far = one.jetstream(), two.jetstream(domain="hub")
        bucket = await near.create_key_value("B")
        there = await far.key_value("B")
        revision = await there.put("k", b"v")
        assert (await bucket.get("k")).value == b"v"
        await bucket.update("k", b"w", last_revision=revision)
        assert (await there.get("k")).value == b"w"
        assert [entry.value for entry in await there.history("k")] == [b"w"]
        objects = await near.create_object_store("O")
        data = bytes(range(256)) * 2000
        await objects.put("big", data)
        assert await (await far.object_store("O")).get("big") == data


async def test_mirrors_and_sources_survive_a_link_that_comes_and_goes(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    at_hub, at_leaf, hub, leaf = await domains(leafs, kinds)
    await reach(at_leaf, "hub")
    await at_hub.jetstream().add_stream(name="ORIGIN", subjects=["o.>"])
    external = ExternalStream(api="$JS.hub.API")
    source = StreamSource(name="ORIGIN", external=external)
    at = at_leaf.jetstream()
    await at.add_stream(StreamConfig(name="MIRROR", mirror=source))
    await at.add_stream(StreamConfig(name="SOURCED", sources=[source]))
    for i in range(50):
        await at_hub.jetstream().publish(f"o.{i}", b"%d" % i)

    async def has(count: int) -> bool:
        infos = [await at.stream_info(name) for name in ("MIRROR", "SOURCED")]
        return [one.state.messages for one in infos] == [count, count]

    await until(lambda: has(50))
    broken = next(node for node in (hub, leaf) if node.kind == "penstock")
    for session in broken.server.links.leafs.sessions:
        session.connection.abort(CloseReason.READ_ERROR)
    for i in range(50, 100):
        await at_hub.jetstream().publish(f"o.{i}", b"%d" % i)
    await until(lambda: has(100), 40)
    message = await at.get_msg("MIRROR", 77)
    assert (message.subject, message.data) == ("o.76", b"76")


async def test_hub_and_leaf_node_of_the_document_reach_each_other(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    text = (Path(__file__).parents[3] / "docs/topology.md").read_text()
    hub = await leafs.add(kinds[0], "A")
    leaf = await leafs.add(kinds[1], "B", to=(hub,))
    ports = {"4222": hub.port, "7422": hub.leaf_port, "4223": leaf.port}
    for node, name in ((hub, "hub"), (leaf, "site")):
        [block] = re.findall(rf"^```\n(# {name}\.conf.*?)^```", text, re.M | re.S)
        await node.stop()
        where = f'store_dir: "{leafs.directory / name}", domain'
        block = block.replace("domain", where) + node.own_lines()
        node.conf_path.write_text(re.sub(r"(?<=:)\d{4}\b", lambda found: str(ports[found[0]]), block))
        await node.start()
    await linked(hub, leaf)
    await reach(await leafs.client(leaf), "hub")
    await reach(await leafs.client(hub, user="site", password="change me"), "site")
