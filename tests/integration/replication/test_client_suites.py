"""What the cluster tests of the official clients rely on: servers that are started by flags, find each other
within moments, and take a stream with three replicas at once. On penstock and on the official server.

The flags and waiting times are those of nats.py and of the server packages of nats.py and nats.rs; nats.c
tries to create its stream ten times, 100 ms apart.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error as NatsError

from penstock.testing.clusters.reserved_ports import free_port
from tests.support.nats_servers import KINDS, until
from tests.support.replicated_clusters import api_request, command_of

pytestmark = [pytest.mark.feature("cluster.discovery"), pytest.mark.feature("stream.replicas")]

READY_S = 40.0


@pytest.fixture(params=KINDS)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Three servers, started by flags."""
    ports, routed = [[free_port() for _ in range(3)] for _ in range(2)]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in routed)
    processes = []
    try:
        for place, (port, route) in enumerate(zip(ports, routed, strict=True)):
            flags = [
                "-a", "127.0.0.1", "-p", str(port), "-n", f"node{place}", "--cluster_name", "cluster",
                "--cluster_listen" if place % 2 else "--cluster", f"nats://127.0.0.1:{route}",
                "--routes", routes, "-js", "--store_dir", str(tmp_path / str(place)),
            ]  # fmt: skip
            with (tmp_path / f"{place}.log").open("wb") as log:
                command = [*command_of(request.param), *flags]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path))
        yield [f"nats://127.0.0.1:{port}" for port in ports]
    finally:
        for one in processes:
            one.kill()
        for one in processes:
            one.wait()


async def test_servers_that_are_started_by_flags_become_a_cluster(urls: list[str]) -> None:
    clients: list[Any] = []

    async def listens() -> bool:
        with suppress(NatsError, OSError):
            clients.append(await nats.connect(urls[len(clients)], allow_reconnect=False))
        await asyncio.sleep(0.02)
        return len(clients) == 3

    await until(listens, READY_S)
    try:
        # The first INFO is the one of a client that came before the others were known.
        await until(lambda: all(len(one.servers) == 3 for one in clients), READY_S)
        began = time.monotonic()
        answer: dict[str, Any] = {}

        async def is_created() -> bool:
            body = {"name": "S", "subjects": ["s"], "num_replicas": 3}
            with suppress(NatsError):
                answer.clear()
                answer.update(await api_request(clients[2], "STREAM.CREATE.S", body, timeout_s=5))
            await asyncio.sleep(0.1)
            return bool(answer) and "error" not in answer

        await until(is_created, READY_S)
        print(f"created after {time.monotonic() - began:.2f} s")
        group = answer["cluster"]
        assert (group["name"], len(group["replicas"])) == ("cluster", 2)
        assert group["raft_group"]
        assert group["leader_since"]
        found = (await api_request(clients[0], "STREAM.INFO.S"))["cluster"]
        assert found["system_account"] is True
        assert found["traffic_account"] == "$SYS"
    finally:
        for one in clients:
            await one.close()
