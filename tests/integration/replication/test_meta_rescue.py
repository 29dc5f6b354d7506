"""`META.RESCUE`: a cluster goes on when its majority is lost for good. On both kinds of servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats.errors import TimeoutError as NatsTimeout

from penstock.testing import SyncProcessCluster
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import ClusterTalk, replicated_cluster

pytestmark = pytest.mark.feature("cluster.administration")

LEADER_KNOWN = "JetStream system rescue not applied: raft: leader is known"
BAD_QUORUM = "JetStream system rescue not applied: raft: rescue quorum must be between 1 and current quorum"


async def rescue(client: Any, body: bytes, answers: int) -> list[dict[str, Any]]:
    """Asks all servers, and returns what so many of them answer, by name."""
    inbox = client.new_inbox()
    heard = await client.subscribe(inbox)
    await client.publish("$JS.API.META.RESCUE", body, reply=inbox)
    found = [json.loads((await heard.next_msg(timeout=10)).data) for _ in range(answers)]
    with pytest.raises(NatsTimeout):
        await heard.next_msg(timeout=0.3)
    return sorted(found, key=lambda one: str(one["server"]))


async def test_every_server_says_why_it_needs_no_rescue(talk: ClusterTalk) -> None:
    client = await talk.client(0, user="sys", password="sys")
    found = await rescue(client, b'{"quorum_needed": 1}', 3)
    assert [one["server"] for one in found] == ["a", "b", "c"]
    assert {one["type"] for one in found} == {"io.nats.jetstream.api.v1.meta_rescue_response"}
    assert [one["error"]["err_code"] for one in found] == [10224] * 3
    assert {one["error"]["description"] for one in found} == {LEADER_KNOWN}
    found = await rescue(client, b'{"quorum_needed": 3}', 3)
    assert {one["error"]["description"] for one in found} == {BAD_QUORUM}
    assert [one["error"]["err_code"] for one in await rescue(client, b"", 3)] == [10003] * 3
    user = await talk.client(0)
    with pytest.raises(NatsTimeout):
        await user.request("$JS.API.META.RESCUE", b'{"quorum_needed": 1}', timeout=0.3)


@pytest.fixture(params=KINDS)
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncProcessCluster]:
    """A cluster of its own: two of its servers do not come back."""
    with replicated_cluster(request.param, tmp_path) as made:
        yield made


@pytest.mark.cluster_faults
@pytest.mark.slow
async def test_one_server_goes_on_when_the_others_are_lost_for_good(lost: SyncProcessCluster) -> None:
    talk = ClusterTalk(lost)
    try:
        await goes_on_alone(talk)
    finally:
        await talk.close(repairs=False)


async def goes_on_alone(talk: ClusterTalk) -> None:
    await talk.create("MIRRORED")
    client = await talk.client(0, user="sys", password="sys")
    advisories: list[dict[str, Any]] = []

    async def note(message: Any) -> None:
        advisories.append(json.loads(message.data))

    await client.subscribe("$JS.EVENT.ADVISORY.SERVER.META_RESCUE", cb=note)
    for server in (1, 2):
        await talk.do(talk.made.kill, server)

    async def is_rescued() -> bool:
        answer = await talk.ask("META.RESCUE", {"quorum_needed": 1})
        if "error" not in answer:
            assert (answer["server"], answer["prev_quorum"], answer["new_quorum"]) == ("a", 2, 1)
            return True
        assert answer["error"]["description"] == LEADER_KNOWN
        await asyncio.sleep(0.2)
        return False

    await until(is_rescued, 40)
    await until(lambda: bool(advisories), 10)
    assert advisories[0]["type"] == "io.nats.jetstream.advisory.v1.meta_rescue"
    assert (advisories[0]["prev_quorum"], advisories[0]["new_quorum"]) == (2, 1)

    async def leads_alone() -> bool:
        meta = (await talk.do_page(0, "jsz"))["meta_cluster"]
        return meta.get("leader") == "a" and meta.get("rescue") and meta["quorum_needed"] == 1

    await until(leads_alone, 30)
    for name in ("b", "c"):

        async def is_removed(name: str = name) -> bool:
            with suppress(NatsTimeout):
                answer = await talk.ask("SERVER.REMOVE", {"peer": name}, timeout_s=5)
                return bool(answer.get("success")) or answer["error"]["err_code"] == 10044
            return False

        await until(is_removed, 30)

    async def is_small() -> bool:
        return bool((await talk.do_page(0, "jsz"))["meta_cluster"]["cluster_size"] == 1)

    await until(is_small, 30)
    answer = await talk.ask("STREAM.CREATE.ALONE", {"name": "ALONE", "subjects": ["ALONE.>"]})
    assert "error" not in answer, answer
