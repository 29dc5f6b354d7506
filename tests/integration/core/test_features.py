"""Core NATS, feature by feature: on the official server and on ours."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.conf_parser import parse
from penstock.server.config.directives import options_of
from tests.support.conf_servers import answers, login, received, running_conf
from tests.support.nats_servers import KINDS
from tests.support.processes import served
from tests.support.rawnats import RawNats

CONF = """
max_payload: 1KB
mappings {
    "orders.*.*": "orders.{{wildcard(2)}}.{{wildcard(1)}}"
    "first": "second", "second": "third"
    "key.*": "part.{{partition(5,1)}}"
    "canary": [ {destination: "canary.old", weight: 98%}, {destination: "canary.new", weight: 2%} ]
}
accounts {
    $G { }
}
"""
PARTS = 5


@pytest.fixture(scope="module", params=KINDS)
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    conf = CONF.split("accounts", 1)[0]
    with running_conf(request.param, conf, tmp_path_factory.mktemp("features")) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[RawNats]:
    client = RawNats(port)
    yield client
    client.close()


@pytest.fixture
def other(port: int) -> Iterator[RawNats]:
    other = RawNats(port)
    yield other
    other.close()


def got(client: RawNats, publisher: RawNats, *subjects: str) -> list[str]:
    """What a client receives of messages on these subjects, as "subject sid"."""
    for subject in subjects:
        publisher.publish(subject, b"x")
    publisher.flush()
    return received(client)


@pytest.mark.feature("core.publish-subscribe")
def test_a_later_subscriber_gets_nothing_of_before(client: RawNats, other: RawNats) -> None:
    """At most once."""
    other.publish("news", b"early")
    other.flush()
    client.subscribe("news", 1)
    client.flush()
    assert got(client, other, "news") == ["news 1"]


@pytest.mark.feature("core.messages")
def test_subject_body_headers_and_reply_arrive_as_they_were_sent(client: RawNats, other: RawNats) -> None:
    """Byte for byte."""
    head = b"NATS/1.0\r\nA: b\r\nA:  c \r\n\r\n"
    body = bytes(range(256))
    client.subscribe("m", 1)
    client.flush()
    other.send(b"HPUB m back %d %d\r\n%s%s\r\n" % (len(head), len(head + body), head, body))
    message = client.message()
    assert (message.subject, message.reply, message.header, message.payload) == (b"m", b"back", head, body)


@pytest.mark.feature("core.subjects")
def test_subjects_differ_in_case_and_may_not_be_malformed(client: RawNats, other: RawNats) -> None:
    client.subscribe("a.B", 1)
    client.flush()
    assert got(client, other, "a.b", "A.B", "a.B") == ["a.B 1"]
    for subject in ("a..b", ".a", "a.", "a.>.b"):
        assert answers(client, f"SUB {subject} 9") == ["-ERR 'Invalid Subject'"]


@pytest.mark.feature("core.wildcard-token")
def test_a_star_stands_for_one_whole_token(client: RawNats, other: RawNats) -> None:
    client.subscribe("time.*.east", 1)
    client.subscribe("fo*", 2)
    client.flush()
    sent = ("time.us.east", "time.us.x.east", "time.east", "foo", "fo*")
    assert got(client, other, *sent) == ["fo* 2", "time.us.east 1"]


@pytest.mark.feature("core.wildcard-tail")
def test_a_greater_sign_stands_for_one_or_more_last_tokens(client: RawNats, other: RawNats) -> None:
    client.subscribe("time.us.>", 1)
    client.flush()
    sent = ("time.us", "time.us.east", "time.us.east.atlanta", "time.eu.x")
    assert got(client, other, *sent) == ["time.us.east 1", "time.us.east.atlanta 1"]


@pytest.mark.feature("core.reserved-subjects")
def test_subjects_of_servers_are_closed_to_clients_and_the_api_is_below_a_dollar(client: RawNats) -> None:
    client.send(b"PUB $NRG.x 0\r\n\r\n")
    assert answers(client, "PUB $GR.x 0\r\n") == [
        "-ERR 'Permissions Violation for Publish to \"$NRG.x\"'",
        "-ERR 'Permissions Violation for Publish to \"$GR.x\"'",
    ]
    assert client.request("$JS.API.INFO")["type"] == "io.nats.jetstream.api.v1.account_info_response"


@pytest.mark.feature("core.request-reply")
def test_a_request_is_answered_at_its_inbox(client: RawNats, other: RawNats) -> None:
    other.subscribe("ask", 1)
    other.flush()
    client.subscribe("_INBOX.x", 2)
    client.publish("ask", b"?", "_INBOX.x")
    request = other.message()
    other.publish(request.reply.decode(), b"!")
    assert client.message().payload == b"!"


@pytest.mark.feature("core.scatter-gather")
def test_every_responder_answers(client: RawNats, port: int) -> None:
    """Scatter and gather."""
    responders = [RawNats(port) for _ in range(3)]
    for responder in responders:
        responder.subscribe("ask.all", 1)
        responder.flush()
    client.subscribe("_INBOX.y", 2)
    client.publish("ask.all", b"?", "_INBOX.y")
    for number, responder in enumerate(responders):
        responder.publish(responder.message().reply.decode(), b"%d" % number)
    assert {client.message().payload for _ in responders} == {b"0", b"1", b"2"}
    for responder in responders:
        responder.close()


@pytest.mark.feature("core.no-responders")
def test_a_request_that_no_client_hears_gets_a_status(client: RawNats) -> None:
    client.subscribe("_INBOX.z", 1)
    client.publish("nobody.here", b"?", "_INBOX.z")
    message = client.message()
    assert message.header == b"NATS/1.0 503\r\nNats-Subject: nobody.here\r\n\r\n"
    assert message.payload == b""


@pytest.mark.feature("core.slow-consumers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_receiver_that_does_not_read_is_closed_and_counted(kind: str, tmp_path: Path) -> None:
    conf = 'max_pending: 2MB\nwrite_deadline: "2s"\nno_fast_producer_stall: true\nhttp: "127.0.0.1:-1"\n'
    with served(kind, tmp_path, conf) as server:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(b'CONNECT {"verbose":false}\r\nSUB x 1\r\nPING\r\n')
            while b"PONG" not in slow.recv(4096):
                pass
            client = RawNats(server.port)
            for _ in range(40):
                client.publish("x", bytes(500_000))
                client.flush()
            server.wait_for("Slow Consumer")
        found = re.search(r"Starting http monitor on (\S+)", server.log)
        assert found is not None
        assert client.request_http(found[1], "/varz")["slow_consumers"] == 1
        client.close()


@pytest.mark.feature("core.queue-groups")
def test_each_message_reaches_one_member_of_a_queue_group(client: RawNats, other: RawNats) -> None:
    for sid in (1, 2, 3):
        client.send(b"SUB work crew %d\r\n" % sid)
    client.subscribe("work", 9)
    client.flush()
    counts = Counter(got(client, other, *["work"] * 300))
    assert counts["work 9"] == 300
    members = [counts[f"work {sid}"] for sid in (1, 2, 3)]
    assert sum(members) == 300
    assert min(members) > 40


@pytest.mark.feature("core.queue-permissions")
@pytest.mark.parametrize("kind", KINDS)
def test_queue_names_have_tokens_that_permissions_see(kind: str, tmp_path: Path) -> None:
    conf = 'authorization { users: [ {user: a, password: a, permissions: {subscribe: ["foo v1.*"]}} ] }'
    with running_conf(kind, conf, tmp_path) as port:
        client = login(port, "a")
        assert answers(client, "SUB foo v1.prod 1") == []
        assert answers(client, "SUB foo v2.prod 2") == [
            '-ERR \'Permissions Violation for Subscription to "foo" using queue "v2.prod"\''
        ]
        client.close()


@pytest.mark.feature("core.lame-duck")
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_going_is_not_ended_by_another_signal(kind: str, tmp_path: Path) -> None:
    """SIGTERM does not cut lame duck mode short, SIGINT does."""
    with served(kind, tmp_path, 'lame_duck_grace_period: "20s"\nlame_duck_duration: "30s"\n') as server:
        client = RawNats(server.port, protocol=1)
        client.flush()
        server.process.send_signal(signal.SIGUSR2)
        while b'"ldm":true' not in client.line():
            pass
        server.process.terminate()
        server.wait_for('Trapped "terminated" signal')
        client.flush()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0
        client.close()


def is_refused(port: int) -> bool:
    """Is a new client let in no further than the socket?"""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as late:
            return not late.recv(1)
    except OSError:
        return True


@pytest.mark.feature("core.topology-updates")
def test_clients_receive_addresses_that_change(tmp_path: Path) -> None:
    """By INFO, to those of protocol 1. (The official server tells its members' addresses this way,
    and an advertised one only to who comes later.)"""
    with served("penstock", tmp_path, 'client_advertise: "one.example:4222"\n') as server:
        client = RawNats(server.port, protocol=1)
        client.flush()
        (tmp_path / "nats.conf").write_text('client_advertise: "two.example:4222"\n')
        server.process.send_signal(signal.SIGHUP)
        line = b""
        while b"two.example:4222" not in line:
            line = client.line()
        assert line.startswith(b"INFO ")
        assert json.loads(line[5:])["connect_urls"] == ["two.example:4222"]
        client.close()


@pytest.mark.feature("core.lame-duck")
@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_notified_before_a_server_goes(kind: str, tmp_path: Path) -> None:
    """INFO has `ldm`, and new clients are refused."""
    with served(kind, tmp_path, 'lame_duck_grace_period: "5s"\nlame_duck_duration: "30s"\n') as server:
        client = RawNats(server.port, protocol=1)
        client.flush()
        server.process.send_signal(signal.SIGUSR2)
        line = b""
        while b'"ldm":true' not in line:
            line = client.line()
        assert is_refused(server.port)
        client.close()


@pytest.mark.feature("core.subject-mapping", "core.mapping-once")
def test_mappings_move_tokens_and_are_applied_once(client: RawNats, other: RawNats) -> None:
    client.subscribe(">", 1)
    client.flush()
    assert got(client, other, "orders.eu.new", "first") == ["orders.new.eu 1", "second 1"]


@pytest.mark.feature("core.partitions")
def test_a_key_has_one_partition(client: RawNats, other: RawNats) -> None:
    """FNV-1a of the token, modulo the number of partitions."""
    client.subscribe("part.*", 1)
    client.flush()
    keys = [f"k{number}" for number in range(40)]
    for key in (*keys, *keys):
        other.publish(f"key.{key}", key.encode())
    other.flush()
    messages = [client.message() for _ in range(80)]
    assert [one.subject for one in messages[:40]] == [one.subject for one in messages[40:]]
    assert [int(one.subject.split(b".")[1]) for one in messages[:40]] == [fnv1a(key) % PARTS for key in keys]


def fnv1a(text: str) -> int:
    found = 0x811C9DC5
    for byte in text.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


@pytest.mark.feature("core.weighted-mapping")
def test_weights_share_messages_out_and_may_not_exceed_all(client: RawNats, other: RawNats) -> None:
    """98 and 2 percent of 10,000, within one percent."""
    client.subscribe("canary.*", 1)
    client.flush()
    counts: Counter[str] = Counter()
    for _ in range(10):
        counts.update(got(client, other, *["canary"] * 1000))
    assert sum(counts.values()) == 10_000
    assert abs(counts["canary.new 1"] - 200) < 100
    with pytest.raises(ConfigError, match="Error adding mapping"):
        options_of(parse("mappings { a: [ {destination: b, weight: 60}, {destination: c, weight: 50} ] }"))


@pytest.mark.feature("core.max-payload")
def test_a_payload_above_the_limit_closes_the_connection(port: int) -> None:
    """What INFO says is allowed."""
    client = RawNats(port)
    assert client.info["max_payload"] == 1024
    client.send(b"PUB x 1024\r\n" + bytes(1024) + b"\r\n")
    client.flush()
    client.send(b"PUB x 1025\r\n" + bytes(1025) + b"\r\n")
    assert client.line() == b"-ERR 'Maximum Payload Violation'"
    with pytest.raises(ConnectionError):
        client.line()
