"""Messages and interest between clusters, with the official server in both roles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy
from nats.errors import NoRespondersError

from tests.support.clusters import connected, heard
from tests.support.gateway_servers import SuperCluster, joined
from tests.support.nats_servers import until

pytestmark = pytest.mark.feature("cluster.super-clusters")


async def collect(client: NatsPy, subject: str, queue: str = "") -> list[Any]:
    """Subscribes; the list gets the messages."""
    found: list[Any] = []

    async def note(message: Any) -> None:
        found.append(message)

    await client.subscribe(subject, queue=queue, cb=note)
    await client.flush()
    return found


async def answer(client: NatsPy, subject: str, text: bytes, queue: str = "") -> None:
    """Subscribes, and answers every request with this text."""

    async def respond(message: Any) -> None:
        await message.respond(text + b" " + message.reply.encode()[:5])

    await client.subscribe(subject, queue=queue, cb=respond)
    await client.flush()


async def answered(client: NatsPy, subject: str) -> bytes:
    """The answer to a request, once its server knows of the service."""
    found: list[bytes] = []

    async def is_answered() -> bool:
        try:
            found.append((await client.request(subject, b"?", timeout=1)).data)
        except (NoRespondersError, TimeoutError):
            await asyncio.sleep(0.02)
        return bool(found)

    await until(is_answered)
    return found[0]


async def test_messages_arrive_unchanged_in_both_directions(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    members = await clusters.pair(kinds)
    for near, far in (members, members[::-1]):
        publisher, subscriber = await clusters.client(near), await clusters.client(far)
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
        await publisher.close()
        await subscriber.close()


async def test_a_message_does_not_come_back(clusters: SuperCluster, kinds: tuple[str, str]) -> None:
    first, second = await clusters.pair(kinds)
    near, far = await clusters.client(first), await clusters.client(second)
    here, there = await collect(near, "x"), await collect(far, "x")
    await heard(near, "x", there)
    await heard(far, "x", here)
    here.clear()
    there.clear()
    await near.publish("x", b"1")
    await until(lambda: len(there) == 1)
    await far.flush()
    await near.flush()
    await asyncio.sleep(0.1)
    assert (len(here), len(there)) == (1, 1)


async def test_the_first_request_of_a_new_client_is_answered(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    members = await clusters.pair(kinds)
    for near, far in (members, members[::-1]):
        service = await clusters.client(far)
        await answer(service, "svc", b"yes")
        await answered(await clusters.client(near), "svc")
        for _ in range(20):  # the interest in the inbox is seconds old at most
            client = await clusters.client(near)
            # The reply is mapped between clusters, and the service sees the plain one.
            assert (await client.request("svc", b"?", timeout=2)).data == b"yes _INBO"
            await client.close()
        await service.close()


async def test_a_request_fails_when_no_cluster_has_interest(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    members = await clusters.pair(kinds)
    for member in members:
        client = await clusters.client(member)
        with pytest.raises(NoRespondersError):
            await client.request("nobody", b"?", timeout=2)


@pytest.mark.feature("core.queue-affinity")
async def test_a_queue_group_prefers_members_of_its_own_cluster(
    clusters: SuperCluster, kinds: tuple[str, str]
) -> None:
    members = await clusters.pair(kinds)
    for near, far in (members, members[::-1]):
        publisher, local, remote = [await clusters.client(one) for one in (near, near, far)]
        there = await collect(remote, "work", queue="q")
        await heard(publisher, "work", there)
        for _ in range(10):
            await publisher.publish("work", b"1")
        await until(lambda there=there: len(there) == 10)
        here = await collect(local, "work", queue="q")
        for _ in range(10):
            await publisher.publish("work", b"2")
        await until(lambda here=here: len(here) == 10)
        assert len(there) == 10
        await local.close()  # its server may read the end of the connection after the next message
        await heard(publisher, "work", there)
        for client in (publisher, remote):
            await client.close()


async def test_interest_goes_with_its_subscription(clusters: SuperCluster, kinds: tuple[str, str]) -> None:
    members = await clusters.pair(kinds)
    for near, far in (members, members[::-1]):
        client, service = await clusters.client(near), await clusters.client(far)
        await answer(service, "gone", b"here")
        assert (await answered(client, "gone")).startswith(b"here")
        await service.close()

        async def is_gone(client: NatsPy = client) -> bool:
            try:
                await client.request("gone", b"?", timeout=1)
            except NoRespondersError:
                return True
            except TimeoutError:
                pass
            return False

        await until(is_gone)


@pytest.mark.parametrize("side", [0, 1], ids=["dialled", "dialling"])
async def test_a_restarted_side_is_found_again(
    clusters: SuperCluster, kinds: tuple[str, str], side: int
) -> None:
    members = await clusters.pair(kinds)
    restarted, other = members[side], members[1 - side]
    await restarted.stop()
    await restarted.start()
    await joined(*members)
    for near, far in ((restarted, other), (other, restarted)):
        service = await clusters.client(far)
        await answer(service, "again", b"yes")
        assert (await answered(await clusters.client(near), "again")).startswith(b"yes")
        await service.close()


@pytest.mark.parametrize(
    "kinds_of_three",
    [("penstock",) * 3, ("penstock", "official", "penstock"), ("official", "penstock", "penstock")],
    ids="-".join,
)
async def test_three_clusters_find_each_other_by_gossip(
    clusters: SuperCluster, kinds_of_three: tuple[str, str, str]
) -> None:
    first = await clusters.add(kinds_of_three[0], "A1", "A")
    second = await clusters.add(kinds_of_three[1], "B1", "B", to=[first])
    third = await clusters.add(kinds_of_three[2], "C1", "C", to=[first])
    members = (first, second, third)
    await joined(*members)
    for far in members:
        subscriber = await clusters.client(far)
        inbox = await collect(subscriber, "all")
        for near in members:
            if near is far:
                continue
            publisher = await clusters.client(near)
            await heard(publisher, "all", inbox)
            await publisher.publish("all", b"1")
            await until(lambda inbox=inbox: len(inbox) == 1)
            await asyncio.sleep(0.05)
            assert len(inbox) == 1
            inbox.clear()
        await subscriber.close()


@pytest.mark.parametrize(
    "kinds_of_four",
    [
        ("penstock",) * 4,
        ("penstock", "penstock", "official", "official"),
        ("penstock", "official", "official", "penstock"),
    ],
    ids="-".join,
)
async def test_two_clusters_of_two_servers_are_one_subject_space(
    clusters: SuperCluster, kinds_of_four: tuple[str, str, str, str]
) -> None:
    a1 = await clusters.add(kinds_of_four[0], "A1", "A")
    a2 = await clusters.add(kinds_of_four[1], "A2", "A", routes=[a1])
    b1 = await clusters.add(kinds_of_four[2], "B1", "B", to=[a1])
    b2 = await clusters.add(kinds_of_four[3], "B2", "B", routes=[b1])
    await connected(a1, a2)
    await connected(b1, b2)
    await joined(a1, b1)
    await joined(a2, b2)
    members = (a1, a2, b1, b2)
    for far in members:
        service = await clusters.client(far)
        inbox = await collect(service, "all")
        await answer(service, "svc", b"yes")
        for near in members:
            publisher = await clusters.client(near)
            await heard(publisher, "all", inbox)
            await publisher.publish("all", b"1")
            await until(lambda inbox=inbox: len(inbox) == 1)
            await answered(publisher, "svc")
            for _ in range(5):
                client = await clusters.client(near)
                assert (await client.request("svc", b"?", timeout=2)).data == b"yes _INBO"
                await client.close()
            assert len(inbox) == 1
            inbox.clear()
        await service.close()
