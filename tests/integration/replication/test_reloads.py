"""Accounts that a reload adds, removes and changes, one server of a cluster after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS, until
from tests.support.reloads import reload_members
from tests.support.replicated_clusters import ClusterTalk, api_request, replicated_cluster

LATER = "LATER { jetstream: enabled, users: [{user: later, password: later}] }"
CONFIG = """
accounts {
    $SYS { users: [{user: sys, password: sys}] }
    APP { jetstream: enabled, users: [{user: app, password: app}] }
    # more
}
no_auth_user: app
"""


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    with replicated_cluster(
        request.param, tmp_path_factory.mktemp("reloads"), config=lambda _: CONFIG
    ) as made:
        yield made


@pytest.fixture
async def talk(running: SyncProcessCluster) -> AsyncIterator[ClusterTalk]:
    made = ClusterTalk(running)
    try:
        yield made
    finally:
        await made.close()
        await reload_members(
            running, lambda text: text.replace(LATER, "# more").replace("disabled", "enabled")
        )


async def add(running: SyncProcessCluster, *members: int) -> None:
    await reload_members(running, lambda text: text.replace("# more", LATER), *members)


async def remove(running: SyncProcessCluster, *members: int) -> None:
    await reload_members(running, lambda text: text.replace(LATER, "# more"), *members)


async def member_of(talk: ClusterTalk, server: int) -> NatsPy:
    """A client of the account that was added."""
    return await talk.client(server, user="later", password="later")


async def found(client: NatsPy, stream: str) -> dict[str, Any]:
    """The info of a stream, as soon as there is one."""
    got: dict[str, Any] = {}

    async def is_found() -> bool:
        with suppress(NatsError):
            got.clear()
            got.update(await api_request(client, f"STREAM.INFO.{stream}", timeout_s=2))
            return "error" not in got and bool(got["cluster"].get("leader"))
        return False

    await until(is_found, 20)
    return got


async def published(client: NatsPy, subject: str) -> dict[str, Any]:
    """The ack of a message, as soon as there is one."""
    got: dict[str, Any] = {}

    async def is_acked() -> bool:
        with suppress(NatsError):
            got.update(json.loads((await client.request(subject, b"x", timeout=2)).data))
            return "error" not in got
        await asyncio.sleep(0.05)
        return False

    await until(is_acked, 20)
    return got


async def until_heard(subscription: Subscription, writer: NatsPy) -> None:
    """Returns when a publish of the writer arrives."""

    async def arrives() -> bool:
        await writer.publish(subscription.subject, b"x")
        with suppress(NatsError):
            return bool(await subscription.next_msg(timeout=0.2))
        return False

    await until(arrives, 10)


async def test_an_account_that_a_reload_adds_has_jetstream_at_each_server(
    running: SyncProcessCluster, talk: ClusterTalk
) -> None:
    """The others learn of the account after the meta leader has announced its interest in it."""
    leader = await talk.do_meta_leader()
    others = [server for server in range(3) if server != leader]
    await add(running, leader)
    await add(running, *others)
    for server in (*others, leader):
        client = await member_of(talk, server)
        name = f"L{server}"
        config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": 3}
        answer = await api_request(client, f"STREAM.CREATE.{name}", config)
        assert "error" not in answer, answer
        assert (await published(client, f"{name}.a"))["seq"] == 1
        assert "error" not in await api_request(client, f"STREAM.DELETE.{name}")


@pytest.mark.parametrize("running", ["penstock"], indirect=True)
async def test_interest_waits_at_a_server_that_gets_the_account_later(
    running: SyncProcessCluster, talk: ClusterTalk
) -> None:
    """The official server drops it: "Unknown account for remote subject"."""
    await add(running, 0)
    reader = await member_of(talk, 0)
    subscription = await reader.subscribe("early")
    await reader.flush()
    await add(running, 1, 2)
    for server in (1, 2):
        writer = await member_of(talk, server)
        await until_heard(subscription, writer)


@pytest.mark.parametrize("running", ["penstock"], indirect=True)
async def test_interest_outlives_an_account_that_one_server_loses_for_a_while(
    running: SyncProcessCluster, talk: ClusterTalk
) -> None:
    await add(running)
    reader = await member_of(talk, 0)
    subscription = await reader.subscribe("kept")
    await reader.flush()
    before = await member_of(talk, 1)
    await until_heard(subscription, before)
    await remove(running, 1)
    await until(lambda: asyncio.sleep(0.01, before.is_closed), 10)
    await add(running, 1)
    after = await member_of(talk, 1)
    await until_heard(subscription, after)


@pytest.mark.parametrize("running", ["penstock"], indirect=True)
async def test_streams_of_an_account_come_back_with_it(
    running: SyncProcessCluster, talk: ClusterTalk
) -> None:
    """On the official server they take no publishes then, until it restarts."""
    await add(running)
    client = await member_of(talk, 1)
    config = {"name": "K", "subjects": ["K.>"], "num_replicas": 3}
    assert "error" not in await api_request(client, "STREAM.CREATE.K", config)
    for number in range(5):
        assert (await published(client, "K.a"))["seq"] == number + 1
    await remove(running)
    await until(lambda: asyncio.sleep(0.01, client.is_closed), 10)
    await add(running)
    client = await member_of(talk, 2)
    info = await found(client, "K")
    assert info["state"]["messages"] == 5
    assert (await published(client, "K.a"))["seq"] == 6
    await whole(client, "K")
    assert "error" not in await api_request(client, "STREAM.DELETE.K")


@pytest.mark.parametrize("running", ["penstock"], indirect=True)
async def test_jetstream_that_an_account_gets_again_has_its_streams(
    running: SyncProcessCluster, talk: ClusterTalk
) -> None:
    """On the official server they take no publishes then, until it restarts."""
    await talk.create("D")
    client = await talk.client()
    await published(client, "D.a")
    for member in range(3):  # the others go on: two of three replicas are there
        await reload_members(running, lambda text: text.replace("enabled", "disabled"), member)
        if member == 0:
            other = await talk.client(1)
            assert (await published(other, "D.a"))["seq"] == 2
    refused = await talk.ask("STREAM.INFO.D")
    assert refused["error"]["err_code"] == 10039
    await reload_members(running, lambda text: text.replace("disabled", "enabled"))
    assert (await found(client, "D"))["state"]["messages"] == 2
    assert (await published(client, "D.a"))["seq"] == 3
    await talk.whole("D")


async def whole(client: NatsPy, stream: str) -> None:
    """All replicas of the stream are current."""

    async def is_whole() -> bool:
        replicas = (await api_request(client, f"STREAM.INFO.{stream}"))["cluster"]["replicas"]
        return len(replicas) == 2 and all(one["current"] for one in replicas)

    await until(is_whole, 20)
