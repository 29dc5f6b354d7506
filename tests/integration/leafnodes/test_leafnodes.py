"""Messages between a hub and a leaf node, in each pair of servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import nats.errors
import pytest

from tests.support.leafs import PAIRS, Leafs, heard, linked
from tests.support.nats_servers import until

pytestmark = [
    pytest.mark.feature("cluster.leaf-nodes"),
    pytest.mark.parametrize("kinds", PAIRS, ids="-".join),
]


async def collect(client: Any, subject: str, queue: str = "") -> list[Any]:
    """Subscribes; returns the list that messages are added to."""
    found: list[Any] = []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


async def test_messages_pass_in_both_directions(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await leafs.pair(kinds)
    one, two = await leafs.client(hub), await leafs.client(leaf)
    for publisher, subscriber in ((one, two), (two, one)):
        got = await collect(subscriber, "a.*")
        await heard(publisher, "a.b", got)
        await publisher.publish("a.b", b"body", reply="answer", headers={"X": "y"})
        await until(lambda got=got: len(got) == 1)
        assert (got[0].subject, got[0].data, got[0].reply, got[0].headers) == (
            "a.b",
            b"body",
            "answer",
            {"X": "y"},
        )


async def test_requests_are_answered_from_the_other_side(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await leafs.pair(kinds)
    one, two = await leafs.client(hub), await leafs.client(leaf)

    async def answer(message: Any) -> None:
        await message.respond(b"to " + message.data)

    await one.subscribe("at.hub", cb=answer)
    await two.subscribe("at.leaf", cb=answer)
    await one.flush()
    await two.flush()
    for client, subject in ((two, "at.hub"), (one, "at.leaf")):

        async def is_answered(client: Any = client, subject: str = subject) -> bool:
            try:
                return (await client.request(subject, b"me", timeout=1)).data == b"to me"
            except nats.errors.Error:
                return False

        await until(is_answered)


async def test_one_member_of_a_queue_group_gets_a_message(leafs: Leafs, kinds: tuple[str, str]) -> None:
    """Members of the publisher's own side come first."""
    hub, leaf = await leafs.pair(kinds)
    one, two = await leafs.client(hub), await leafs.client(leaf)
    at_leaf = await collect(two, "work", "q")
    await heard(one, "work", at_leaf)
    for _ in range(20):
        await one.publish("work", b"")
    await until(lambda: len(at_leaf) == 20)
    at_hub = await collect(one, "work", "q")
    for _ in range(20):
        await one.publish("work", b"")
    await until(lambda: len(at_hub) == 20)
    assert len(at_leaf) == 20


async def test_messages_pass_on_to_other_leaf_nodes_and_never_come_back(
    leafs: Leafs, kinds: tuple[str, str]
) -> None:
    hub, leaf = await leafs.pair(kinds)
    other = await leafs.add(kinds[1], "other", to=(hub,), listens=False)
    await linked(hub, count=2)
    publisher, near, far = await leafs.client(leaf), await leafs.client(leaf), await leafs.client(other)
    at_far, at_near = await collect(far, "x"), await collect(near, "x")
    await heard(publisher, "x", at_far)
    at_near.clear()
    for i in range(50):
        await publisher.publish("x", b"%d" % i)
    await until(lambda: len(at_far) == 50)
    await asyncio.sleep(0.1)
    assert Counter(one.data for one in at_near) == Counter(b"%d" % i for i in range(50))
    assert [one.data for one in at_far] == [b"%d" % i for i in range(50)]


async def test_interest_ends_with_the_subscription_and_the_link(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await leafs.pair(kinds)
    client = await leafs.client(leaf)
    subscription = await client.subscribe("soon.gone")
    await client.flush()

    async def knows() -> bool:
        return any("soon.gone" in one["subscriptions_list"] for one in await hub.leafs())

    await until(knows)
    await subscription.unsubscribe()

    async def forgot() -> bool:
        return not await knows()

    await until(forgot)
    await leaf.stop()
    await linked(hub, count=0)


async def test_a_leaf_node_connects_again(leafs: Leafs, kinds: tuple[str, str]) -> None:
    hub, leaf = await leafs.pair(kinds)
    client = await leafs.client(leaf)
    got = await collect(client, "again")
    await hub.stop()
    await linked(leaf, count=0)
    await hub.start()
    await linked(hub, leaf)
    await heard(await leafs.client(hub), "again", got)
