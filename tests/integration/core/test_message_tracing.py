"""Message traces (ADR-41): the same events for the same publishes, on ours and on the official server."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocol import headers
from penstock.protocol.s2_stream import S2Reader
from penstock.server.config.directives import load
from tests.support.conf_servers import login
from tests.support.rawnats import RawMessage, RawNats

pytestmark = pytest.mark.feature("core.message-tracing")

CONF = """
system_account: S
accounts {
  S { users: [ {user: s, password: s} ] }
  A {
    users: [
      {user: a, password: a}
      {user: d, password: d, permissions: {publish: {deny: ["no", "dest.no"]}, subscribe: {deny: ["deny.x"]}}}
    ]
    jetstream: enabled
    mappings: { m.one: m.two, jm.a: js.mapped }
    exports: [ {service: "svc", allow_trace: true}, {service: "closed"}, {stream: "st.>"} ]
  }
  B {
    users: [ {user: b, password: b} ]
    msg_trace: { dest: "b.trace", sampling: "100%" }
    imports: [
      {service: {account: A, subject: svc}, to: b.svc}
      {service: {account: A, subject: closed}, to: b.closed}
      {stream: {account: A, subject: "st.>"}, prefix: "in", allow_trace: true}
    ]
  }
  C { users: [ {user: c, password: c} ], imports: [ {stream: {account: A, subject: "st.>"}} ] }
}
"""
DEST = ("Nats-Trace-Dest", "dest")
ONLY = ("Nats-Trace-Only", "true")
PARENT = ("TraceParent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
Fields = tuple[tuple[str, str], ...]


class Scene:
    """Clients by name, each with what it has got; closed at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: dict[str, RawNats] = {}
        self._sid = 100

    def __getitem__(self, user: str) -> RawNats:
        if user not in self._clients:
            self._clients[user] = login(self._port, user, name=f"{user} app")
        return self._clients[user]

    def listen(self, user: str, *lines: str) -> None:
        for line in lines:
            self._sid += 1
            self[user].send(f"SUB {line} {self._sid}\r\n".encode())
        self[user].flush()

    def publish(self, user: str, subject: str, *fields: tuple[str, str], reply: str = "",
                payload: bytes = b"x") -> None:  # fmt: skip
        block = "".join(f"{name}: {value}\r\n" for name, value in fields)
        header = f"NATS/1.0\r\n{block}\r\n".encode()
        words = f"HPUB {subject} {reply + ' ' if reply else ''}{len(header)} {len(header) + len(payload)}\r\n"
        self[user].send(words.encode() + header + payload + b"\r\n")

    def trace(self, user: str, subject: str, *fields: tuple[str, str], **more: Any) -> list[dict[str, Any]]:
        """The events of a publish; who publishes listens to `dest` first of all."""
        self.publish(user, subject, *fields, **more)
        while True:
            message = self[user].message()
            if message.subject in (b"dest", b"b.trace"):
                break
        page = json.loads(message.payload)
        assert page["server"]["name"]
        assert all("ts" in event for event in page["events"])
        return [{k: v for k, v in event.items() if k not in ("ts", "cid")} for event in page["events"]]

    def got(self, user: str) -> list[RawMessage]:
        client = self[user]
        client.send(b"PING\r\n")
        found = []
        while (line := client.line()) != b"PONG":
            if line[:4] in (b"MSG ", b"HMSG"):
                words = line.split()
                size = int(words[-1])
                header = int(words[-2]) if line[:1] == b"H" else 0
                body = client.exactly(size + 2)[:size]
                reply = words[3] if len(words) == 5 + (line[:1] == b"H") else b""
                found.append(RawMessage(words[1], words[2], reply, body[:header], body[header:]))
        return found

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def scene(port: int) -> Iterator[Scene]:
    made = Scene(port)
    made.listen("a", "dest")
    made.listen("b", "b.trace")
    yield made
    made.close()


def came_in(subject: str, user: str = "a", account: str = "A", **more: Any) -> dict[str, Any]:
    return {"type": "in", "kind": 0, "name": f"{user} app", "acc": account, "subj": subject, **more}


def went_out(sub: str, user: str, **more: Any) -> dict[str, Any]:
    return {"type": "eg", "kind": 0, "name": f"{user} app", "sub": sub, **more}


def test_a_trace_shows_what_no_client_gets_with_its_headers(scene: Scene) -> None:
    scene.publish("a", "foo", DEST, ("X", "1"), ("X", "2"))
    page = json.loads(scene["a"].message().payload)
    assert page["request"] == {"header": {"Nats-Trace-Dest": ["dest"], "X": ["1", "2"]}, "msgsize": 48}
    assert page["events"][0]["cid"] > 0
    assert "hops" not in page


@pytest.mark.parametrize("only", [(), (ONLY,)])
def test_a_trace_names_who_gets_a_message(scene: Scene, only: Fields) -> None:
    scene.listen("d", "foo.x", "foo.x q", "foo.*")
    events = scene.trace("a", "foo.x", DEST, *only)
    assert events[0] == came_in("foo.x")
    assert {json.dumps(event, sort_keys=True) for event in events[1:]} == {
        json.dumps(event, sort_keys=True)
        for event in (went_out("foo.x", "d"), went_out("foo.x", "d", queue="q"), went_out("foo.*", "d"))
    }
    assert len(scene.got("d")) == (0 if only else 3)


def test_a_trace_says_why_a_client_gets_nothing(scene: Scene) -> None:
    scene.listen("d", "deny.*")
    reported = "Not delivered because subscription denies this subject"
    assert scene.trace("a", "deny.x", DEST) == [came_in("deny.x"), went_out("deny.*", "d", error=reported)]
    quiet = login(scene._port, "a", name="quiet", echo=False)
    quiet.subscribe("foo", 1)
    header = b"NATS/1.0\r\nNats-Trace-Dest: dest\r\n\r\n"
    quiet.send(b"HPUB foo %d %d\r\n%s\r\n" % (len(header), len(header), header))
    quiet.flush()
    event = json.loads(scene["a"].message().payload)["events"][1]
    assert event["error"] == "Not delivered because of no echo"
    quiet.close()


def test_a_trace_says_what_may_not_be_published(scene: Scene) -> None:
    scene["d"].flush()
    scene.publish("d", "no", DEST)
    reported = 'Permissions Violation for Publish to "no"'
    assert scene["d"].line() == f"-ERR '{reported}'".encode()
    assert json.loads(scene["a"].message().payload)["events"][0]["error"] == reported
    scene.publish("a", "foo", DEST, reply="$JS.ACK.x")
    reported = 'Permissions Violation for Publish with Reply of "$JS.ACK.x"'
    assert scene["a"].line() == f"-ERR '{reported}'".encode()
    assert json.loads(scene["a"].message().payload)["events"][0]["error"] == reported


def test_a_trace_to_where_the_publisher_may_not_publish_stops_the_message(scene: Scene) -> None:
    scene.listen("d", "foo", "dest.no")
    scene.publish("d", "foo", ("Nats-Trace-Dest", "dest.no"))
    assert scene["d"].line() == b"-ERR 'Permissions Violation for Publish to \"dest.no\"'"
    assert scene.got("d") == []


@pytest.mark.parametrize(
    ("fields", "delivered"),
    [
        ((("Nats-Trace-Dest", "dest.*"),), True),
        ((("Nats-Trace-Dest", "dest.*"), ONLY), False),
        ((ONLY,), True),
        ((("nats-trace-dest", "dest"),), True),
        ((("Nats-Trace-Dest", "trace disabled"), ONLY), True),
        ((DEST, ("Nats-Trace-Origin-Account", "X")), True),
        ((DEST, ONLY, ("Nats-Trace-Origin-Account", "X")), False),
        ((PARENT,), True),
    ],
)
def test_what_is_not_traced(scene: Scene, fields: Fields, delivered: bool) -> None:
    scene.listen("d", "foo")
    scene.publish("a", "foo", *fields)
    assert scene.got("a") == []
    messages = scene.got("d")
    assert len(messages) == delivered
    if "Origin" in str(fields) and delivered:
        assert b"Nats-Trace-Dest: trace disabled" in messages[0].header


def test_a_trace_shows_mappings(scene: Scene) -> None:
    assert scene.trace("a", "m.one", DEST) == [came_in("m.one"), {"type": "sm", "to": "m.two"}]


@pytest.mark.parametrize("only", [(), (ONLY,)])
def test_a_traced_request_gets_no_responders(scene: Scene, only: Fields) -> None:
    scene["a"].subscribe("in", 9)
    scene.publish("a", "nobody", DEST, *only, reply="in")
    found: dict[bytes, RawMessage] = {}
    while len(found) < 2:
        message = scene["a"].message()
        found[message.subject] = message
    assert found[b"in"].header == b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"
    assert b"dest" in found


@pytest.mark.parametrize("only", [(), (ONLY,)])
@pytest.mark.parametrize("service", ["svc", "closed"])
def test_a_trace_shows_imported_services_and_goes_on_where_that_is_allowed(
    scene: Scene, service: str, only: Fields
) -> None:
    scene.listen("a", "dest", service)
    scene["b"].subscribe("in", 9)
    reported = [
        came_in(f"b.{service}", "b", "B"),
        {"type": "si", "acc": "A", "from": f"b.{service}", "to": service},
    ]
    if service == "svc":
        reported.append(went_out("svc", "a", acc="A"))
    assert scene.trace("b", f"b.{service}", ("Nats-Trace-Dest", "b.trace"), *only, reply="in") == reported
    requests = scene.got("a")
    assert len(requests) == (0 if only else 1)
    if only:
        answers = [m.header[:12] for m in scene.got("b")]
        assert answers in ([], [b"NATS/1.0 503"])
        return
    assert b"Nats-Trace-Dest: b.trace" not in requests[0].header
    scene["a"].publish(requests[0].reply.decode(), b"answer")
    assert scene["b"].message().payload == b"answer"


@pytest.mark.parametrize("only", [(), (ONLY,)])
def test_a_trace_shows_imported_streams_and_goes_on_where_that_is_allowed(scene: Scene, only: Fields) -> None:
    scene.listen("b", "in.st.x")
    scene.listen("c", "st.x")
    events = scene.trace("a", "st.x", DEST, *only)
    assert events[0] == came_in("st.x")
    exported, closed = {"type": "se", "acc": "B", "to": "in.st.x"}, {"type": "se", "acc": "C", "to": "st.x"}
    assert events[1 + events[1:].index(exported) + 1] == went_out("st.x", "b", acc="B")
    assert closed in events
    assert len(events) == 4
    assert [len(scene.got(user)) for user in "bc"] == ([0, 0] if only else [1, 1])


def test_a_sampled_traceparent_is_traced_where_the_account_wants_it(scene: Scene) -> None:
    assert scene.trace("b", "ex", PARENT, ONLY) == [came_in("ex", "b", "B")]
    for value in ("00-a-b-00", "00-a-01", "00-a-b-1", "00-a-b-xx", "00-a-b-ff"):
        scene.publish("b", "ex", ("traceparent", value))
    assert scene.got("b") == []
    scene["b"].subscribe("mine", 3)
    scene.publish("b", "ex", PARENT, ("Nats-Trace-Dest", "mine"))
    assert scene["b"].message().subject == b"mine"


@pytest.mark.parametrize("encoding", ["gzip", "snappy"])
def test_traces_come_compressed_to_who_can_read_it(scene: Scene, encoding: str) -> None:
    scene.publish("a", "foo", DEST, ("Accept-Encoding", encoding))
    message = scene["a"].message()
    assert headers.value_of(message.header, "Content-Encoding") == encoding.encode()
    if encoding == "gzip":
        body = gzip.decompress(message.payload)
    else:
        reader, body = S2Reader(), b""
        reader.feed(message.payload)
        while (chunk := reader.read()) is not None:
            body += chunk
    assert json.loads(body)["events"][0]["subj"] == "foo"


@pytest.fixture
def streams(scene: Scene) -> Iterator[Scene]:
    def ask(subject: str, body: object = None) -> None:
        assert "error" not in asker.request("$JS.API.STREAM." + subject, body)

    asker = login(scene._port, "a")
    small = {"max_msg_size": 300, "max_msgs": 2, "discard": "new"}
    ask("CREATE.J", {"name": "J", "subjects": ["js.>"], **small})
    ask("CREATE.I", {"name": "I", "subjects": ["ji.>"], "retention": "interest"})
    ask("CREATE.X", {"name": "X", "subjects": ["jx.>"], "subject_transform": {"src": "jx.>", "dest": "t.>"}})
    yield scene
    for name in "JIX":
        ask(f"DELETE.{name}")
    asker.close()


def stored(stream: str, subject: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "js", "stream": stream, **({"subject": subject} if subject else {}), **more}


def acks(scene: Scene) -> list[Any]:
    """What the publisher was answered; the official server stores when it comes to it."""
    probe = login(scene._port, "a")
    probe.request("$JS.API.STREAM.INFO.J")
    probe.close()
    found = []
    for message in scene.got("a"):
        answer = json.loads(message.payload)
        found.append(answer["error"]["err_code"] if "error" in answer else answer["seq"])
    return found


def test_a_trace_shows_streams(streams: Scene) -> None:
    trace = streams.trace
    assert trace("a", "js.a", DEST) == [came_in("js.a"), stored("J", "js.a")]
    assert trace("a", "ji.a", DEST) == [came_in("ji.a"), stored("I", "ji.a", nointerest=True)]
    assert trace("a", "jx.a", DEST) == [came_in("jx.a"), stored("X", "t.a")]
    mapped = {"type": "sm", "to": "js.mapped"}
    assert trace("a", "jm.a", DEST) == [came_in("jm.a"), mapped, stored("J", "js.mapped")]
    probe = login(streams._port, "a")
    message = probe.request("$JS.API.STREAM.MSG.GET.J", {"seq": 1})["message"]
    assert "hdrs" in message
    assert probe.request("$JS.API.STREAM.INFO.J")["state"]["messages"] == 2
    full = stored("J", "js.a", error="maximum messages exceeded")
    assert trace("a", "js.a", DEST) == [came_in("js.a"), full]
    probe.close()


def test_what_is_only_traced_is_not_stored(streams: Scene) -> None:
    streams["a"].subscribe("in", 9)
    assert streams.trace("a", "js.a", DEST, ONLY, reply="in") == [came_in("js.a"), stored("J", "js.a")]
    assert acks(streams) == []
    probe = login(streams._port, "a")
    assert probe.request("$JS.API.STREAM.INFO.J")["state"]["messages"] == 0
    probe.close()


@pytest.mark.parametrize("only", [(), (ONLY,)])
@pytest.mark.parametrize(
    ("fields", "size", "error", "ack"),
    [
        ((), 300, "maximum payload exceeded", 10054),
        ((("Nats-Expected-Last-Sequence", "77"),), 1, "last sequence mismatch: 77 vs 1", 10071),
        ((("Nats-Expected-Stream", "Z"),), 1, "expected stream does not match", 10060),
        ((("Nats-Msg-Id", "1"),), 1, "msgid is duplicate", 1),
        ((("Nats-Rollup", "all"),), 1, "rollup not permitted", 10111),
        ((("Nats-TTL", "5s"),), 1, "message TTL disabled", 10166),
    ],
)
def test_a_trace_says_why_a_stream_refuses(
    streams: Scene, fields: Fields, size: int, error: str, ack: int, only: Fields
) -> None:
    streams.publish("a", "js.a", ("Nats-Msg-Id", "1"))
    streams["a"].subscribe("in", 9)
    streams["a"].flush()
    streams.publish("a", "js.a", DEST, *fields, *only, reply="in", payload=bytes(size))
    found: dict[bytes, Any] = {}
    while len(found) < 2:
        message = streams["a"].message()
        found[message.subject] = json.loads(message.payload)
    event = {k: v for k, v in found[b"dest"]["events"][1].items() if k != "ts"}
    assert event == stored("J", error=error)
    answer = found[b"in"]
    assert ack == (answer["error"]["err_code"] if "error" in answer else answer["seq"])


@pytest.mark.parametrize("subject", ["$JS.API.INFO", "$SYS.REQ.USER.INFO"])
@pytest.mark.parametrize("only", [(), (ONLY,)])
def test_services_of_the_server_are_the_system_accounts(scene: Scene, subject: str, only: Fields) -> None:
    scene["a"].subscribe("in", 9)
    scene.publish("a", subject, DEST, *only, reply="in")
    found: dict[bytes, RawMessage] = {}
    while len(found) < 2:
        message = scene["a"].message()
        found[message.subject] = message
    step = json.loads(found[b"dest"].payload)["events"][1]
    to = re.sub("USER", "USER.A", subject)
    assert (step["type"], step["acc"], step["from"], step["to"]) == ("si", "S", subject, to)
    assert (found[b"in"].header[:12] == b"NATS/1.0 503") == bool(only)


@pytest.mark.parametrize(
    ("block", "reported"),
    [
        ("msg_trace: 'a.*'", 'Trace destination "a.*" is not valid'),
        ("trace_dest: { dest: a, sampling: 0 }", "needs to be [1..100]"),
        ("msg_trace: { dest: a, sampling: 101 }", "needs to be [1..100]"),
        ("msg_trace: { sampling: 5 }", "msg_trace has no dest"),
        ("msg_trace: { dest: a, shape: b }", 'unknown field "shape"'),
    ],
)
def test_what_is_wrong_with_a_trace_destination_is_named(block: str, reported: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"accounts {{ A {{ {block} }} }}")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert reported in str(caught.value)
