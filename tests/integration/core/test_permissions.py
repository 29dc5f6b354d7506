"""Permissions through a server: one nats.conf, the same words and messages from ours and the official one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import bcrypt
import pytest
from msgspec.structs import replace

from penstock.routing.permissions import PermissionEntry, Permissions, SubjectPermission
from penstock.server.config.server_options import User
from penstock.testing import EmbeddedServer
from tests.support.conf_servers import answers, login, received, running_conf
from tests.support.rawnats import RawNats
from tests.support.reloads import reload

pytestmark = pytest.mark.feature("security.permissions")

Factory = Callable[..., EmbeddedServer]
HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4, prefix=b"2a")).decode()
CONF = f"""
READ_ONLY = {{ publish: {{ deny: ">" }}, subscribe: "a.>" }}
authorization {{
    timeout: 3
    default_permissions {{ publish: "d.>", subscribe: ["d.>", "_INBOX.>"] }}
    users = [
        {{ user: lists, password: lists, permissions: {{
            publish: {{ allow: ["a.*", "b.>"], deny: "b.x.>" }}
            subscribe: {{
                allow: ["foo.*", "bar.>", "q.* workers", "h.> work.*", "lit"]
                deny: ["bar.no.>", "q.z", "h.d work.bad"]
            }}
        }} }}
        {{ username: all, pass: all, permissions: {{ pub: ">", sub: ">" }} }}
        {{ user: denied, password: denied, permissions: {{
            subscribe: {{ deny: ["foo.>", "s q", "t.x.*"] }}
        }} }}
        {{ user: service, password: service, permissions: {{ subscribe: "svc.>", allow_responses: true }} }}
        {{ user: twice, password: twice, permissions: {{
            publish: {{ deny: "r.>" }}, subscribe: "svc.>", allow_responses: {{ max: 2, expires: "1m" }}
        }} }}
        {{ user: brief, password: brief, permissions: {{
            subscribe: "svc.>", allow_responses: {{ max: -1, expires: "1ns" }}
        }} }}
        {{ user: empty, password: empty, permissions: {{ publish: [], subscribe: {{ allow: [] }} }} }}
        {{ user: reader, password: reader, permissions: $READ_ONLY }}
        {{ user: default, password: default }}
        {{ user: hashed, password: "{HASH}" }}
    ]
}}
no_auth_user: default
"""


def publish_refused(subject: str) -> list[str]:
    return [f"-ERR 'Permissions Violation for Publish to \"{subject}\"'"]


def subscribe_refused(subject: str, queue: str = "") -> list[str]:
    group = f' using queue "{queue}"' if queue else ""
    return [f"-ERR 'Permissions Violation for Subscription to \"{subject}\"{group}'"]


@pytest.mark.parametrize(
    ("subject", "allowed"), [("a.x", True), ("a.x.y", False), ("b.x", True), ("b.x.y", False), ("c", False)]
)
def test_publishing_needs_an_allow_and_no_deny(port: int, subject: str, allowed: bool) -> None:
    client = login(port, "lists")
    expected = [] if allowed else publish_refused(subject)
    for _ in range(2):  # the second time from memory
        assert answers(client, f"PUB {subject} 0\r\n") == expected
    client.close()


@pytest.mark.parametrize(
    ("subject", "queue", "allowed"),
    [
        ("foo.x", "", True),
        ("foo.*", "", True),
        (">", "", False),
        ("*", "", False),
        ("bar.>", "", True),
        ("bar.no.x", "", False),
        ("bar.no.>", "", False),
        ("q.1", "", False),
        ("q.1", "workers", True),
        ("q.1", "other", False),
        ("q.z", "workers", False),
        ("h.1", "work.a", True),
        ("h.1", "work", False),
        ("h.1", "work.a.b", False),
        ("h.d", "work.bad", False),
        ("h.d", "work.good", True),
        ("lit", "any", True),
        ("foo..x", "", False),
    ],
)
def test_subscribing_needs_an_allow_and_no_deny(port: int, subject: str, queue: str, allowed: bool) -> None:
    client = login(port, "lists")
    expected = [] if allowed else subscribe_refused(subject, queue)
    assert answers(client, f"SUB {subject} {queue} 1") == expected
    client.close()


def test_a_refused_subscription_gets_no_ok(port: int) -> None:
    client = login(port, "lists", verbose=True)
    assert answers(client, "SUB no 1") == [*subscribe_refused("no"), "+OK"][:1]
    client.close()


def test_what_is_denied_of_a_wildcard_is_not_delivered(port: int) -> None:
    client, publisher = login(port, "denied"), login(port, "all")
    assert answers(client, "SUB foo.x 1") == subscribe_refused("foo.x")
    assert answers(client, "SUB s q 1") == subscribe_refused("s", "q")
    assert answers(client, "SUB t.x.* 1") == subscribe_refused("t.x.*")
    for line in ("SUB > 1", "SUB s r 2", "SUB foo 3", "SUB t.*.* 4"):
        assert answers(client, line) == []
    for subject in ("foo.1", "foo", "s", "t.x.1", "t.y.1", "foo.1", "t.x.1"):
        publisher.publish(subject)
    publisher.flush()
    assert received(client) == ["foo 1", "foo 3", "s 1", "s 2", "t.y.1 1", "t.y.1 4"]
    client.close()
    publisher.close()


@pytest.mark.parametrize(("user", "times"), [("service", 1), ("twice", 2), ("brief", 0)])
def test_a_reply_may_be_answered_as_often_and_long_as_permitted(port: int, user: str, times: int) -> None:
    client, asker = login(port, user), login(port, "all")
    client.subscribe("svc.a", 1)
    assert answers(client, "PUB r.1 0\r\n") == publish_refused("r.1")
    for _ in range(2):  # each request grants again
        asker.publish("svc.a", reply="r.1")
        asker.flush()
        assert client.message().reply == b"r.1"
        for _ in range(times):
            assert answers(client, "PUB r.1 0\r\n") == []
        assert answers(client, "PUB r.1 0\r\n") == publish_refused("r.1")
    client.close()
    asker.close()


def test_permission_to_respond_denies_all_other_publishing(port: int) -> None:
    client = login(port, "twice")
    assert answers(client, "PUB z 0\r\n") == publish_refused("z")
    client.close()


def test_an_empty_list_is_no_list(port: int) -> None:
    client = login(port, "empty")
    assert answers(client, "SUB x 1") == []
    assert answers(client, "PUB y 0\r\n") == []
    client.close()


def test_a_variable_may_hold_permissions(port: int) -> None:
    client = login(port, "reader")
    assert answers(client, "PUB a.x 0\r\n") == publish_refused("a.x")
    assert answers(client, "SUB b 1") == subscribe_refused("b")
    assert answers(client, "SUB a.x 1") == []
    client.close()


def test_who_gives_no_credentials_has_the_permissions_of_the_no_auth_user(port: int) -> None:
    client = RawNats(port)
    assert "auth_required" not in client.info
    assert answers(client, "PUB r 0\r\n") == publish_refused("r")
    assert answers(client, "PUB d.x 0\r\n") == []
    assert answers(client, "SUB r 1") == subscribe_refused("r")
    client.close()


def test_a_bcrypt_password_is_checked(port: int) -> None:
    for _ in range(2):
        client = RawNats(port, user="hashed", **{"pass": "secret"})
        assert answers(client, "PUB d.x 0\r\n") == []
        client.close()
    for wrong in ("Secret", HASH, "", "x" * 100):
        with pytest.raises(ConnectionError):
            RawNats(port, user="hashed", **{"pass": wrong})


def test_subscriptions_end_that_a_later_login_may_not_have(tmp_path: Path) -> None:
    with running_conf("penstock", CONF, tmp_path) as port:
        client, publisher = login(port, "all"), login(port, "all")
        client.subscribe("foo.x", 1)
        client.subscribe("z", 2)
        refused = answers(client, 'CONNECT {"user":"denied","pass":"denied","verbose":false}')
        assert refused == ['-ERR \'Permissions Violation for Subscription to "foo.x" (sid "1")\'']
        publisher.publish("foo.x")
        publisher.publish("z")
        publisher.flush()
        assert received(client) == ["z 2"]
        client.close()
        publisher.close()


def test_a_reload_holds_connected_clients_to_new_permissions(nats_server_factory: Factory) -> None:
    server = nats_server_factory(users=(User(name="u", password="u"),))
    client = login(server.port, "u")
    client.subscribe("keep", 1)
    client.subscribe("drop", 2)
    client.flush()
    narrow = Permissions(
        publish=SubjectPermission(deny=(PermissionEntry("no"),)),
        subscribe=SubjectPermission(deny=(PermissionEntry("drop"),)),
    )

    async def change() -> bool:
        users = (User(name="u", password="u", permissions=narrow),)
        return await reload(server.server, lambda: replace(server.server.options, users=users))

    assert server.run(change())
    refused = '-ERR \'Permissions Violation for Subscription to "drop" (sid "2")\''
    assert answers(client, "PUB no 0\r\n") == [refused, *publish_refused("no")]
    assert answers(client, "PUB drop 0\r\n") == []
    client.publish("keep")
    assert received(client) == ["keep 1"]
    client.close()
