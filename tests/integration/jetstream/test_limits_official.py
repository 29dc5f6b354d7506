"""`jetstream { limits }`: what it refuses and what it makes of defaults, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.conf_servers import running_as_configured, running_conf
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("operations.jetstream-limits")

CONF = """jetstream { limits {
    duplicate_window: "1m", max_ack_pending: 50, max_request_batch: 5, default_max_consumers: 3
} }"""


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_as_configured(request.param, CONF, tmp_path_factory.mktemp("limits")) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[RawNats]:
    client = RawNats(port)
    yield client
    client.request("$JS.API.STREAM.DELETE.S")
    client.close()


def create(client: RawNats, **config: object) -> dict[str, Any]:
    body = {"name": "S", "subjects": ["s.>"], "storage": "memory", **config}
    return client.request("$JS.API.STREAM.CREATE.S", body)


def consume(client: RawNats, name: str, **config: object) -> dict[str, Any]:
    reported = {"durable_name": name, "ack_policy": "explicit", **config}
    return client.request(f"$JS.API.CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": reported})


def test_a_duplicate_window_is_no_longer_than_the_servers(client: RawNats) -> None:
    error = create(client, duplicate_window=61 * 10**9)["error"]
    assert (error["code"], error["err_code"]) == (500, 10052)
    assert error["description"] == "duplicates window can not be larger then server limit of 1m0s"
    assert create(client)["config"]["duplicate_window"] == 60 * 10**9


def test_a_pedantic_stream_is_refused_when_its_default_window_is_too_long(client: RawNats) -> None:
    error = create(client, pedantic=True)["error"]
    assert error["err_code"] == 10157
    assert error["description"] == "pedantic mode: duplicate window limits are higher than current limits"


def test_what_consumers_leave_open_has_the_servers_limits(client: RawNats) -> None:
    create(client)
    config = consume(client, "c")["config"]
    assert (config["max_ack_pending"], config["max_batch"]) == (50, 5)
    pushed = consume(client, "p", deliver_subject="d")["config"]
    assert pushed["max_ack_pending"] == 50
    assert "max_batch" not in pushed


def test_consumers_do_not_ask_for_more_than_the_server_gives(client: RawNats) -> None:
    create(client)
    error = consume(client, "c", max_ack_pending=51)["error"]
    assert error == {
        "code": 400,
        "err_code": 10121,
        "description": "consumer max ack pending exceeds system limit of 50",
    }
    error = consume(client, "c", max_batch=6)["error"]
    assert error == {
        "code": 400,
        "err_code": 10125,
        "description": "consumer max request batch exceeds server limit of 5",
    }


def test_a_pull_request_for_more_than_the_limit_is_refused(client: RawNats) -> None:
    create(client)
    consume(client, "c")
    client.send(b"SUB got 9\r\n")
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps({"batch": 6}).encode(), "got")
    assert client.message().header.startswith(b"NATS/1.0 409 Exceeded MaxRequestBatch of 5")


def test_a_stream_without_a_limit_has_the_default_number_of_consumers(client: RawNats) -> None:
    create(client)
    for name in "abc":
        assert "error" not in consume(client, name)
    assert consume(client, "d")["error"]["err_code"] == 10026


ACCOUNT = """accounts { A { jetstream { max_file: 1000, max_mem: 1000 }, users: [{user: a, password: p}] } }
no_auth_user: a
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_account_refuses_the_message_that_would_exceed_its_limit(
    at_once: bool, storage: str, kind: str, tmp_path: Path
) -> None:
    with running_conf(kind, ACCOUNT, tmp_path) as port:
        client = RawNats(port)
        assert "error" not in create(client, storage=storage, subjects=["s"])
        client.subscribe("answer.*", 1)
        answers = []
        for i, size in enumerate((200, 200, 200, 500, 100, 10)):
            client.publish("s", b"x" * size, f"answer.{i}")
            if not at_once:
                answers.append(client.message())
        while len(answers) < 6:
            answers.append(client.message())
        client.close()
    codes = [json.loads(answer.payload).get("error", {}).get("err_code") for answer in answers]
    assert codes == [None, None, None, 10002, None, None]
