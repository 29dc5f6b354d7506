"""Tags of servers decide where streams go and what they move to, and a server leaves the cluster for good; on
penstock and on the official server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from nats.errors import Error as NatsError

from penstock.testing import SyncProcessCluster, sync_cluster
from tests.support.cluster_load import assert_equal_replicas, messages_of
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import ClusterTalk, command_of, publish_sure

pytestmark = pytest.mark.feature("stream.placement")

TAGS = {"a": ["az:1", "Rack:One"], "b": ["az:1"], "c": ["az:2"], "d": ["az:3", "!jetstream"]}
NONE = "no suitable peers for placement"


def config(index: int) -> str:
    return f"""
server_tags: {json.dumps(TAGS["abcd"[index]])}
accounts {{
    $SYS {{ users: [{{user: sys, password: sys}}] }}
    APP {{ jetstream: enabled, users: [{{user: app, password: app}}] }}
}}
no_auth_user: app
"""


@pytest.fixture(scope="module", params=KINDS)
def zones(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncProcessCluster]:
    """Four servers in three zones, of which one takes no streams. The last test removes that one."""
    directory = tmp_path_factory.mktemp(request.param)
    command, jetstream = command_of(request.param), 'unique_tag: "az:"'
    made = sync_cluster(
        4, command=command, jetstream=jetstream, config=config, names="abcd", name="c", directory=directory
    )
    try:
        made.start()
        yield made
    finally:
        made.close()


async def test_replicas_go_to_servers_with_different_tags(zones: SyncProcessCluster) -> None:
    talk = ClusterTalk(zones)
    try:
        await asyncio.wait_for(knows_all(talk), 30)

        async def create(name: str, replicas: int, **fields: Any) -> tuple[int, str, set[str]]:
            body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, **fields}
            answer = await talk.ask(f"STREAM.CREATE.{name}", body)
            error, group = answer.get("error", {}), answer.get("cluster", {})
            members = {group.get("leader", ""), *(one["name"] for one in group.get("replicas", []))} - {""}
            return error.get("err_code", 0), error.get("description", ""), members

        code, _, members = await create("TWO", 2)
        assert (code, "c" in members, len(members)) == (0, True, 2), "one of each zone"
        code, _, members = await create("SAME", 2, placement={"tags": ["az:1"]})
        assert (code, members) == (0, {"a", "b"}), "a tag with the prefix lifts the rule"
        wanted = f"{NONE}, exclude tag set, server tag not unique"
        assert await create("THREE", 3) == (10005, wanted, set())
        code, _, members = await create("OTHER", 1, placement={"tags": ["!az:1"]})
        assert (code, members) == (0, {"c"})
        code, _, members = await create("RACK", 1, placement={"tags": ["Rack:One"]})
        assert (code, members) == (0, {"a"}), "as the configuration has it"
        code, _, members = await create("UNRACKED", 1, placement={"tags": ["az:1", "! RACK:one "]})
        assert (code, members) == (0, {"b"})
        wanted = f"{NONE}, exclude tag set, tags not matched ['az:3']"
        code, text, _ = await create("ZONE", 1, placement={"tags": ["az:3"]})
        assert (code, text) == (10005, wanted)
    finally:
        for name in ("TWO", "SAME", "OTHER", "RACK", "UNRACKED"):
            with suppress(NatsError):
                await talk.ask(f"STREAM.DELETE.{name}", timeout_s=5)
        await talk.close()


@pytest.mark.feature("cluster.administration")
async def test_a_stream_moves_to_the_servers_with_another_tag(zones: SyncProcessCluster) -> None:
    talk = ClusterTalk(zones)
    try:
        await asyncio.wait_for(knows_all(talk), 30)
        await talk.create("MOVES", 1, placement={"tags": ["az:2"]})
        client = await talk.client(0)
        for number in range(50):
            await publish_sure(client, "MOVES.1", b"%d" % number, str(number))
        moved = config_of("MOVES", 1, placement={"tags": ["az:1"]})
        answer = await talk.ask("STREAM.UPDATE.MOVES", moved)
        assert "error" not in answer, answer
        await publish_sure(client, "MOVES.1", b"50", "50")
        await moved_to(talk, "MOVES", {"a"}, {"b"})
        stored = await messages_of(talk, "MOVES")
        assert [one.tag for one in stored] == [str(number) for number in range(51)]
        assert (await talk.ask("STREAM.CANCEL_MOVE.MOVES"))["error"]["err_code"] == 10129
        # Of one request after the other without a pause, the second finds the move in progress.
        back = config_of("MOVES", 1, placement={"tags": ["az:2"]})
        other = config_of("MOVES", 1, placement={"tags": ["!az:2"]})
        first, second = await asyncio.gather(
            talk.ask("STREAM.UPDATE.MOVES", back), talk.ask("STREAM.UPDATE.MOVES", other)
        )
        assert "error" not in first, first
        assert second["error"]["err_code"] == 10124, second
        await moved_to(talk, "MOVES", {"c"})
    finally:
        await talk.close()


@pytest.mark.feature("cluster.administration")
async def test_a_removed_member_of_a_stream_is_replaced(zones: SyncProcessCluster) -> None:
    talk = ClusterTalk(zones)
    try:
        await asyncio.wait_for(knows_all(talk), 30)
        created = await talk.create("PAIR", 2)
        group = created["cluster"]
        first = ({group["leader"], *(one["name"] for one in group["replicas"])} - {"c"}).pop()
        client = await talk.client(0)
        for number in range(50):
            await publish_sure(client, "PAIR.1", b"%d" % number, str(number))
        answer = await talk.ask("STREAM.PEER.REMOVE.PAIR", {"peer": first})
        assert answer.get("success"), answer
        await moved_to(talk, "PAIR", {"c", "b" if first == "a" else "a"})
        stored = await assert_equal_replicas(talk, "PAIR")
        assert [one.tag for one in stored] == [str(number) for number in range(50)]
    finally:
        await talk.close()


@pytest.mark.feature("cluster.administration")
async def test_the_streams_of_an_evacuated_server_move_away(zones: SyncProcessCluster) -> None:
    talk = ClusterTalk(zones)
    try:
        await asyncio.wait_for(knows_all(talk), 30)
        group = (await talk.create("LEAVES", 2))["cluster"]
        first = ({group["leader"], *(one["name"] for one in group["replicas"])} - {"c"}).pop()
        client = await talk.client(2)
        for number in range(50):
            await publish_sure(client, "LEAVES.1", b"%d" % number, str(number))
        answer = await talk.ask("SERVER.EVACUATE", {"peer": first})
        assert answer.get("success"), answer
        await moved_to(talk, "LEAVES", {"c", "b" if first == "a" else "a"})
        stored = await assert_equal_replicas(talk, "LEAVES")
        assert [one.tag for one in stored] == [str(number) for number in range(50)]
        await talk.do(zones.restart, first)  # it takes streams again
    finally:
        await talk.close()


@pytest.mark.feature("cluster.administration")
async def test_a_server_that_is_gone_is_removed_from_the_cluster(zones: SyncProcessCluster) -> None:
    talk = ClusterTalk(zones)
    try:
        await asyncio.wait_for(knows_all(talk), 30)
        await talk.do(zones.kill, 3)
        removed = await asyncio.wait_for(answer_of_a_leader(talk, "SERVER.REMOVE", {"peer": "d"}), 40)
        assert removed.get("success"), removed
        await knows_all(talk, 3)
        again = await talk.ask("SERVER.REMOVE", {"peer": "d"})
        assert again["error"]["err_code"] == 10044, again
        await talk.create("AFTER", 2)
    finally:
        await talk.close(repairs=False)  # d may come again after five minutes


async def answer_of_a_leader(talk: ClusterTalk, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that is sent again: without a meta leader there is none, on both servers, and
    the one that was killed may have led."""
    while True:
        with suppress(NatsError):
            return await talk.ask(subject, body, timeout_s=5)


def config_of(name: str, replicas: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, **fields}


async def moved_to(talk: ClusterTalk, stream: str, *wanted: set[str]) -> None:
    """Until the servers that have a stream are one of these sets, and no change is left."""
    found: set[str] = set()

    async def is_there() -> bool:
        with suppress(NatsError):
            group = (await talk.info(stream, timeout_s=2)).get("cluster") or {}
            others = group.get("replicas") or []
            found.clear()
            found.update({group.get("leader", ""), *(one["name"] for one in others)})
            return found in wanted and all(one["current"] for one in others) and not group.get("desired")
        return False

    try:
        await until(is_there, 40)
    except TimeoutError:
        raise AssertionError(f"stream {stream} is on {found}, expected {wanted}") from None


async def knows_all(talk: ClusterTalk, size: int = 4) -> None:
    """Until all servers are members of the meta group."""

    async def is_whole() -> bool:
        meta = (await talk.do_page(0, "jsz")).get("meta_cluster") or {}
        return meta.get("cluster_size") == size and bool(meta.get("leader"))

    await until(is_whole, 30)
