"""Users with nkeys: the same configuration and the same keys on ours and on the official server."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.config.directives import load
from tests.support.conf_servers import answers, login, official_verdict, running_conf
from tests.support.keys import key, nkey_login, signature
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.nkeys")

JOE, ANN, WEB = (key("user", name).public for name in ("joe", "ann", "web"))
CONF = f"""
accounts {{
    A {{
        users: [
            {{ nkey: {JOE}, permissions: {{ publish: "ok.>", subscribe: {{ deny: "no" }} }} }}
            {{ user: a, password: a }}
        ]
    }}
    B {{ users: [ {{ nkey: {ANN} }}, {{ nkey: {WEB}, allowed_connection_types: ["websocket"] }} ] }}
}}
"""
VIOLATION = b"-ERR 'Authorization Violation'"


def refused(port: int, sign: Callable[[str], str], **connect: object) -> bool:
    """Does the server answer this CONNECT with a violation, and close?"""
    with pytest.raises(ConnectionError):
        RawNats(port, sign=sign, **connect)
    with Wire(port) as wire:
        wire.send(b'CONNECT {"nkey":"x","sig":"y"}\r\n')
        return wire.rest() == VIOLATION + b"\r\n"


def test_info_brings_a_nonce_that_is_another_one_each_time(port: int) -> None:
    with Wire(port) as first, Wire(port) as second:
        assert first.info["auth_required"] is True
        assert len(first.info["nonce"]) == len(second.info["nonce"]) == 15
        assert first.info["nonce"] != second.info["nonce"]


def test_the_owner_of_the_key_is_let_in_with_its_permissions(port: int) -> None:
    joe = nkey_login(port, "joe")
    assert answers(joe, "PUB ok.1 0\r\n") == []
    assert answers(joe, "PUB no 0\r\n") == ["-ERR 'Permissions Violation for Publish to \"no\"'"]
    assert answers(joe, "SUB no 1") == ["-ERR 'Permissions Violation for Subscription to \"no\"'"]
    joe.close()


def test_standard_base64_is_a_signature_too(port: int) -> None:
    def sign(nonce: str) -> str:
        return base64.b64encode(key("user", "ann").sign(nonce.encode())).decode()

    RawNats(port, sign=sign, nkey=ANN).close()


def test_a_wrong_signature_key_or_nonce_is_refused(port: int) -> None:
    assert refused(port, lambda nonce: signature("ann", nonce), nkey=JOE)
    assert refused(port, lambda nonce: signature("joe", nonce + "x"), nkey=JOE)
    assert refused(port, lambda nonce: "!", nkey=JOE)
    assert refused(port, lambda nonce: "", nkey=JOE)
    stranger = key("user", "stranger").public
    assert refused(port, lambda nonce: signature("stranger", nonce), nkey=stranger)


def test_the_key_alone_proves_nothing(port: int) -> None:
    assert refused(port, lambda nonce: "", user=JOE, **{"pass": ""})


def test_users_with_passwords_are_let_in_beside_them(port: int) -> None:
    login(port, "a").close()
    assert refused(port, lambda nonce: "", user="a", **{"pass": "b"})


def test_a_connection_of_another_type_is_refused(port: int) -> None:
    assert refused(port, lambda nonce: signature("web", nonce), nkey=WEB)


@pytest.mark.feature("monitoring.user-info")
def test_clients_learn_who_they_are(port: int) -> None:
    """`$SYS.REQ.USER.INFO`."""
    joe = nkey_login(port, "joe")
    permitted = nkey_login(port, "ann")
    data = permitted.request("$SYS.REQ.USER.INFO")["data"]
    assert data == {"user": ANN, "account": "B", "account_name": "B"}
    joe.close()
    permitted.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_auth_user_can_be_an_nkey(kind: str, tmp_path: Path) -> None:
    conf = f"authorization {{ users: [ {{ nkey: {JOE} }} ] }}\nno_auth_user: {JOE}"
    with running_conf(kind, conf, tmp_path) as port:
        client = RawNats(port)
        assert "nonce" in client.info
        assert client.request("$SYS.REQ.USER.INFO")["data"]["user"] == JOE
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_without_nkeys_there_is_no_nonce(kind: str, tmp_path: Path) -> None:
    with running_conf(kind, "authorization { user: a, password: a }", tmp_path) as port, Wire(port) as wire:
        assert "nonce" not in wire.info


@pytest.mark.parametrize(
    ("conf", "text"),
    [
        ("nkey: UABC", "Not a valid public nkey for a user"),
        (f"nkey: {key('account', 'A').public}", "Not a valid public nkey for a user"),
        (f"nkey: {JOE}, user: a", "Nkey users do not take usernames or passwords"),
        (f"nkey: {JOE}, password: a", "Nkey users do not take usernames or passwords"),
        (f"nkey: {JOE}, allowed_connection_types: [PIGEON]", 'invalid connection types ["PIGEON"]'),
    ],
)
def test_both_servers_refuse_the_same_users(conf: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"authorization {{ users: [ {{ {conf} }} ] }}")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert text in str(caught.value)
    assert text in official_verdict(path)


def test_a_client_that_signs_slowly_is_closed_in_time(tmp_path: Path) -> None:
    conf = f"authorization {{ timeout: 0.1, users: [ {{ nkey: {JOE} }} ] }}"
    with running_conf("penstock", conf, tmp_path) as port:
        sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        data = b""
        while piece := sock.recv(4096):
            data += piece
        assert data.endswith(b"-ERR 'Authentication Timeout'\r\n")
        sock.close()
