"""A stream that another account uses by imports, from each server of a cluster; penstock and the official
server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy
from nats.errors import TimeoutError as NatsTimeout

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import ClusterTalk, api_request, replicated_cluster

CONFIG = """
accounts {
    $SYS { users: [{user: sys, password: sys}] }
    APP {
        jetstream: enabled, users: [{user: app, password: app}]
        exports: [{service: "$JS.API.>", response_type: stream}, {stream: "deliver.>"}, {service: "$JS.FC.>"}]
    }
    USER {
        jetstream: enabled, users: [{user: user, password: user}]
        imports: [
            {service: {account: APP, subject: "$JS.API.>"}, to: "APP.API.>"}
            {stream: {account: APP, subject: "deliver.>"}}
            {service: {account: APP, subject: "$JS.FC.>"}}
        ]
    }
}
no_auth_user: app
"""


@pytest.fixture(scope="module", params=KINDS)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    with replicated_cluster(
        request.param, tmp_path_factory.mktemp("shared"), config=lambda _: CONFIG
    ) as made:
        yield made


@pytest.fixture
async def talk(running: SyncProcessCluster) -> AsyncIterator[ClusterTalk]:
    """A stream S of account APP with 20 messages."""
    made = ClusterTalk(running)
    await made.create("S")
    client = await made.client()
    for number in range(20):
        await client.request(f"S.{number % 2}", b"%d" % number)
    try:
        yield made
    finally:
        await made.close()


async def fetched(client: NatsPy, consumer: str, count: int) -> list[bytes]:
    """What a pull request of account USER gets."""
    inbox = client.new_inbox()
    messages = await client.subscribe(inbox)
    body = json.dumps({"batch": count, "expires": 2_000_000_000}).encode()
    await client.publish(f"APP.API.CONSUMER.MSG.NEXT.S.{consumer}", body, reply=inbox)
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = await messages.next_msg(timeout=3)
            if message.headers and "Status" in message.headers:
                break
            found.append(message.data)
    except NatsTimeout:
        pass
    await messages.unsubscribe()
    return found


@pytest.mark.feature("security.accounts")
@pytest.mark.parametrize("server", [0, 1, 2])
async def test_a_pull_request_through_an_import_gets_messages_at_every_server(
    talk: ClusterTalk, server: int
) -> None:
    client = await talk.client(server, user="user", password="user")
    name = f"c{server}"
    config = {"durable_name": name, "ack_policy": "none"}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    answer = json.loads((await client.request(f"APP.API.CONSUMER.CREATE.S.{name}", body, timeout=10)).data)
    assert "error" not in answer, answer
    found: list[bytes] = []
    async with asyncio.timeout(30):
        while len(found) < 9:  # the official server answers with a time-out before the consumer has a leader
            found += await fetched(client, name, 3)
    assert found == [b"%d" % number for number in range(9)]


@pytest.mark.feature("sourcing.external")
async def test_mirrors_and_sources_of_another_accounts_stream_have_everything(talk: ClusterTalk) -> None:
    client = await talk.client(1, user="user", password="user")
    external = {"api": "APP.API", "deliver": "deliver.here"}
    origin = {"name": "S", "external": external}
    kinds: dict[str, dict[str, Any]] = {"M": {"mirror": origin}, "T": {"sources": [origin]}}
    for name, fields in kinds.items():
        body = {"name": name, "num_replicas": 3, **fields}
        assert "error" not in await api_request(client, f"STREAM.CREATE.{name}", body)

    async def are_whole() -> bool:
        infos = [await api_request(client, f"STREAM.INFO.{name}") for name in kinds]
        return [one["state"]["messages"] for one in infos] == [20, 20]

    await until(are_whole, 30)
    for name in kinds:
        await api_request(client, f"STREAM.DELETE.{name}")
