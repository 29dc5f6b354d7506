"""Advisories and metrics of JetStream, compared with the official server's: kinds and fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.advisories")

# What the official server says of the same deeds; `client` and `server` describe themselves.
EXPECTED = {
    "api_audit": {"client", "request", "response", "server", "subject"},
    "stream_action": {"action", "stream"},
    "consumer_action": {"action", "consumer", "stream"},
    "consumer_ack": {"ack_time", "consumer", "consumer_seq", "deliveries", "stream", "stream_seq"},
    "max_deliver": {"consumer", "deliveries", "stream", "stream_seq"},
}
COMMON = {"type", "id", "timestamp"}


@pytest.mark.parametrize("kind", KINDS)
def test_advisories_have_the_official_kinds_and_fields(kind: str, tmp_path: Path) -> None:
    """Stream and consumer actions, API audit, a sampled ack, a message given up."""
    with running_server(kind, tmp_path) as server:
        listener, client = RawNats(server.port), RawNats(server.port)
        listener.subscribe("$JS.EVENT.>", 1)
        listener.flush()
        client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory"})
        config = {"durable_name": "C", "ack_policy": "explicit", "max_deliver": 1, "sample_freq": "100%"}
        create = {"stream_name": "S", "config": {**config, "ack_wait": 200_000_000}}
        assert "error" not in client.request("$JS.API.CONSUMER.CREATE.S.C", create)
        for _ in range(2):
            assert client.request("s")["stream"] == "S"
        client.subscribe("_INBOX.pull", 5)
        client.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":2}', "_INBOX.pull")
        acked = client.message().reply.decode()
        client.message()
        client.publish(acked, b"+ACK")
        client.flush()
        found: dict[str, dict[str, Any]] = {}
        while found.keys() != EXPECTED.keys():
            event = json.loads(listener.message().payload)
            prefix, name = event["type"].rsplit(".", 1)
            assert prefix in ("io.nats.jetstream.advisory.v1", "io.nats.jetstream.metric.v1")
            found.setdefault(name, event)
        listener.close()
        client.close()
    for name, fields in EXPECTED.items():
        missing = (COMMON | fields) - found[name].keys()
        assert not missing, (name, missing)
        assert found[name].keys() - COMMON - fields <= {"domain"}, name
    assert found["stream_action"]["action"] == found["consumer_action"]["action"] == "create"
    assert found["max_deliver"]["deliveries"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_that_go_with_their_stream_have_their_advisories(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as server:
        listener, client = RawNats(server.port), RawNats(server.port)
        client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory"})
        for name in ("A", "B"):
            config = {"stream_name": "S", "config": {"durable_name": name, "ack_policy": "explicit"}}
            assert "error" not in client.request(f"$JS.API.CONSUMER.CREATE.S.{name}", config)
        listener.subscribe("$JS.EVENT.ADVISORY.*.DELETED.>", 1)
        listener.flush()
        client.request("$JS.API.STREAM.DELETE.S")
        reported = [listener.message().subject.decode() for _ in range(3)]
        listener.close()
        client.close()
    assert sorted(reported) == [
        "$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.A",
        "$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.B",
        "$JS.EVENT.ADVISORY.STREAM.DELETED.S",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pin_that_is_given_and_taken_names_the_account(kind: str, tmp_path: Path) -> None:
    with running_server(kind, tmp_path) as server:
        listener, client = RawNats(server.port), RawNats(server.port)
        client.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "memory"})
        config = {
            "durable_name": "C", "ack_policy": "explicit", "priority_policy": "pinned_client",
            "priority_groups": ["g"], "priority_timeout": 60_000_000_000,
        }  # fmt: skip
        made = client.request("$JS.API.CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        assert "error" not in made
        listener.subscribe("$JS.EVENT.ADVISORY.CONSUMER.>", 1)
        listener.flush()
        client.subscribe("_INBOX.pull", 5)
        client.publish(
            "$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"group":"g","expires":9000000000}', "_INBOX.pull"
        )
        client.flush()
        client.request("s")
        client.request("$JS.API.CONSUMER.UNPIN.S.C", {"group": "g"})
        events = [json.loads(listener.message().payload) for _ in range(2)]
        listener.close()
        client.close()
    kinds = [event["type"].rpartition(".")[2] for event in events]
    assert kinds == ["consumer_group_pinned", "consumer_group_unpinned"]
    assert {event["account"] for event in events} == {"$G"}
    assert events[1]["reason"] == "admin"
