"""Consumers message by message: what both servers refuse, answer and deliver, and with which codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.rawnats import RawMessage, RawNats

pytestmark = pytest.mark.feature("consumer.api", "consumer.create-update")

SECOND = 1_000_000_000
MS = 1_000_000
NAMES = "consumer{} name can not contain '.', '*', '>', '\\', '/'"
EXPLICIT = {"ack_policy": "explicit"}


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawNats]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        nats = RawNats(server.port)
        yield nats
        nats.close()


@pytest.fixture
def nats(shared: RawNats) -> Iterator[RawNats]:
    """A stream S on `s.>`; its connection listens on `in.>`.

    In memory: the official server may write the state of a consumer of a stream that was deleted into the
    directory of the next one of that name.
    """
    config = {"name": "S", "subjects": ["s.>"], "storage": "memory"}
    assert "error" not in shared.request("$JS.API.STREAM.CREATE.S", config)
    shared.send(b"SUB in.> 50\r\n")
    yield shared
    shared.send(b"UNSUB 50\r\n")
    assert shared.request("$JS.API.STREAM.DELETE.S")["success"]


def ask(nats: RawNats, subject: str, config: dict[str, Any], stream: str = "S", **more: Any) -> Any:
    """The answer to a request below CONSUMER."""
    return nats.request(f"$JS.API.CONSUMER.{subject}", {"stream_name": stream, "config": config, **more})


def code(answer: Any) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def await_answer(nats: RawNats, subject: str) -> RawMessage:
    while True:
        message = nats.message()
        if message.subject.decode() == subject:
            return message


def heard(nats: RawNats) -> list[RawMessage]:
    """What came before the answer to a request sent now."""
    got = []
    nats.publish("$JS.API.INFO", b"", "in.fence")
    while (message := nats.message()).subject != b"in.fence":
        got.append(message)
    return got


def info(nats: RawNats, name: str) -> Any:
    return nats.request(f"$JS.API.CONSUMER.INFO.S.{name}")


def fetch(nats: RawNats, name: str, count: int) -> list[str]:
    """Reply subjects of the next messages."""
    nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.{name}", b"%d" % count, "in.fetch")
    return [nats.message().reply.decode() for _ in range(count)]


@pytest.mark.parametrize(
    ("config", "again"),
    [
        ({"name": "c"}, 10148),  # the default threshold, which was not asked for, makes a difference there
        ({"name": "c", "inactive_threshold": 9 * SECOND}, 0),
        ({"durable_name": "c"}, 0),
    ],
)
def test_a_consumer_is_created_twice(nats: RawNats, config: dict[str, Any], again: int) -> None:
    assert code(ask(nats, "CREATE.S.c", {**EXPLICIT, **config}, action="create")) == 0
    assert code(ask(nats, "CREATE.S.c", {**EXPLICIT, **config}, action="create")) == again
    assert code(ask(nats, "CREATE.S.c", {**EXPLICIT, **config})) == 0


def test_a_pedantic_creation_says_what_the_stream_limits(nats: RawNats) -> None:
    limits = {"inactive_threshold": 5 * SECOND, "max_ack_pending": 10}
    stream = {"name": "L", "subjects": ["l"], "consumer_limits": limits}
    assert "error" not in nats.request("$JS.API.STREAM.CREATE.L", stream)

    def made(**config: Any) -> str:
        answer = ask(nats, "CREATE.L.c", {**EXPLICIT, "name": "c", **config}, "L", pedantic=True)
        assert code(answer) in (0, 10157)
        return str(answer.get("error", {}).get("description", ""))

    text = "pedantic mode: {} must be set if it's configured in stream limits"
    assert made() == text.format("max_ack_pending")
    assert made(inactive_threshold=SECOND) == text.format("max_ack_pending")
    assert made(max_ack_pending=5) == text.format("inactive_threshold")
    assert made(max_ack_pending=5, inactive_threshold=SECOND) == ""
    assert nats.request("$JS.API.STREAM.DELETE.L")["success"]


@pytest.mark.parametrize("form", ["CREATE.S.{}", "CREATE.S", "DURABLE.CREATE.S.{}"])
@pytest.mark.parametrize("name", ["a/b", "a\\b", "a*b", "*", ">", "a>"])
def test_names_have_no_special_characters(nats: RawNats, form: str, name: str) -> None:
    field = "durable_name" if form.startswith("DURABLE") else "name"
    error = ask(nats, form.format(name), {**EXPLICIT, field: name})["error"]
    if "/" in name or "\\" in name:
        assert (error["err_code"], error["description"]) == (
            10127, "Consumer name can not contain path separators"
        )  # fmt: skip
    else:
        assert (error["err_code"], error["description"]) == (10052, NAMES.format(""))


def test_an_ephemeral_that_was_given_its_name_has_none_in_its_configuration(nats: RawNats) -> None:
    made = ask(nats, "CREATE.S", EXPLICIT)
    assert made["name"] and "name" not in made["config"]
    assert "name" not in info(nats, made["name"])["config"]
    named = ask(nats, "CREATE.S", {**EXPLICIT, "name": "n"})
    assert named["config"]["name"] == "n"


@pytest.mark.parametrize("body", [{"expires": -SECOND}, {"expires": -1, "no_wait": True}])
@pytest.mark.parametrize("messages", [0, 3])
def test_a_pull_that_is_over_before_it_began_gets_its_408(
    nats: RawNats, body: dict[str, Any], messages: int
) -> None:
    ask(nats, "CREATE.S.c", {**EXPLICIT, "durable_name": "c"})
    for _ in range(messages):
        nats.request("s.a", "x")
    nats.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps({"batch": 1, **body}).encode(), "in.pull")
    answer = await_answer(nats, "in.pull")
    assert answer.header.startswith(b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 1\r\n")
    assert info(nats, "c")["num_ack_pending"] == 0


@pytest.mark.parametrize("body", [b"what", b"+ack", b"+ACKx", b" ", b"+WPIx"])
def test_an_ack_subject_answers_a_body_that_is_no_ack(nats: RawNats, body: bytes) -> None:
    ask(nats, "CREATE.S.c", {**EXPLICIT, "durable_name": "c"})
    nats.request("s.a", "x")
    (reply,) = fetch(nats, "c", 1)
    nats.publish(reply, body, "in.answer")
    answer = await_answer(nats, "in.answer")
    assert (answer.header, answer.payload) == (b"", b"")
    found = info(nats, "c")
    assert (found["num_ack_pending"], found["ack_floor"]["stream_seq"]) == (1, 0)


@pytest.mark.parametrize("body", [b"", b"+NXT"])
def test_a_consumer_without_acks_does_not_subscribe_to_them(nats: RawNats, body: bytes) -> None:
    ask(nats, "CREATE.S.c", {"ack_policy": "none", "durable_name": "c"})
    nats.request("s.a", "x")
    (reply,) = fetch(nats, "c", 1)
    nats.publish(reply, body, "in.answer")
    assert await_answer(nats, "in.answer").header.startswith(b"NATS/1.0 503\r\n")


def test_the_floor_stays_at_max_deliver_until_an_ack(nats: RawNats) -> None:
    ask(nats, "CREATE.S.c", {**EXPLICIT, "durable_name": "c", "max_deliver": 1, "ack_wait": 100 * MS})
    for _ in range(2):
        nats.request("s.a", "x")
    nats.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.c", 51)
    fetch(nats, "c", 2)
    for _ in range(2):
        assert b"MAX_DELIVERIES" in nats.message().subject
    nats.send(b"UNSUB 51\r\n")

    def numbers() -> tuple[int, ...]:
        found = info(nats, "c")
        floor, delivered = found["ack_floor"], found["delivered"]
        return delivered["stream_seq"], floor["consumer_seq"], floor["stream_seq"], found["num_ack_pending"]

    assert numbers() == (2, 0, 0, 0)
    nats.request("s.a", "x")
    (reply,) = fetch(nats, "c", 1)
    nats.publish(reply, b"", "in.answer")
    await_answer(nats, "in.answer")
    assert numbers() == (3, 3, 3, 0)


def test_only_members_of_its_group_bind_a_push_consumer(nats: RawNats) -> None:
    for _ in range(3):
        nats.request("s.a", "x")
    nats.send(b"SUB in.group 60\r\nSUB in.group other 61\r\nUNSUB 50\r\nSUB in.fence 50\r\n")
    config = {"durable_name": "c", "deliver_subject": "in.group", "deliver_group": "g", "ack_policy": "none"}
    ask(nats, "CREATE.S.c", config)
    assert heard(nats) == [] and "push_bound" not in info(nats, "c")
    nats.send(b"SUB in.group g 62\r\n")
    got = [nats.message() for _ in range(9)]
    assert sorted(message.sid for message in got) == [b"60"] * 3 + [b"61"] * 3 + [b"62"] * 3
    assert info(nats, "c")["push_bound"]
    nats.send(b"UNSUB 60\r\nUNSUB 61\r\nUNSUB 62\r\n")


def test_a_queue_subscriber_does_not_bind_a_push_consumer_without_a_group(nats: RawNats) -> None:
    nats.request("s.a", "x")
    nats.send(b"SUB in.push g 60\r\nUNSUB 50\r\nSUB in.fence 50\r\n")
    ask(nats, "CREATE.S.c", {"durable_name": "c", "deliver_subject": "in.push", "ack_policy": "none"})
    assert heard(nats) == [] and "push_bound" not in info(nats, "c")
    nats.send(b"SUB in.push 61\r\n")
    assert sorted(nats.message().sid for _ in range(2)) == [b"60", b"61"]
    nats.send(b"UNSUB 60\r\nUNSUB 61\r\n")


def test_a_reset_may_have_unknown_fields_and_is_not_audited(nats: RawNats) -> None:
    ask(nats, "CREATE.S.c", {**EXPLICIT, "durable_name": "c"})
    nats.send(b"SUB $JS.EVENT.ADVISORY.API 60\r\n")
    answer = nats.request("$JS.API.CONSUMER.RESET.S.c", {"seq": 0, "future": 1})
    assert code(answer) == 0 and answer["reset_seq"] == 1
    nats.request("$JS.API.CONSUMER.UNPIN.S.c", {"group": "a", "future": 1})
    audited = [json.loads(one.payload)["subject"] for one in heard(nats) if one.sid == b"60"]
    assert audited == ["$JS.API.CONSUMER.UNPIN.S.c"]
    nats.send(b"UNSUB 60\r\n")


def test_an_unknown_field_of_unpin_is_no_error(nats: RawNats) -> None:
    ask(nats, "CREATE.S.c", {**EXPLICIT, "durable_name": "c"})
    assert code(nats.request("$JS.API.CONSUMER.UNPIN.S.c", {"group": "a", "future": 1})) == 10160


@pytest.mark.parametrize("level", [b"", b"-1", b"+3", b"5", b"6", b"x"])
def test_a_required_api_level_is_read_as_a_number(nats: RawNats, level: bytes) -> None:
    header = b"NATS/1.0\r\nNats-Required-Api-Level: %s\r\n\r\n" % level
    nats.send(b"HPUB $JS.API.STREAM.NAMES in.names %d %d\r\n%s\r\n" % (len(header), len(header), header))
    answer = json.loads(await_answer(nats, "in.names").payload)
    assert code(answer) == (10185 if level in (b"6", b"x") else 0)
