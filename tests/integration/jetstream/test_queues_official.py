"""What waits in a stream or in the API's queue, and what is above the limits, on both servers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("stream.request-queues")

ROUNDS = 300
TOO_MANY = {"code": 429, "err_code": 10167, "description": "too many requests"}


def create(client: RawNats, **config: object) -> None:
    body = {"name": "S", "subjects": ["s.>"], **config}
    assert "error" not in client.request("$JS.API.STREAM.CREATE.S", body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_above_max_buffered_size_is_refused_and_one_below_is_stored(
    kind: str, tmp_path: Path
) -> None:
    with running_as_configured(kind, "jetstream { max_buffered_size: 100 }", tmp_path) as port:
        client = RawNats(port)
        create(client, storage="memory", no_ack=True)
        client.send(b"SUB r 1\r\n")
        client.publish("s.a", b"x" * 97, "r")
        message = client.message()
        assert message.header == b"NATS/1.0 429 Too Many Requests\r\n\r\n"
        assert json.loads(message.payload) == {"error": TOO_MANY, "stream": "S", "seq": 0}
        client.publish("s.a", b"x" * 96, "r")  # subject and reply count as well
        client.flush()
        deadline = time.monotonic() + 10
        while client.request("$JS.API.STREAM.INFO.S")["state"]["messages"] < 1:
            assert time.monotonic() < deadline
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_publishes_at_once_some_are_refused_where_few_may_wait(kind: str, tmp_path: Path) -> None:
    with running_as_configured(kind, "jetstream { max_buffered_msgs: 5 }", tmp_path) as port:
        client = RawNats(port)
        create(client, storage="memory")
        client.send(b"SUB r 1\r\n" + b"PUB s.a r 1\r\nx\r\n" * 2000)
        acks = [json.loads(client.message().payload) for _ in range(2000)]
        refused = [ack for ack in acks if "error" in ack]
        assert refused and all(ack["error"] == TOO_MANY for ack in refused)
        assert len(refused) < 2000
        state = client.request("$JS.API.STREAM.INFO.S")["state"]
        assert state["messages"] == 2000 - len(refused)
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_requests_that_wait_are_dropped_above_the_limit_and_an_advisory_tells_how_many(
    kind: str, tmp_path: Path
) -> None:
    conf = """
        server_name: srv, system_account: SYS
        accounts { SYS { users: [{user: sys, password: sys}] }, A { jetstream: enabled, users: [{user: a, password: a}] } }
        jetstream { sync: always%s, request_queue_limit: 100, info_queue_limit: 2 }
    """  # noqa: E501
    where = f', store_dir: "{tmp_path}"' if kind == "penstock" else ""  # the official one has a flag for it
    with running_as_configured(kind, conf % where, tmp_path) as port:
        watcher = RawNats(port, user="sys", **{"pass": "sys"})
        watcher.subscribe("$JS.EVENT.ADVISORY.API.LIMIT_REACHED", 1)
        watcher.flush()
        client = RawNats(port, user="a", **{"pass": "a"})
        create(client)
        client.subscribe("r.*", 1)
        for _ in range(ROUNDS):
            client.send(b"PUB s.a 1\r\nx\r\n" + b"PUB $JS.API.STREAM.INFO.S r.a 0\r\n\r\n" * 40)
            client.flush()
        advisory = json.loads(watcher.message().payload)
        assert advisory["type"] == "io.nats.jetstream.advisory.v1.api_limit_reached"
        assert advisory["server"] == "srv"
        assert advisory["dropped"] >= 1
        assert {"id", "timestamp"} < advisory.keys()
        watcher.close()
        client.close()
