"""What idle streams with three replicas and three consumers each cost every server.

Only on penstock: the official server needs minutes to make as many, and then a quarter of a core. A
thousand are a row of the benchmark (`make bench ARGS="--only idle"`), which has the machine for itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats.errors import TimeoutError as NatsTimeout

from penstock.testing.clusters.server_process import ServerProcess
from tests.support.replicated_clusters import ClusterTalk, api_request, replicated_cluster

pytestmark = [pytest.mark.cluster_faults, pytest.mark.slow, pytest.mark.feature("cluster.raft")]

STREAMS = 300
CONSUMERS = 3
AT_ONCE = 20
SETTLED_S = 20.0
MEASURED_S = 20.0
CORE_MAX = 0.05
MESSAGES_PER_S_MAX = 100
SEGMENTS = re.compile(r"data_segs_out:(\d+)")


async def make_all(client: Any, requests: list[tuple[str, dict[str, Any]]]) -> None:
    """Requests of the API, some at a time."""
    for at in range(0, len(requests), AT_ONCE):
        some = requests[at : at + AT_ONCE]
        answers = await asyncio.gather(*(make(client, subject, body) for subject, body in some))
        failed = [one for one in answers if "error" in one]
        assert failed == []


async def make(client: Any, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """Asks again without an answer: one that another leader was about to give is lost with its leadership."""
    for _ in range(5):
        with suppress(NatsTimeout):
            return await api_request(client, subject, body, timeout_s=10)
    raise AssertionError(f"no answer to {subject}")


def used_s(server: ServerProcess) -> float:
    """CPU time of a server so far."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sent(server: ServerProcess) -> int:
    """TCP segments with data that a server has sent: without load, its messages to the others."""
    found = subprocess.run(["ss", "-tinHpO"], capture_output=True, text=True, check=True).stdout
    own = [line for line in found.splitlines() if f"pid={server.pid}," in line]
    return sum(int(number) for line in own for number in SEGMENTS.findall(line))


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss counts the messages")
async def test_hundreds_of_idle_streams_cost_little(tmp_path: Path) -> None:
    with replicated_cluster("penstock", tmp_path) as made:
        talk = ClusterTalk(made)
        try:
            client = await talk.client(0)
            began = time.monotonic()
            fields = {"num_replicas": 3, "storage": "file"}
            await make_all(
                client,
                [
                    (f"STREAM.CREATE.I{i}", {"name": f"I{i}", "subjects": [f"idle.{i}"], **fields})
                    for i in range(STREAMS)
                ],
            )
            await make_all(
                client,
                [
                    (
                        f"CONSUMER.DURABLE.CREATE.I{i}.c{c}",
                        {
                            "stream_name": f"I{i}",
                            "config": {"durable_name": f"c{c}", "ack_policy": "explicit"},
                        },
                    )
                    for i in range(STREAMS)
                    for c in range(CONSUMERS)
                ],
            )
            print(f"made in {time.monotonic() - began:.0f} s")
        finally:
            await talk.close()
        await asyncio.sleep(SETTLED_S)
        before = [(used_s(one), sent(one)) for one in made.servers]
        began = time.monotonic()
        await asyncio.sleep(MEASURED_S)
        took_s = time.monotonic() - began
        for one, (used, messages) in zip(made.servers, before, strict=True):
            core = (used_s(one) - used) / took_s
            rate = (sent(one) - messages) / took_s
            print(f"{one.name}: {core:.1%} of a core, {rate:.0f} messages/s")
            assert core < CORE_MAX
            assert rate < MESSAGES_PER_S_MAX
