"""Unused consumers go when their thresholds say so, on both servers.

Pull requests that expire tell the time: their 408 and the advisory about the consumer arrive on one
connection, in the order in which the server sent them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("consumer.inactive-threshold")

MS = 1_000_000
DELETED = b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S."


def consumer(nats: RawNats, name: str, **config: Any) -> None:
    body = {"stream_name": "S", "config": {"name": name, "ack_policy": "explicit", **config}}
    answer = nats.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body)
    assert "error" not in answer, answer


def await_times(nats: RawNats, *expires_ms: int) -> None:
    """Requests that expire after so long, on subjects that say when."""
    for ms in expires_ms:
        body = json.dumps({"batch": 1, "expires": ms * MS}).encode()
        nats.publish("$JS.API.CONSUMER.MSG.NEXT.S.CLOCK", body, f"time.{ms}")


def events(nats: RawNats, count: int) -> list[str]:
    """What happened: names of consumers that went, and times that came."""
    found = []
    while len(found) < count:
        message = nats.message()
        if message.subject.startswith(DELETED):
            found.append(message.subject.removeprefix(DELETED).decode())
        elif b"408" in message.header:
            found.append(message.subject.decode())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_consumer_goes_a_threshold_after_its_last_listener(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as server:
        nats = RawNats(server.port)
        assert "error" not in nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        consumer(nats, "CLOCK", durable_name="CLOCK")
        nats.subscribe("deliver.brief", 1)
        nats.subscribe("deliver.long", 2)
        consumer(nats, "brief", deliver_subject="deliver.brief", inactive_threshold=200 * MS)
        consumer(nats, "long", deliver_subject="deliver.long", inactive_threshold=500 * MS)
        nats.subscribe(DELETED.decode() + "*", 3)
        nats.subscribe("time.*", 4)
        nats.send(b"UNSUB 1\r\nUNSUB 2\r\n")
        await_times(nats, 100, 350, 650)
        assert events(nats, 5) == ["time.100", "brief", "time.350", "long", "time.650"]
        nats.close()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_not_acked_yet_keep_a_pull_consumer(kind: str, tmp_path: Path) -> None:
    """Its user may work on them for an ack wait. The official server adds up to a second to thresholds."""
    with running_server(kind, tmp_path) as server:
        nats = RawNats(server.port)
        assert "error" not in nats.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        for name in ("CLOCK", "busy", "done"):
            config = {"durable_name": name, "inactive_threshold": 0 if name == "CLOCK" else 100 * MS}
            consumer(nats, name, **config, ack_wait=3000 * MS, filter_subject=f"s.{name}")
        nats.subscribe(DELETED.decode() + "*", 3)
        nats.subscribe("time.*", 4)
        for name in ("busy", "done"):
            nats.publish(f"s.{name}")
            nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b"1", f"time.{name}")
        replies = [nats.message().reply.decode() for _ in range(2)]
        nats.publish(next(reply for reply in replies if ".done." in reply), b"+ACK")
        await_times(nats, 2000)
        assert events(nats, 3) == ["done", "time.2000", "busy"]
        nats.close()
