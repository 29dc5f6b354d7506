"""Tags of servers decide where streams go, on penstock and on the official server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from nats.errors import Error as NatsError

from penstock.testing import SyncProcessCluster, sync_cluster
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import ClusterTalk, command_of

pytestmark = pytest.mark.feature("stream.placement")

TAGS = {"a": ["az:1"], "b": ["az:1"], "c": ["az:2"], "d": ["az:3", "!jetstream"]}
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
    """Four servers in three zones, of which one takes no streams."""
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
        wanted = f"{NONE}, exclude tag set, tags not matched ['az:3']"
        code, text, _ = await create("ZONE", 1, placement={"tags": ["az:3"]})
        assert (code, text) == (10005, wanted)
    finally:
        for name in ("TWO", "SAME", "OTHER"):
            with suppress(NatsError):
                await talk.ask(f"STREAM.DELETE.{name}", timeout_s=5)
        await talk.close()


async def knows_all(talk: ClusterTalk) -> None:
    """Until all servers are members of the meta group."""

    async def is_whole() -> bool:
        meta = (await talk.do_page(0, "jsz")).get("meta_cluster") or {}
        return meta.get("cluster_size") == 4 and bool(meta.get("leader"))

    await until(is_whole, 30)
