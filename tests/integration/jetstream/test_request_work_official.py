"""Requests that name thousands of subjects, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.conf_servers import running_as_configured
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.scanner import frame

pytestmark = pytest.mark.feature("stream.long-requests")

COUNT = 4000


@pytest.fixture(scope="module", params=KINDS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawNats]:
    folder: Path = tmp_path_factory.mktemp("work")
    with running_as_configured(request.param, "jetstream {}", folder) as port:
        client = RawNats(port)
        yield client
        client.close()


def create(client: RawNats, name: str, subjects: list[str], **config: Any) -> dict[str, Any]:
    client.request(f"$JS.API.STREAM.DELETE.{name}")
    return client.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **config})


def test_thousands_of_subjects_are_a_stream_unless_two_of_them_overlap(client: RawNats) -> None:
    many = [f"many.{n}" for n in range(COUNT)]
    answer = create(client, "MANY", many)
    assert answer["config"]["subjects"] == many
    error = create(client, "OTHER", ["other", f"many.{COUNT - 1}"])["error"]
    assert (error["code"], error["err_code"]) == (400, 10065)
    error = create(client, "MANY", [*many, "b", "many.*", "b"])["error"]
    assert (error["code"], error["err_code"]) == (500, 10052)
    assert error["description"] == 'subject "many.0" overlaps with "many.*"'


def test_thousands_of_filters_are_a_consumer_unless_one_covers_another(client: RawNats) -> None:
    create(client, "S", ["s.>"])
    many = [f"s.{n}" for n in range(COUNT)]

    def consumer(filters: list[str]) -> dict[str, Any]:
        config = {"durable_name": "C", "ack_policy": "explicit", "filter_subjects": filters}
        return client.request("$JS.API.CONSUMER.DURABLE.CREATE.S.C", {"stream_name": "S", "config": config})

    assert consumer([*many, "s.*"])["error"]["err_code"] == 10138
    assert consumer([*many, "s.7"])["error"]["err_code"] == 10138
    assert consumer([*many, "*.x.y", "s.*.y.z"])["config"]["filter_subjects"][:-2] == many


def test_origins_shared_in_layers_are_no_circle(client: RawNats) -> None:
    for side in "xy":
        create(client, f"L0{side}", [f"layer.{side}"])
    for layer in range(1, 5):
        below = [{"name": f"L{layer - 1}{side}"} for side in "xy"]
        for side in "xy":
            assert "error" not in create(client, f"L{layer}{side}", [], sources=below)
    circle = {"name": "L0x", "subjects": ["layer.x"], "sources": [{"name": "L4y"}]}
    error = client.request("$JS.API.STREAM.UPDATE.L0x", circle)["error"]
    assert (error["err_code"], error["description"]) == (10052, "detected cycle")


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_msgs": 7}, (7, 1994, 4)),
        ({"max_bytes": 1000}, (25, 1976, 4)),
        ({"max_msgs_per_subject": 2}, (8, 1993, 4)),
        ({"max_msgs_per_subject": 3, "max_msgs": 10}, (10, 1991, 4)),
        ({"max_msgs": 7, "discard": "new"}, (2000, 1, 4)),
    ],
    ids=str,
)
def test_an_update_is_answered_when_what_is_above_its_limits_is_gone(
    client: RawNats, limits: dict[str, Any], left: tuple[int, int, int]
) -> None:
    create(client, "SHRINK", ["shrink.>"])
    for n in range(2000):
        client.publish(f"shrink.{n % 4}", b"x")
    client.request("shrink.0", {})
    client.request("$JS.API.STREAM.MSG.DELETE.SHRINK", {"seq": 2001})
    config = {"name": "SHRINK", "subjects": ["shrink.>"], **limits}
    for state in (
        client.request("$JS.API.STREAM.UPDATE.SHRINK", config)["state"],
        client.request("$JS.API.STREAM.INFO.SHRINK")["state"],
    ):
        assert (state["messages"], state["first_seq"], state["num_subjects"]) == left
        assert state["last_seq"] == 2001


@pytest.mark.parametrize(("kind", "first_seq"), [("sub", 1), ("all", 2001)])
def test_no_read_after_the_ack_of_a_roll_up_finds_what_it_replaced(
    client: RawNats, kind: str, first_seq: int
) -> None:
    create(client, "ROLL", ["roll.>"], allow_rollup_hdrs=True)
    client.publish("roll.1", b"x")
    for _ in range(1999):
        client.publish("roll.0", b"x")
    block = b"NATS/1.0\r\nNats-Rollup: %s\r\n\r\n" % kind.encode()
    client.subscribe("_R.roll", 7)
    client.send(frame("roll.0", b"new", block, "_R.roll"))
    while (message := client.message()).sid != b"7":
        pass
    assert json.loads(message.payload)["seq"] == 2001
    state = client.request("$JS.API.STREAM.INFO.ROLL", {"subjects_filter": ">"})["state"]
    counts = {"roll.0": 1, "roll.1": 1} if kind == "sub" else {"roll.0": 1}
    assert state["subjects"] == counts and state["first_seq"] == first_seq
