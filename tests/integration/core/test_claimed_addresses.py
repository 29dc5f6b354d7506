"""X-Forwarded-For of WebSocket clients: anybody may write it, so both servers use it for log lines only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.protocol.claims import GenericClaims
from penstock.protocol.jwt import decode
from tests.support.conf_servers import login
from tests.support.keys import account_token, key, operator_token, signature, user_token
from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served
from tests.support.rawnats import RawNats
from tests.support.websocket_peer import Peer

pytestmark = pytest.mark.feature("connectivity.websocket")

CLAIM = "X-Forwarded-For: 10.1.2.3"
WEBSOCKET = "http: 127.0.0.1:-1\nwebsocket { host: 127.0.0.1, port: -1, no_tls: true }\n"


@contextmanager
def with_websockets(kind: str, directory: Path, conf: str = "") -> Iterator[Served]:
    with served(kind, directory, conf + WEBSOCKET) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("src", "answer"), [("10.0.0.0/8", "-ERR 'Authorization Violation'"), ("127.0.0.0/8", "PONG")]
)
def test_networks_of_a_user_are_those_of_its_socket(kind: str, src: str, answer: str, tmp_path: Path) -> None:
    conf = f"operator: {operator_token()}\nresolver: MEMORY\nresolver_preload {{\n"
    conf += f"{key('account', 'SYS').public}: {account_token('SYS')}\n"
    conf += f"{key('account', 'A').public}: {account_token('A')}\n}}\n"
    with with_websockets(kind, tmp_path, conf) as server:
        peer = Peer(server, CLAIM)
        sig = signature("joe", peer.info()["nonce"])
        assert peer.connect(jwt=user_token("A", "joe", src=(src,)), sig=sig) == answer


@pytest.mark.parametrize("kind", KINDS)
def test_an_auth_service_receives_the_address_of_the_socket(kind: str, tmp_path: Path) -> None:
    conf = f"""
    accounts {{ AUTH {{ users: [ {{ user: service, password: service }} ] }} }}
    authorization {{ auth_callout {{
        issuer: {key("account", "callout").public}, account: AUTH, auth_users: [ service ]
    }} }}
    """
    with with_websockets(kind, tmp_path, conf) as server:
        service = login(server.port, "service")
        service.subscribe("$SYS.REQ.USER.AUTH", 1)
        service.flush()
        peer = Peer(server, CLAIM)
        peer.info()
        peer.send('CONNECT {"user":"joe"}\r\n')
        question = decode(service.message().payload.decode())
        assert isinstance(question, GenericClaims)
        assert question.nats["client_info"]["host"] == "127.0.0.1"
        service.close()


@pytest.mark.parametrize("kind", KINDS)
def test_monitoring_and_info_show_the_address_of_the_socket_and_the_log_both(
    kind: str, tmp_path: Path
) -> None:
    with with_websockets(kind, tmp_path, "debug: true\n") as server:
        peer = Peer(server, CLAIM)
        assert peer.info()["client_ip"] == "127.0.0.1"
        assert peer.connect() == "PONG"
        six = Peer(server, "X-Forwarded-For: 2001:db8::1")
        six.info()
        address = re.findall(r"Starting http monitor on (\S+)", server.log)[-1]
        shown = RawNats.request_http(address, "/connz")["connections"]
        assert {entry["ip"] for entry in shown} == {"127.0.0.1"}
        lines = server.log
    assert re.search(r"10\.1\.2\.3/127\.0\.0\.1:\d+ - wid:\d+ - ", lines)
    assert re.search(r"\[2001:db8::1\]/127\.0\.0\.1:\d+ - wid:\d+ - ", lines)
    assert json.dumps(shown).count("10.1.2.3") == 0
