"""Corners of streams, and advisories and metrics of consumers, on both servers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nats_servers import KINDS, running_server
from tests.support.rawnats import RawMessage, RawNats

pytestmark = pytest.mark.feature("stream.api", "monitoring.advisories")

SILENCE_S = 0.4
LATER = "2100-01-01T00:00:00Z"
OVER = "2020-01-01T00:00:00Z"
NEVER = "0001-01-01T00:00:00Z"


class Client(RawNats):
    """Answers by a subscription for each request; what else comes meanwhile stays in `heard`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.heard: list[RawMessage] = []

    def ask(self, subject: str, payload: bytes = b"", header: bytes = b"") -> RawMessage:
        self.subscribe("answer", 90)
        if header:
            frame = b"HPUB %s answer %d %d\r\n%s%s\r\n"
            sizes = (len(header), len(header) + len(payload))
            self.send(frame % (subject.encode(), *sizes, header, payload))
        else:
            self.publish(subject, payload, "answer")
        while (message := self.message()).sid != b"90":
            self.heard.append(message)
        self.send(b"UNSUB 90\r\n")
        return message

    def api(self, verb: str, body: object = None) -> Any:
        return json.loads(
            self.ask(f"$JS.API.{verb}", b"" if body is None else json.dumps(body).encode()).payload
        )

    def consumer(self, name: str, **config: object) -> Any:
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        return self.api(f"CONSUMER.CREATE.S.{name}", {"stream_name": "S", "config": config})

    def events(self, number: int) -> list[RawMessage]:
        """What came on sid 1 so far, `number` at least, and nothing behind it."""
        found = [message for message in self.heard if message.sid == b"1"]
        self.heard.clear()
        while len(found) < number:
            found.append(self.message())
        self.sock.settimeout(SILENCE_S)
        with contextlib.suppress(TimeoutError):
            found.append(self.message())
        self.sock.settimeout(10.0)
        return found


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_server(request.param, tmp_path_factory.mktemp("store")) as server:
        yield server.port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    client = Client(port)
    # In memory: the official server may write a deleted consumer's state for the next stream of that name.
    stream = {"name": "S", "subjects": ["s", "t.>"], "storage": "memory"}
    switches = {"allow_direct": True, "allow_msg_schedules": True}
    assert "error" not in client.api("STREAM.CREATE.S", stream | switches)
    yield client
    client.api("STREAM.DELETE.S")
    client.sock.close()


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("value", "total"),
    [(b":5", "5"), (b": 5", "5"), (b":   5", "5"), (b": -3", "-3"), (b": +05", "5"),
     (b":  5 ", None), (b": 5 ", None), (b": \t5", None), (b": 5\t", None), (b": + 5", None)],
)  # fmt: skip
def test_an_increment_is_a_number_to_its_last_byte(value: bytes, total: str | None, client: Client) -> None:
    client.api(
        "STREAM.CREATE.C", {"name": "C", "subjects": ["c"], "storage": "memory", "allow_msg_counter": True}
    )
    answer = json.loads(client.ask("c", header=block(b"Nats-Incr" + value)).payload)
    client.api("STREAM.DELETE.C")
    assert answer.get("val") == total
    assert answer.get("error", {}).get("err_code") == (10171 if total is None else None)


@pytest.mark.parametrize(
    ("zone", "accepted"), [("Local", True), ("UTC", True), ("local", False), ("Nowhere", False)]
)
def test_a_schedule_may_be_meant_in_the_zone_of_the_machine(
    zone: str, accepted: bool, client: Client
) -> None:
    header = block(
        b"Nats-Schedule: 0 0 5 * * *",
        b"Nats-Schedule-Time-Zone: " + zone.encode(),
        b"Nats-Schedule-Target: t.target",
    )
    answer = json.loads(client.ask("t.schedule", b"x", header).payload)
    assert answer.get("error", {}).get("err_code") == (None if accepted else 10223)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"batch": -1, "seq": 1}, b"204 EOB"),
        ({"batch": -5, "next_by_subj": "t.>", "seq": 2}, b"204 EOB"),
        ({"batch": -1, "seq": 9}, b"204 EOB"),
        ({"batch": -1}, b"408 Empty Request"),
    ],
)
def test_a_direct_batch_below_zero_has_an_end_alone(
    asked: dict[str, object], status: bytes, client: Client
) -> None:
    for subject in ("s", "t.1", "t.2"):
        client.ask(subject, b"x")
    answer = client.ask("$JS.API.DIRECT.GET.S", json.dumps(asked).encode())
    assert answer.header.startswith(b"NATS/1.0 " + status + b"\r\n")
    if status.startswith(b"204"):
        pending = {1: 3, 2: 2, 9: 0}[int(str(asked["seq"]))]
        assert b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: 0\r\n" % pending in answer.header


@pytest.mark.parametrize(("count", "end"), [(0, b""), (3, b""), (40, b"NATS/1.0 204\r\n\r\n")])
def test_the_end_of_a_backup_has_a_status_when_a_chunk_was_full(
    count: int, end: bytes, client: Client
) -> None:
    name = f"F{count}"
    assert "error" not in client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["f"]})
    for i in range(count):
        client.ask("f", bytes((i * j * 7919) % 251 for j in range(400)))
    client.subscribe("backup", 1)
    client.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": "backup", "chunk_size": 1024})
    waiting = list(client.heard)
    while True:
        message = waiting.pop(0) if waiting else client.message()
        if message.reply:
            client.publish(message.reply.decode())
        if not message.payload:
            break
    client.heard.clear()
    client.api(f"STREAM.DELETE.{name}")
    assert message.header == end


def test_a_restore_of_garbage_is_refused(client: Client) -> None:
    state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "first_ts": NEVER, "last_ts": NEVER}
    begun = client.api("STREAM.RESTORE.G", {"config": {"name": "G", "subjects": ["g"]}, "state": state})
    answers = [client.ask(begun["deliver_subject"], chunk).payload for chunk in (b"garbage" * 20, b"")]
    error = next(json.loads(answer)["error"] for answer in answers if answer)
    assert (error["code"], error["err_code"]) == (500, 10062)
    assert client.api("STREAM.INFO.G")["error"]["err_code"] == 10059


def pauses(messages: list[RawMessage]) -> list[tuple[bool, str]]:
    reported = [json.loads(message.payload) for message in messages]
    return [(one["paused"], one["pause_until"]) for one in reported]


def test_a_consumer_that_is_created_paused_says_so(client: Client) -> None:
    client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.*.S.p", 1)
    client.consumer("p", pause_until=LATER)
    created, paused = client.events(2)
    assert created.subject.split(b".")[4] == b"CREATED"
    assert pauses([paused]) == [(True, LATER)]


def test_a_consumer_whose_pause_is_over_before_it_is_there_says_nothing(client: Client) -> None:
    client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.p", 1)
    client.consumer("p", pause_until=OVER)
    assert client.events(0) == []


def test_the_end_of_a_pause_names_its_time(client: Client) -> None:
    client.consumer("p")
    client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.p", 1)
    for body in ({"pause_until": LATER}, {"pause_until": LATER}, {}, {}, {"pause_until": LATER}):
        client.api("CONSUMER.PAUSE.S.p", body)
    client.api("CONSUMER.PAUSE.S.p", {"pause_until": OVER})
    assert pauses(client.events(4)) == [(True, LATER), (False, NEVER), (True, LATER), (False, OVER)]


@pytest.mark.parametrize(
    ("policy", "acks", "sampled"),
    [
        ("explicit", [(0, b"+ACK"), (0, b"+ACK")], [1]),
        ("explicit", [(0, b""), (1, b"+NXT"), (2, b"+TERM")], [1, 2]),
        ("explicit", [(0, b"-NAK {\"delay\": 60000000000}"), (1, b"+WPI"), (2, b"+ACK")], [3]),
        ("all", [(2, b"+ACK")], []),
    ],
)  # fmt: skip
def test_an_ack_makes_one_metric_and_nothing_else_does(
    policy: str, acks: list[tuple[int, bytes]], sampled: list[int], client: Client
) -> None:
    client.consumer("m", ack_policy=policy, sample_freq="100%")
    for _ in range(3):
        client.ask("s", b"x")
    client.subscribe("pulled", 2)
    client.publish("$JS.API.CONSUMER.MSG.NEXT.S.m", b"3", "pulled")
    delivered = [client.message() for _ in range(3)]
    client.send(b"UNSUB 2\r\n")
    client.subscribe("$JS.EVENT.METRIC.CONSUMER.ACK.S.m", 1)
    client.flush()
    for at, body in acks:
        client.publish(delivered[at].reply.decode(), body)
    found = [json.loads(message.payload)["stream_seq"] for message in client.events(len(sampled))]
    assert found == sampled
