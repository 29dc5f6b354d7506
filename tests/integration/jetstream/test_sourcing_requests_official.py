"""What a server's mirrors and sources ask another server for: both give the same consumers.

And requests that are new in nats-server 2.15, as far as one server alone answers them.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from tests.support.conf_servers import running_conf
from tests.support.nats_servers import KINDS, free_port
from tests.support.transcript import Answer, comparable

pytestmark = [pytest.mark.official, pytest.mark.feature("sourcing.external")]

STREAMS = {"L": "limits", "W": "workqueue", "I": "interest"}
REQUEST = {
    "name": "JS_X",
    "ack_policy": "none",
    "ack_wait": 22 * 3600 * 10**9,
    "max_deliver": 1,
    "idle_heartbeat": 10**9,
    "flow_control": True,
    "inactive_threshold": 10**10,
}
HEADERS = {"Nats-Required-Api-Level": "5", "Nats-Stream-Identity": ""}
SINGLE_SUBJECTS = [
    "STREAM.PEER.EVACUATE.L",
    "STREAM.PEER.REMOVE.L",
    "STREAM.CANCEL_MOVE.L",
    "CONSUMER.PEER.EVACUATE.L.c",
    "CONSUMER.PEER.REMOVE.L.c",
]
SILENT = ["META.RESCUE", "SERVER.EVACUATE"]  # for servers of a cluster, and the system account


class Asking:
    """Asks one server, and writes down what it says without what differs by chance."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.heard: list[tuple[str, Answer]] = []

    async def api(self, subject: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        payload = json.dumps(body).encode() if body is not None else b""
        answer = await self.client.request("$JS.API." + subject, payload, timeout=5, headers=headers)
        said = comparable(json.loads(answer.data))
        for one in (said, said.get("config", {})):
            if one.get("name", "").startswith("JS_X-"):
                one["name"] = "JS_X and more"
        identity = "Nats-Stream-Identity" in (answer.headers or {})
        self.heard.append((f"{subject} {body}", (said, identity)))
        return said

    async def consumer(self, stream: str, **config: Any) -> None:
        body = {"stream_name": stream, "config": {**REQUEST, "deliver_subject": f"to.{stream}", **config}}
        await self.api(f"CONSUMER.CREATE.{stream}.JS_X", body, HEADERS)


async def converse(port: int) -> list[tuple[str, Answer]]:
    client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
    asking = Asking(client)
    for name, retention in STREAMS.items():
        config = {"name": name, "subjects": [f"{name.lower()}.>"], "retention": retention}
        await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=5)
        for _ in range(3):
            await client.request(f"{name.lower()}.x", b"1", timeout=5)
    for name in STREAMS:
        await asking.consumer(name, direct=True, sourcing=True)
        await asking.consumer(name, direct=True, sourcing=True, deliver_policy="all")
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": 3}
        await asking.consumer(name, direct=True, sourcing=True, **start)
        await asking.api(f"CONSUMER.NAMES.{name}")
        await asking.api(f"CONSUMER.LIST.{name}")
        await asking.consumer(name, sourcing=True)
        await asking.consumer(name, direct=True)
        wrong = {**HEADERS, "Nats-Stream-Identity": "another"}
        body = {"stream_name": name, "config": {**REQUEST, "deliver_subject": "to", "direct": True}}
        said = await asking.api(f"CONSUMER.CREATE.{name}.JS_Y", body, wrong)
        said["error"]["description"] = said["error"]["description"].partition(":")[0]
    for subject in SINGLE_SUBJECTS:
        await asking.api(subject, {"peer": "x"})
    for subject in SILENT:
        with pytest.raises(nats.errors.TimeoutError):
            await client.request("$JS.API." + subject, b"{}", timeout=0.2)
    await client.close()
    return asking.heard


async def test_both_servers_say_the_same(tmp_path: Path) -> None:
    conf = "jetstream: enabled"
    with (
        running_conf("official", conf, tmp_path / "a") as one,
        running_conf("penstock", conf, tmp_path / "b") as other,
    ):
        official, ours = await asyncio.gather(converse(one), converse(other))
    assert len(official) == len(STREAMS) * 8 + len(SINGLE_SUBJECTS)
    for expected, said in zip(official, ours, strict=True):
        assert said == expected


@pytest.mark.parametrize("kind", KINDS)
def test_varz_tells_of_waits_for_the_disk(kind: str, tmp_path: Path) -> None:
    http = free_port()
    with (
        running_conf(kind, f"jetstream: enabled, http: 127.0.0.1:{http}", tmp_path),
        urllib.request.urlopen(f"http://127.0.0.1:{http}/varz", timeout=10) as answer,
    ):
        page = json.loads(answer.read())
    assert set(page["disk_io_wait_stats"]) == {"waiters", "waits", "wait_time", "max_wait_time"}
