"""Accounts through a server: the same nats.conf parts the same worlds on ours and on the official one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.directives import load
from tests.support.conf_servers import answers, login, official_verdict, received
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.accounts")

CONF = """
accounts {
    A {
        users: [ { user: a, password: a }, { user: a2, password: a2 } ]
        jetstream: enabled
        mappings { m: mapped }
    }
    B {
        users: [ { user: b, password: b } ]
        jetstream: { max_mem: 1M, max_file: 2M, max_streams: 1, max_consumers: 2 }
    }
    C {
        users: [ { user: c, password: c }, { user: free, password: free, permissions: { publish: ">" } } ]
        default_permissions: { publish: "x" }
    }
    L { users: [ { user: l, password: l } ], limits: { max_conn: 1, max_subs: 2 } }
    SYS { users: [ { user: s, password: s } ] }
}
system_account: SYS
no_auth_user: c
"""


def test_a_message_stays_in_its_account(port: int) -> None:
    clients = {name: login(port, name) for name in ("a", "a2", "b", "s")}
    for client in clients.values():
        client.subscribe("news", 1)
        client.flush()
    clients["a"].publish("news")  # received() of this connection comes first, and waits for it
    assert {name: received(client) for name, client in clients.items()} == {
        "a": ["news 1"], "a2": ["news 1"], "b": [], "s": []
    }  # fmt: skip
    for client in clients.values():
        client.close()


def test_mappings_are_those_of_the_account(port: int) -> None:
    for name, subject in (("a", "mapped 1"), ("b", "m 1")):
        client = login(port, name)
        client.subscribe("*", 1)
        client.publish("m")
        assert received(client) == [subject]
        client.close()


def test_streams_of_the_same_name_are_apart(port: int) -> None:
    a, b = login(port, "a"), login(port, "b")
    for client in (a, b):
        config = {"name": "S", "subjects": ["s.>"], "storage": "file", "max_bytes": 1000}
        assert "error" not in client.request("$JS.API.STREAM.CREATE.S", config)
    assert a.request("s.1")["seq"] == 1
    assert a.request("s.1")["seq"] == 2
    assert b.request("s.1")["seq"] == 1
    assert a.request("$JS.API.INFO")["streams"] == 1
    for client in (a, b):
        assert client.request("$JS.API.STREAM.DELETE.S")["success"]
        client.close()


def test_an_account_has_the_jetstream_limits_it_is_given(port: int) -> None:
    b = login(port, "b")
    limits = b.request("$JS.API.INFO")["limits"]
    assert (limits["max_memory"], limits["max_storage"]) == (1_000_000, 2_000_000)
    assert (limits["max_streams"], limits["max_consumers"]) == (1, 2)
    one = {"name": "ONE", "subjects": ["one"], "storage": "memory", "max_bytes": 1000}
    two = {"name": "TWO", "subjects": ["two"], "storage": "memory", "max_bytes": 1000}
    assert "error" not in b.request("$JS.API.STREAM.CREATE.ONE", one)
    assert b.request("$JS.API.STREAM.CREATE.TWO", two)["error"]["err_code"] == 10027
    b.request("$JS.API.STREAM.DELETE.ONE")
    b.close()


@pytest.mark.parametrize("user", ["free", "s"])
def test_jetstream_is_only_where_it_is_enabled(port: int, user: str) -> None:
    client = login(port, user)
    assert client.request("$JS.API.INFO")["error"] == {
        "code": 503, "err_code": 10039, "description": "JetStream not enabled for account"
    }  # fmt: skip
    client.close()


@pytest.mark.parametrize(("user", "account"), [("a", "A"), ("s", "SYS")])
def test_info_tells_a_client_its_account(port: int, user: str, account: str) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile("rwb") as lines:
        lines.readline()
        connect = {"protocol": 1, "verbose": False, "user": user, "pass": user}
        lines.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\nPING\r\n")
        lines.flush()
        reported = [
            json.loads(line[5:]) for line in (lines.readline(), lines.readline()) if line[:4] == b"INFO"
        ]
    assert [(info["remote_account"], info.get("acc_is_sys", False)) for info in reported] == [
        (account, account == "SYS")
    ]


def test_the_no_auth_user_may_be_in_an_account(port: int) -> None:
    client, member = RawNats(port), login(port, "free")
    client.subscribe("hi", 1)
    client.flush()
    member.publish("hi")
    member.flush()
    assert received(client) == ["hi 1"]
    assert answers(client, "PUB y 0\r\n") == ["-ERR 'Permissions Violation for Publish to \"y\"'"]
    client.close()
    member.close()


def test_an_account_limits_its_connections_and_their_subscriptions(port: int) -> None:
    first = login(port, "l")
    with pytest.raises(ConnectionError):
        login(port, "l")
    assert answers(first, "SUB a 1") == answers(first, "SUB b 2") == []
    assert answers(first, "SUB c 3") == ["-ERR 'maximum subscriptions exceeded'"]
    first.close()


@pytest.mark.official
@pytest.mark.parametrize(
    "conf",
    [
        "accounts { A { users: [{user: a, password: a}]}, B { users: [{user: a, password: b}]} }",
        "accounts { A { foo: 1} }",
        'accounts { "$G" { users: [{user: a, password: a}]} }',
        "accounts { A: 1 }",
        "accounts { A { jetstream: { foo: 1 } } }",
        "authorization { users: [{user: a, password: x}] }\naccounts { A { users: [{user: a, pass: a}]} }",
    ],
)
def test_what_is_refused_is_refused_in_the_official_words(conf: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(conf, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert caught.value.message in official_verdict(path)


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("authorization { token: x }\naccounts { A {} }", "Can not have a token and accounts"),
        (
            "authorization { user: x, password: y }\naccounts { A {} }",
            "Can not have a single user/pass and accounts",
        ),
        ("system_account: X", "account missing"),
        ("accounts { S { jetstream: on } }\nsystem_account: S", "Not allowed to enable JetStream"),
        ('accounts { "a b" {} }', "must be one word"),
    ],
)
def test_what_can_not_be_is_refused_by_name(conf: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(conf, encoding="utf-8")
    with pytest.raises(ConfigError, match=text):
        load(str(path))
