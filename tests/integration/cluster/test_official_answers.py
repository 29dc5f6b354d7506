"""What the official server answers in a cluster of three: the table that the meta state is tested with, and
the fields of `cluster` and `meta_cluster`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client as NatsPy

from penstock.jetstream.meta.cluster_infos import GroupSight, MemberSight, meta_cluster, stream_cluster
from penstock.protocol.api import encode
from tests.support.clusters import Cluster, clusters
from tests.support.meta_answers import SYSTEM, TABLE, TAGS, MetaAnswers, stream
from tests.support.nats_servers import free_port, until

pytestmark = [pytest.mark.official, pytest.mark.feature("cluster.administration")]
TIMEOUT_S = 15.0  # a change that its group has to carry out


class OfficialCluster:
    """Three official servers with JetStream, and a client of each account."""

    def __init__(self, cluster: Cluster, user: NatsPy, system: NatsPy) -> None:
        self._cluster, self.user, self.system = cluster, user, system

    async def ask(self, subject: str, body: dict[str, Any] | None) -> dict[str, Any]:
        client = self.system if subject.startswith(SYSTEM) else self.user
        data = b"" if body is None else json.dumps(body).encode()
        subject = subject.replace("$G", "APP")
        message = await client.request(f"$JS.API.{subject}", data, timeout=TIMEOUT_S)
        found: dict[str, Any] = json.loads(message.data)
        return found

    async def page(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._cluster.members[0].page(name)
        return found


@pytest.fixture
async def official(tmp_path: Path) -> AsyncIterator[OfficialCluster]:
    async with clusters(tmp_path) as cluster:
        members: list[Any] = []
        for name, tags in TAGS.items():
            top = f"""
                jetstream {{ store_dir: "{tmp_path / name}", max_file_store: 1GB, max_memory_store: 1GB }}
                server_tags: {json.dumps(list(tags))}
                accounts {{
                    $SYS {{ users: [{{user: sys, password: sys}}] }}
                    APP {{ jetstream: enabled, users: [{{user: app, password: app}}] }}
                }}
                no_auth_user: app
            """
            # JetStream in a cluster demands a route; the first member has no other to dial yet.
            alone = "" if members else f'routes: ["nats://127.0.0.1:{free_port()}"]'
            members.append(await cluster.add("official", name, routes=members, top=top, cluster=alone))

        async def has_leader() -> bool:
            pages = [await member.page("jsz") for member in members]
            found = {page.get("meta_cluster", {}).get("leader") for page in pages}
            sizes = {page.get("meta_cluster", {}).get("cluster_size") for page in pages}
            return len(found) == 1 and None not in found and sizes == {3}

        await until(has_leader)
        user = await cluster.client(members[0])
        system = await cluster.client(members[1], user="sys", password="sys")
        found = OfficialCluster(cluster, user, system)

        async def is_ready() -> bool:
            answer = await found.ask("STREAM.CREATE.READY", stream("READY"))
            return "error" not in answer

        await until(is_ready)
        await found.ask("STREAM.DELETE.READY", None)
        yield found


async def test_the_official_server_answers_as_the_table_says(official: OfficialCluster) -> None:
    wrong = []
    for asked in TABLE:
        body, text = asked.body, asked.text
        if body is not None and body.get("placement", {}).get("preferred") == "LEADER":
            leader = (await official.ask("STREAM.INFO.S", None))["cluster"]["leader"]
            body, text = {"placement": {"preferred": leader}}, text.replace("LEADER", leader)
        answer = await official.ask(asked.subject, body)
        error = answer.get("error", {})
        found = (error.get("err_code", 0), error.get("description", ""))
        if found != (asked.code, text):
            wrong.append(f"{asked.subject} {body}: {found}, expected {(asked.code, text)}")
        await asyncio.sleep(0.05 if asked.code else 0.5)
    assert wrong == []


def shape(value: Any) -> Any:
    """The names and types of a JSON value."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


async def test_infos_of_a_cluster_have_the_same_fields(official: OfficialCluster) -> None:
    await official.ask("STREAM.CREATE.S", stream("S"))
    await official.ask("STREAM.CREATE.ONE", stream("ONE", 1))
    ours = MetaAnswers()
    ours.answer("STREAM.CREATE.S", stream("S"))
    ours.answer("STREAM.CREATE.ONE", stream("ONE", 1))
    tables = ours.group.machine.tables
    now = ours.group.now
    seen = MemberSight(is_current=True, heard=now - 5)
    members = dict.fromkeys("ABC", seen)

    async def is_whole() -> bool:
        found = (await official.ask("STREAM.INFO.S", None))["cluster"]
        return all(one["current"] and not one.get("lag") for one in found["replicas"])

    await until(is_whole)
    for name in ("S", "ONE"):
        theirs = (await official.ask(f"STREAM.INFO.{name}", None))["cluster"]
        leader = ours.group.stream(name).group.peers[0]
        sight = GroupSight(own=leader, leader=leader, leader_since=now, members=members)
        mine = stream_cluster(tables, ours.group.stream(name), sight, now)
        assert shape(json.loads(encode(mine))) == shape(theirs)
    group = (await official.ask("STREAM.INFO.S", None))["cluster"]["raft_group"]
    assert len(group) == len(ours.group.stream("S").group.name)
    assert group[:6] == ours.group.stream("S").group.name[:6]
    page = (await official.page("jsz"))["meta_cluster"]
    mine_meta = meta_cluster(tables, "c", GroupSight(own="A", leader="B", members=members), now, voters="ABC")
    theirs_meta = {name: one for name, one in page.items() if name != "snapshot"}
    own_meta = json.loads(encode(mine_meta))
    assert own_meta.pop("snapshot").keys() <= page["snapshot"].keys()
    assert shape(own_meta).keys() == shape(theirs_meta).keys()
    assert shape(own_meta["replicas"])[0].keys() <= shape(theirs_meta["replicas"])[0].keys() | {"lag"}


async def test_a_scale_up_shows_what_is_desired(official: OfficialCluster) -> None:
    await official.ask("STREAM.CREATE.ONE", stream("ONE", 1))
    answer = await official.ask("STREAM.UPDATE.ONE", stream("ONE", 3))
    theirs = answer["cluster"].get("desired")
    ours = MetaAnswers()
    ours.answer("STREAM.CREATE.ONE", stream("ONE", 1))
    ours.answer("STREAM.UPDATE.ONE", stream("ONE", 3))
    present = ours.group.stream("ONE")
    leader = present.group.peers[0]
    sight = GroupSight(own=leader, leader=leader, leader_since=ours.group.now)
    mine = json.loads(encode(stream_cluster(ours.group.machine.tables, present, sight, ours.group.now)))
    if theirs is not None:  # the group may be as wanted before the answer is made
        assert mine["desired"].keys() <= theirs.keys() | {"status"}
        assert shape(mine["desired"]["replicas"]) == shape(theirs["replicas"])
        assert shape(mine["desired"]["origin"]) == shape(theirs["origin"])
