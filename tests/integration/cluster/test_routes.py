"""Messages and interest across one route, with the official server in both roles."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy
from nats.errors import NoRespondersError

from tests.support.clusters import Cluster, connected, heard
from tests.support.nats_servers import until
from tests.support.raw_routes import RawRoute

pytestmark = pytest.mark.feature("cluster.routes")


async def collect(client: NatsPy, subject: str, queue: str = "") -> list[Any]:
    """Subscribes; the list gets the messages."""
    found: list[Any] = []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


async def test_messages_arrive_unchanged_in_both_directions(cluster: Cluster, kinds: tuple[str, str]) -> None:
    members = await cluster.pair(kinds)
    for near, far in (members, members[::-1]):
        publisher, subscriber = await cluster.client(near), await cluster.client(far)
        inbox = await collect(subscriber, "foo.*")
        await heard(publisher, "foo.probe", inbox)
        payload = bytes(range(256)) * 300
        await publisher.publish("foo.plain", payload)
        await publisher.publish("foo.header", payload, headers={"Key": "value", "Other": "x y"})
        await publisher.publish("foo.reply", b"", reply="answer.here")
        await publisher.publish("foo.empty", b"")
        await until(lambda inbox=inbox: len(inbox) == 4)
        assert [(one.subject, one.data, one.headers, one.reply) for one in inbox] == [
            ("foo.plain", payload, None, ""),
            ("foo.header", payload, {"Key": "value", "Other": "x y"}, ""),
            ("foo.reply", b"", None, "answer.here"),
            ("foo.empty", b"", None, ""),
        ]


async def test_a_server_gets_each_message_once_however_many_subscriptions_match(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first, second = await cluster.pair(kinds)
    publisher, subscriber = await cluster.client(first), await cluster.client(second)
    boxes = [await collect(subscriber, subject) for subject in ("a.b", "a.*", "a.>", ">")]
    queued = await collect(subscriber, "a.b", queue="q")
    await heard(publisher, "a.b", boxes[3])
    for box in (*boxes, queued):
        box.clear()
    before = (await first.page("routez"))["routes"]
    for i in range(10):
        await publisher.publish("a.b", str(i).encode())
    await until(lambda: all(len(box) == 10 for box in (*boxes, queued)))
    after = (await first.page("routez"))["routes"]
    sent = sum(one["out_msgs"] for one in after if "account" not in one) - sum(
        one["out_msgs"] for one in before if "account" not in one
    )
    assert sent == 10


async def test_requests_are_answered_across_the_route(cluster: Cluster, kinds: tuple[str, str]) -> None:
    members = await cluster.pair(kinds)
    for near, far in (members, members[::-1]):
        asking, serving = await cluster.client(near), await cluster.client(far)

        async def answer(message: Any) -> None:
            await message.respond(b"re: " + message.data)

        await serving.subscribe(f"svc.{far.name}", cb=answer)
        await serving.flush()

        async def works(asking: NatsPy = asking, far: Any = far) -> bool:
            try:
                return (await asking.request(f"svc.{far.name}", b"hi", timeout=1)).data == b"re: hi"
            except NoRespondersError:
                return False

        await until(works)


async def test_a_request_without_subscribers_anywhere_fails_at_once(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    first, _ = await cluster.pair(kinds)
    client = await cluster.client(first)
    with pytest.raises(NoRespondersError):
        await client.request("no.receiver", b"", timeout=5)


async def test_interest_ends_with_the_last_subscription(cluster: Cluster, kinds: tuple[str, str]) -> None:
    first, second = await cluster.pair(kinds)
    publisher, subscriber = await cluster.client(first), await cluster.client(second)
    inbox = await collect(subscriber, "only.here")
    subscription = await subscriber.subscribe("only.here")
    await heard(publisher, "only.here", inbox)
    await subscription.unsubscribe()
    await subscriber.flush()
    await heard(publisher, "only.here", inbox)
    await subscriber.close()

    async def no_client_left() -> bool:
        try:
            await publisher.request("only.here", b"", timeout=0.2)
        except NoRespondersError:
            return True
        except TimeoutError:
            return False
        return False

    await until(no_client_left)


async def test_one_member_of_a_queue_group_gets_each_message(
    cluster: Cluster, kinds: tuple[str, str]
) -> None:
    """Servers count with their number of members: 9 of 10 are on the other server."""
    first, second = await cluster.pair(kinds)
    publisher, near, far = [await cluster.client(one) for one in (first, first, second)]
    here = await collect(near, "work", queue="q")
    there: list[Any] = []
    for _ in range(9):
        there_one = await collect(far, "work", queue="q")
        there.append(there_one)
    await heard(publisher, "work", there[0])
    here.clear()
    for box in there:
        box.clear()
    for _ in range(2000):
        await publisher.publish("work", b"")
    await publisher.flush()
    await until(lambda: len(here) + sum(map(len, there)) >= 2000)
    await asyncio.sleep(0.05)
    assert len(here) + sum(map(len, there)) == 2000
    assert 100 < len(here) < 320  # 200 expected, with a standard deviation of 13
    assert all(len(box) > 100 for box in there)


async def test_a_message_travels_one_hop_only(cluster: Cluster, kinds: tuple[str, str]) -> None:
    """Three servers in a line: without gossip (the middle one is configured everywhere as the only route),
    the ends have no route to each other, and messages do not pass the middle."""
    middle = await cluster.add(kinds[0], "M")
    # A server that does not tell its peers of others: each end believes it is configured to know only the
    # middle.
    left = await cluster.add(kinds[1], "L", routes=[middle])
    await connected(left, middle)
    raw = await RawRoute.open(middle.route_port, "R")
    try:
        client = await cluster.client(left)
        await client.publish("over.there", b"x")
        await raw.send(b"RS+ $G over.there\r\nRS+ $G >\r\n")
        inbox = await collect(client, "from.raw")
        other = await cluster.client(middle)
        seen = await collect(other, "from.raw")
        await heard(client, "from.raw", seen)
        inbox.clear()
        raw.take()
        await raw.send(b"RMSG $G from.raw 5\r\nhello\r\n")
        await until(lambda: len(seen) == 1)
        await asyncio.sleep(0.1)
        assert inbox == []  # the middle did not pass it on to the left end
        await client.publish("over.there", b"from the left")
        await client.flush()
        await asyncio.sleep(0.1)
        assert b"from the left" not in raw.take()
        await other.publish("over.there", b"from the middle")
        await other.flush()
        await until(raw.has(b"RMSG $G over.there 15\r\nfrom the middle\r\n"))
    finally:
        await raw.close()


async def test_weights_follow_the_number_of_members(cluster: Cluster) -> None:
    """What penstock tells a peer, line by line: the weight is the number of local members of the group."""
    member = await cluster.add("penstock", "A")
    raw = await RawRoute.open(member.route_port, "R")
    try:
        client = await cluster.client(member)
        first = await client.subscribe("w", queue="q")
        second = await client.subscribe("w", queue="q")
        await client.flush()
        await until(raw.has(b"RS+ $G w q 1\r\nRS+ $G w q 2\r\n"))
        await first.unsubscribe()
        await second.unsubscribe()
        await until(raw.has(b"RS+ $G w q 1\r\nRS- $G w q\r\n"))
        counts = Counter(line for line in raw.data.split(b"\r\n") if b" w q" in line)
        assert counts == {b"RS+ $G w q 1": 2, b"RS+ $G w q 2": 1, b"RS- $G w q": 1}
    finally:
        await raw.close()
