"""One server with streams becomes a member of a cluster: nothing of them is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsPy

from penstock.testing.clusters.server_process import HOST, PENSTOCK, ServerProcess
from tests.support.cluster_load import ClusterLoad, assert_equal_replicas, state_of_consumer
from tests.support.nats_servers import until
from tests.support.replicated_clusters import ClusterTalk, api_request, replicated_cluster

pytestmark = pytest.mark.feature("cluster.raft")

ACCOUNTS = """
accounts {
    $SYS { users: [{user: sys, password: sys}] }
    APP { jetstream: enabled, users: [{user: app, password: app}] }
}
no_auth_user: app
"""


async def alone(directory: Path, name: str = "a") -> tuple[ServerProcess, NatsPy]:
    """A server without a cluster, whose store a member of the cluster will have."""
    server = ServerProcess(name, directory, PENSTOCK)
    server.configure(f"""
listen: "{HOST}:{server.port}"
http: "{HOST}:{server.http_port}"
server_name: {name}
jetstream {{ store_dir: "{server.store_dir}" }}
{ACCOUNTS}
""")
    server.launch()
    await server.wait_listening(20)
    return server, await nats.connect(server.url)


async def create(client: NatsPy, name: str, **fields: Any) -> None:
    body = {"name": name, "subjects": [f"{name}.>"], **fields}
    answer = await api_request(client, f"STREAM.CREATE.{name}", body)
    assert "error" not in answer, answer


async def test_streams_of_a_server_are_taken_into_its_cluster_and_scaled(tmp_path: Path) -> None:
    server, client = await alone(tmp_path)
    await create(client, "OLD", max_msgs_per_subject=150, allow_direct=True)
    for number in range(300):
        await client.request(f"OLD.{number % 2}", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
    await api_request(client, "STREAM.MSG.DELETE.OLD", {"seq": 7})
    for durable in ("d", "e"):
        config = {"durable_name": durable, "ack_policy": "explicit"}
        path = f"CONSUMER.DURABLE.CREATE.OLD.{durable}"
        answer = await api_request(client, path, {"stream_name": "OLD", "config": config})
        assert "error" not in answer, answer
    fetched = await client.jetstream().pull_subscribe_bind(stream="OLD", consumer="d")
    for message in await fetched.fetch(20, timeout=5):
        await message.ack_sync()
    await create(client, "MEMORYLESS", retention="workqueue")
    await client.request("MEMORYLESS.1", b"work")
    before = await api_request(client, "STREAM.INFO.OLD")
    await client.close()
    await server.stop()
    with replicated_cluster("penstock", tmp_path) as made:
        talk = ClusterTalk(made)
        try:
            for name in ("OLD", "MEMORYLESS"):
                await until(lambda name=name: asyncio.to_thread(is_led, made, name), 20)
            info = await talk.info("OLD")
            same = ("messages", "bytes", "first_seq", "last_seq", "first_ts", "last_ts", "num_subjects")
            assert {key: info["state"][key] for key in same} == {key: before["state"][key] for key in same}
            assert (info["created"], info["cluster"]["leader"]) == (before["created"], "a")
            wanted = {"delivered": 21, "ack_floor": 21, "num_pending": 279, "num_ack_pending": 0}
            assert await state_of_consumer(talk, "OLD", "d") == wanted
            names = (await talk.ask("CONSUMER.NAMES.OLD"))["consumers"]
            assert sorted(names) == ["d", "e"]
            work = await talk.info("MEMORYLESS")
            assert work["state"]["messages"] == 1
            answer = await talk.ask("STREAM.UPDATE.OLD", {**info["config"], "num_replicas": 3})
            assert "error" not in answer, answer
            await talk.whole("OLD")

            async def is_scaled() -> bool:
                group = (await talk.info("OLD"))["cluster"]
                return "desired" not in group and len(group["replicas"]) == 2

            await until(is_scaled, 30)
            app = await talk.client()
            again = await app.request("OLD.1", b"299", headers={"Nats-Msg-Id": "299"})
            assert json.loads(again.data) == {"stream": "OLD", "seq": 300, "duplicate": True}
            stored = await assert_equal_replicas(talk, "OLD")
            assert [one.seq for one in stored] == [one for one in range(1, 301) if one != 7]
            # Also after all were killed, from what is on the disks.
            for index in range(3):
                await talk.do(made.kill, index)
            for index in range(3):
                await talk.do(made.start_server, index)
            await talk.do(made.wait_ready)
            assert await assert_equal_replicas(talk, "OLD") == stored
            assert await state_of_consumer(talk, "OLD", "d") == wanted
            load = ClusterLoad(talk, "OLD")
            assert await load.fetch(app, 500, 2.0) == 279
        finally:
            await talk.close()


def is_led(made: Any, stream: str) -> bool:
    """Whether a stream has a leader."""
    try:
        return made.leader_of(stream) is not None
    except Exception:  # noqa: BLE001  # not yet
        return False
