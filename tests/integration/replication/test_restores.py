"""Backups of streams in a cluster, restored in one, on penstock and on the official server."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from typing import Any

import pytest
from nats.errors import Error as NatsError

from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, state_of_consumer
from tests.support.nats_servers import until
from tests.support.rawnats import RawNats
from tests.support.replicated_clusters import ClusterTalk
from tests.support.transfers import Backup, back_up, contents, restore

pytestmark = pytest.mark.feature("cluster.raft")

PROGRESS = {"delivered": 8, "ack_floor": 8, "num_pending": 13, "num_ack_pending": 0}


def raw(talk: ClusterTalk, server: int = 0) -> RawNats:
    """A connection to a server."""
    return RawNats(talk.made.servers[server].port)


async def create_used(talk: ClusterTalk, name: str, replicas: int = 3) -> None:
    """A stream with 20 messages but one that is deleted, and a consumer that has acked 8."""
    await talk.create(name, replicas)
    client = await talk.client()
    for number in range(21):
        await client.request(f"{name}.{number % 3}", b"%d" % number, headers={"Nats-Msg-Id": f"{number}"})
    await talk.ask(f"STREAM.MSG.DELETE.{name}", {"seq": 3})
    config = {"durable_name": "d", "ack_policy": "explicit"}
    answer = await talk.ask(f"CONSUMER.DURABLE.CREATE.{name}.d", {"stream_name": name, "config": config})
    assert "error" not in answer, answer
    load = ClusterLoad(talk, name)
    while len(load.confirmed) < 7:
        await load.fetch(client, 7 - len(load.confirmed), 1.0)


def take_and_delete(talk: ClusterTalk, name: str, leader: int) -> tuple[Backup, list[tuple[Any, ...]]]:
    """A backup of the stream, and what was in it. The stream is deleted."""
    # Elsewhere the first chunk may arrive before the response, and RawNats waits for that first.
    with closing(raw(talk, leader)) as nats:
        backup = back_up(nats, name)
        before = contents(nats, name, backup.state)
        assert nats.request(f"$JS.API.STREAM.DELETE.{name}", {}).get("success")
    return backup, before


def restored(talk: ClusterTalk, backup: Backup, **changes: Any) -> dict[str, Any]:
    with closing(raw(talk, 1)) as nats:
        nats.sock.settimeout(30)
        return restore(nats, backup, **changes)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_backup_is_restored_with_replicas_and_consumers(talk: ClusterTalk, replicas: int) -> None:
    name = f"SAVED{replicas}"
    await create_used(talk, name, replicas)
    assert await state_of_consumer(talk, name, "d") == PROGRESS
    backup, before = await asyncio.to_thread(take_and_delete, talk, name, await talk.leader(name))
    answer = await asyncio.to_thread(restored, talk, backup)
    assert "error" not in answer, answer
    assert (answer["config"]["num_replicas"], answer["state"]["messages"]) == (replicas, 20)
    await talk.whole(name)

    async def has_all() -> bool:
        group = (await talk.info(name))["cluster"]
        return "desired" not in group and len(group.get("replicas", ())) == replicas - 1

    await until(has_all, 30)
    with closing(raw(talk)) as nats:
        assert await asyncio.to_thread(contents, nats, name, backup.state) == before
    await until(lambda: is_restored(talk, name), 40)
    stored = await assert_equal_replicas(talk, name)
    assert [one.seq for one in stored] == [seq for seq in range(1, 22) if seq != 3]
    client = await talk.client()
    ack = await client.request(f"{name}.0", b"new", timeout=5)
    assert b'"seq":22' in ack.data.replace(b" ", b"")


async def is_restored(talk: ClusterTalk, name: str) -> bool:
    """Whether the consumer is where it was. The official server may take ten seconds until it has one."""
    with suppress(NatsError, KeyError):
        return await state_of_consumer(talk, name, "d") == PROGRESS
    return False


async def test_a_restore_in_place_of_a_stream_is_refused(talk: ClusterTalk) -> None:
    await create_used(talk, "TAKEN")
    with closing(raw(talk, await talk.leader("TAKEN"))) as nats:
        backup = await asyncio.to_thread(back_up, nats, "TAKEN")
        body = {"config": backup.config, "state": backup.state}
        answer = await asyncio.to_thread(nats.request, "$JS.API.STREAM.RESTORE.TAKEN", body)
        assert answer["error"]["err_code"] == 10130
        other = {**backup.config, "name": "OTHER", "subjects": ["other"], "num_replicas": 5}
        body = {"config": other, "state": backup.state}
        answer = await asyncio.to_thread(nats.request, "$JS.API.STREAM.RESTORE.OTHER", body)
        assert answer["error"]["err_code"] == 10005


async def test_half_an_archive_leaves_nothing_behind(talk: ClusterTalk, kind: str) -> None:
    if kind == "official":
        pytest.skip("the official server ends such a restore without an answer in time")
    await create_used(talk, "HALF")
    backup, _ = await asyncio.to_thread(take_and_delete, talk, "HALF", await talk.leader("HALF"))
    half = backup._replace(data=backup.data[: len(backup.data) // 2])
    answer = await asyncio.to_thread(restored, talk, half)
    assert answer["error"]["err_code"] == 10062
    assert (await talk.ask("STREAM.INFO.HALF"))["error"]["err_code"] == 10059
    answer = await asyncio.to_thread(restored, talk, backup)
    assert "error" not in answer, answer
