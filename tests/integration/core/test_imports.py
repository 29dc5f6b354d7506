"""Services and streams across accounts, the same on ours and on the official server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.conf_servers import login
from tests.support.rawnats import RawMessage, RawNats

pytestmark = pytest.mark.feature("security.accounts", "security.permissions")

CONF = """
system_account: S
accounts {
  S { users: [ {user: s, password: s} ] }
  E {
    users: [ {user: e, password: e}, {user: e2, password: e2} ]
    mappings: { old.name: new.name }
    exports: [
      { service: "svc.*.*" }
      { service: "many", response_type: stream }
      { service: "chunks", response_type: chunked }
      { service: "short", response_threshold: "150ms" }
      { service: "old.name" }
      { service: "measured", latency: { sampling: 100, subject: lat } }
      { service: "hurried", latency: { sampling: 100, subject: lat }, response_threshold: "100ms" }
      { service: "traced", latency: { sampling: headers, subject: lat } }
      { stream: "news.>" }
      { stream: "pair.*.*" }
    ]
  }
  M {
    users: [ {user: m, password: m} ]
    exports: [ { service: "mid.>" }, { stream: "news.>" } ]
    imports: [
      { service: {account: E, subject: "svc.*.*"}, to: "mid.*.*" }
      { stream: {account: E, subject: "news.>"} }
    ]
  }
  I {
    users: [ {user: i, password: i}, {user: i2, password: i2} ]
    imports: [
      { service: {account: E, subject: "svc.*.*"}, to: "ask.$2.$1" }
      { service: {account: E, subject: "svc.a.b"}, to: "one" }
      { service: {account: E, subject: "many"} }
      { service: {account: E, subject: "chunks"}, share: true }
      { service: {account: E, subject: "short"} }
      { service: {account: E, subject: "old.name"} }
      { service: {account: E, subject: "measured"}, share: true }
      { service: {account: E, subject: "hurried"} }
      { service: {account: E, subject: "traced"} }
      { service: {account: M, subject: "mid.>"} }
      { stream: {account: E, subject: "news.>"}, prefix: from.e }
      { stream: {account: E, subject: "pair.*.*"}, to: "riap.$2.$1" }
      { stream: {account: M, subject: "news.>"}, to: "far.>" }
    ]
  }
}
"""


class People:
    """Connections by name, closed at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._all: list[RawNats] = []

    def __call__(self, user: str, **connect: object) -> RawNats:
        client = login(self._port, user, **connect)
        self._all.append(client)
        return client

    def close(self) -> None:
        for client in self._all:
            client.close()


@pytest.fixture
def people(port: int) -> Iterator[People]:
    found = People(port)
    yield found
    found.close()


def arrived(client: RawNats) -> list[RawMessage]:
    """The messages that have arrived."""
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


def seen(client: RawNats) -> list[str]:
    """The same as text: subject, sid, payload."""
    return [f"{m.subject.decode()} {m.sid.decode()} {m.payload.decode()}" for m in arrived(client)]


def listening(client: RawNats, *lines: str) -> RawNats:
    for i, line in enumerate(lines, 1):
        client.send(f"SUB {line} {i}\r\n".encode())
    client.flush()
    return client


def info(message: RawMessage) -> dict[str, object]:
    """What the service learns about the client that asks."""
    match = re.search(rb"\r\nNats-Request-Info: (.*?)\r\n", message.header)
    assert match is not None
    found: dict[str, object] = json.loads(match[1])
    return found


def test_a_request_reaches_the_service_under_its_name_and_the_answer_comes_back(people: People) -> None:
    e, i = listening(people("e"), "svc.>"), listening(people("i"), "in.x")
    i.publish("ask.x.y", b"q", "in.x")
    i.flush()
    (request,) = arrived(e)
    assert (request.subject, request.payload) == (b"svc.y.x", b"q")
    assert re.fullmatch(rb"_R_\.\w{6}\.\w{6}", request.reply)
    assert request.header.startswith(b"NATS/1.0\r\nNats-Request-Info: ")
    assert {**info(request), "rtt": 0} == {"acc": "I", "rtt": 0}
    e.publish(request.reply.decode(), b"a")
    e.publish(request.reply.decode(), b"again")
    e.flush()
    assert seen(i) == ["in.x 1 a"]


def test_a_literal_name_stands_for_the_literal_subject(people: People) -> None:
    e, i = listening(people("e"), "svc.>"), people("i")
    i.publish("one", b"1")
    i.flush()
    assert seen(e) == ["svc.a.b 1 1"]


def test_who_asks_keeps_its_headers_and_can_not_forge_who_it_is(people: People) -> None:
    e, i = listening(people("e"), "svc.>"), people("i")
    header = b'NATS/1.0\r\nA: 1\r\nNats-Request-Info: {"acc":"X"}\r\nB: 2\r\n\r\n'
    i.send(b"HPUB ask.x.y %d %d\r\n%sq\r\n" % (len(header), len(header) + 1, header))
    i.flush()
    (request,) = arrived(e)
    assert request.header.startswith(b"NATS/1.0\r\nA: 1\r\nB: 2\r\nNats-Request-Info: {")
    assert info(request)["acc"] == "I"


def test_with_share_the_service_learns_everything(people: People) -> None:
    e, i = listening(people("e"), "chunks"), people("i", name="tester", lang="py", version="1")
    i.publish("chunks", b"")
    i.flush()
    (request,) = arrived(e)
    reported = info(request)
    assert {k: reported[k] for k in ("acc", "user", "name", "lang", "ver", "kind", "client_type")} == {
        "acc": "I", "user": "i", "name": "tester", "lang": "py", "ver": "1", "kind": "Client",
        "client_type": "nats",
    }  # fmt: skip
    assert {"server", "start", "id", "host"} <= set(reported)


def test_a_queue_group_of_servers_shares_the_requests(people: People) -> None:
    servers = [listening(people(user), "svc.*.* q") for user in ("e", "e2")]
    i = people("i")
    for _ in range(40):
        i.publish("ask.x.y", b"")
    i.flush()
    counts = [len(arrived(server)) for server in servers]
    assert sum(counts) == 40
    assert all(counts)


def test_a_request_through_an_import_gets_no_responders(people: People) -> None:
    i = listening(people("i"), "in")
    i.publish("ask.x.y", b"", "in")
    (answer,) = arrived(i)
    assert answer.header == b"NATS/1.0 503\r\nNats-Subject: ask.x.y\r\n\r\n"


@pytest.mark.parametrize("service", ["many", "chunks"])
def test_several_answers_come_until_an_empty_one(people: People, service: str) -> None:
    e, i = listening(people("e"), service), listening(people("i"), "in")
    i.publish(service, b"q", "in")
    i.flush()
    (request,) = arrived(e)
    for payload in (b"1", b"2", b"", b"3"):
        e.publish(request.reply.decode(), payload)
    e.flush()
    assert seen(i) == ["in 1 1", "in 1 2", "in 1 "]


def test_an_answer_may_ask_back(people: People) -> None:
    e, i = listening(people("e"), "svc.>", "e.in"), listening(people("i"), "in")
    i.publish("ask.x.y", b"q", "in")
    i.flush()
    (request,) = arrived(e)
    e.publish(request.reply.decode(), b"which?", "e.in")
    e.flush()
    (answer,) = arrived(i)
    assert answer.subject == b"in"
    assert answer.reply.startswith(b"_R_.")
    i.publish(answer.reply.decode(), b"this")
    i.flush()
    assert seen(e) == ["e.in 2 this"]


def test_mappings_of_the_service_account_apply(people: People) -> None:
    e, i = listening(people("e"), "*.name"), people("i")
    i.publish("old.name", b"q")
    i.flush()
    assert seen(e) == ["new.name 1 q"]


def test_a_service_is_imported_through_a_chain(people: People) -> None:
    e, m, i = listening(people("e"), "svc.>"), listening(people("m"), "mid.>"), listening(people("i"), "in")
    i.publish("mid.x.y", b"q", "in")
    i.flush()
    (request,) = arrived(e)
    assert request.subject == b"svc.x.y"
    assert {k: v for k, v in info(request).items() if k != "rtt"} == {"acc": "I", "svc": "M"}
    assert seen(m) == ["mid.x.y 1 q"]
    e.publish(request.reply.decode(), b"a")
    e.flush()
    assert seen(i) == ["in 1 a"]


def test_an_answer_that_is_late_reaches_no_client(people: People) -> None:
    import time

    e, i = listening(people("e"), "short"), listening(people("i"), "in")
    i.publish("short", b"q", "in")
    i.flush()
    (request,) = arrived(e)
    time.sleep(0.5)  # the server's own timer: there is nothing else to wait for
    e.publish(request.reply.decode(), b"a")
    e.flush()
    assert seen(i) == []


def test_a_stream_is_received_under_its_name(people: People) -> None:
    i, e = listening(people("i"), "from.e.news.*", "riap.*.a", "from.>", "*.*.*.z"), people("e")
    e.publish("news.z", b"1", "r")
    e.publish("news.y.x", b"2")
    e.publish("pair.a.b", b"3")
    e.publish("pair.b.a", b"4")
    e.flush()
    got = arrived(i)
    assert sorted(f"{m.subject.decode()} {m.sid.decode()} {m.payload.decode()}" for m in got) == [
        "from.e.news.y.x 3 2", "from.e.news.z 1 1", "from.e.news.z 3 1", "from.e.news.z 4 1", "riap.b.a 2 3"
    ]  # fmt: skip
    assert {m.reply for m in got if m.payload == b"1"} == {b"r"}


def test_subscriptions_to_an_imported_stream_end(people: People) -> None:
    i, e = listening(people("i"), "from.e.news.>", "riap.*.*"), people("e")
    i.send(b"UNSUB 1\r\n")
    i.flush()
    e.publish("news.a", b"1")
    e.publish("pair.a.b", b"2")
    e.flush()
    assert seen(i) == ["riap.b.a 2 2"]


def test_queue_groups_span_the_accounts_of_a_stream(people: People) -> None:
    i, e = listening(people("i"), "from.e.news.q g"), listening(people("e"), "news.q g")
    for _ in range(60):
        e.publish("news.q", b"")
    counts = [len(arrived(e)), len(arrived(i))]
    assert sum(counts) == 60
    assert all(counts)


def test_a_stream_is_not_passed_on_by_who_imported_it(people: People) -> None:
    m, i, e = listening(people("m"), "news.>"), listening(people("i"), "far.>"), people("e")
    e.publish("news.a", b"1")
    e.flush()
    assert (seen(m), seen(i)) == (["news.a 1 1"], [])
    m.publish("news.b", b"2")
    assert seen(m) == ["news.b 1 2"]
    assert seen(i) == ["far.b 1 2"]


def test_a_service_request_is_not_exported_as_a_stream(people: People) -> None:
    i = listening(people("i"), "from.e.>")
    i.publish("old.name", b"q")
    assert seen(i) == []


def test_a_request_is_measured(people: People) -> None:
    e, i = listening(people("e"), "measured", "lat"), listening(people("i"), "in")
    i.publish("measured", b"q", "in")
    i.flush()
    (request,) = arrived(e)
    e.publish(request.reply.decode(), b"a")
    reported = json.loads(e.message().payload)
    assert reported["type"] == "io.nats.server.metric.v1.service_latency"
    assert reported["status"] == 200
    assert (reported["requestor"]["acc"], reported["requestor"]["user"]) == ("I", "i")
    assert (reported["responder"]["acc"], reported["responder"]["user"]) == ("E", "e")
    assert {"id", "timestamp", "start", "service", "system", "total"} <= set(reported)
    assert reported["total"] >= reported["service"] >= 0
    assert seen(i) == ["in 1 a"]


def test_a_request_without_a_reply_is_measured_as_a_bad_one(people: People) -> None:
    e, i = listening(people("e"), "lat"), people("i")
    i.publish("measured", b"q")
    i.flush()
    reported = json.loads(e.message().payload)
    assert (reported["status"], reported["description"]) == (400, "Bad Request")


def test_a_request_that_no_service_took_is_measured_as_unavailable(people: People) -> None:
    e, i = listening(people("e"), "lat"), people("i")
    i.publish("measured", b"q", "in")
    i.flush()
    reported = json.loads(e.message().payload)
    assert (reported["status"], reported["description"]) == (503, "Service Unavailable")


def test_a_request_whose_answer_is_late_is_measured_as_timed_out(people: People) -> None:
    e, i = listening(people("e"), "lat", "hurried"), listening(people("i"), "in")
    i.publish("hurried", b"q", "in")
    i.flush()
    e.message()
    reported = json.loads(e.message().payload)
    assert (reported["status"], reported["description"]) == (504, "Service Timeout")
    assert (reported["service"], reported["system"], reported["total"]) == (0, 0, 0)
    assert reported["requestor"]["acc"] == "I"
    assert "responder" not in reported


@pytest.mark.parametrize("goes", ["UNSUB 1\r\n", "UNSUB 2\r\n", ""])
def test_a_request_whose_asker_goes_is_measured_as_given_up(people: People, goes: str) -> None:
    """Whether it listened by the reply's name, by a wildcard, or closes."""
    e = listening(people("e"), "measured", "lat")
    i = listening(people("i"), "in.x" if goes != "UNSUB 2\r\n" else "nothing", "in.*" if "2" in goes else "x")
    i.publish("measured", b"q", "in.x")
    i.flush()
    request = e.message()
    if goes:
        i.send(goes.encode())
    else:
        i.close()
    reported = json.loads(e.message().payload)
    assert (reported["status"], reported["description"]) == (408, "Request Timeout")
    assert (reported["service"], reported["system"], reported["total"]) == (0, 0, 0)
    assert reported["start"] < reported["timestamp"]
    i = listening(people("i2"), "in.x")
    e.publish(request.reply.decode(), b"late")
    e.flush()
    assert seen(i) == []
    assert arrived(e) == []


TRACES = {
    "none": ({"X": "1"}, None),
    "uber": ({"Uber-Trace-Id": "a:b:c:1", "Uberctx-X": "1"}, ["Uber-Trace-Id", "Uberctx-X"]),
    "uber off": ({"Uber-Trace-Id": "a:b:c:2"}, None),
    "b3 sampled": ({"X-B3-Sampled": "1", "X-B3-SpanId": "s"}, ["X-B3-Sampled", "X-B3-Spanid"]),
    "b3 off": ({"X-B3-Sampled": "0", "X-B3-TraceId": "t"}, None),
    "b3 id": ({"X-B3-TraceId": "t"}, ["X-B3-Traceid"]),
    "b3": ({"B3": "a-b-1"}, ["B3"]),
    "b3 no": ({"b3": "0"}, None),
    "w3c": ({"traceparent": "00-a-b-01", "tracestate": "x"}, ["Traceparent", "Tracestate"]),
    "w3c off": ({"traceparent": "00-a-b-00"}, None),
}


@pytest.mark.parametrize("trace", TRACES)
def test_headers_ask_for_a_measurement(people: People, trace: str) -> None:
    headers, expected = TRACES[trace]
    e, i = listening(people("e"), "traced", "lat"), people("i")
    block = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    header = f"NATS/1.0\r\n{block}\r\n".encode()
    i.send(b"HPUB traced in %d %d\r\n%sq\r\n" % (len(header), len(header) + 1, header))
    i.flush()
    (request,) = arrived(e)
    e.publish(request.reply.decode(), b"a")
    if expected is None:
        assert arrived(e) == []
    else:
        assert sorted(json.loads(e.message().payload)["header"]) == expected


def test_the_account_page_shows_what_is_shared(people: People) -> None:
    s = people("s")
    e, i = (s.request(f"$SYS.REQ.ACCOUNT.{name}.INFO")["data"] for name in "EI")
    exports = {entry["subject"]: entry for entry in e["exports"]}
    assert exports["svc.*.*"] == {"subject": "svc.*.*", "type": "service", "response_type": "Singleton"}
    assert exports["many"]["response_type"] == "Streamed"
    assert exports["traced"]["service_latency"] == {"sampling": "headers", "results": "lat"}
    assert exports["news.>"] == {"subject": "news.>", "type": "stream"}
    assert len(exports) == 10
    assert e["mappings"] == {"old.name": [{"subject": "new.name", "weight": 100}]}
    imports = {entry["local_subject"]: entry for entry in i["imports"] if entry["account"] != "S"}
    plain = {"invalid": False, "share": False, "tracking": False}
    assert imports["ask.*.*"] == {
        "subject": "svc.*.*", "account": "E", "to": "ask.*.*", "local_subject": "ask.*.*", "type": "service",
        **plain,
    }  # fmt: skip
    assert imports["riap.*.*"] == {
        "subject": "pair.*.*", "account": "E", "local_subject": "riap.*.*", "type": "stream", **plain
    }  # fmt: skip
    assert imports["measured"]["latency"] == {"sampling": 100, "results": "lat"}
    assert imports["measured"]["share"]
    assert len(imports) == 13
