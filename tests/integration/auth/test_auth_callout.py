"""Auth callout: a service decides who a client is, on ours and on the official server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocol.claims import GenericClaims, PermissionClaim, UserClaims, UserFields
from penstock.protocol.curvekeys import CurveKey
from penstock.protocol.jwt import decode, encode
from penstock.protocol.nkeys import KeyPair, Prefix, is_public
from penstock.server.config.directives import load
from tests.support.conf_servers import answers, login, official_verdict, running_conf
from tests.support.keys import key, now_s
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats
from tests.support.wire import Wire

pytestmark = pytest.mark.feature("security.auth-callout")

ISSUER = key("account", "callout")
CONF = f"""
accounts {{
    AUTH {{ users: [ {{ user: service, password: service }} ] }}
    APP {{ users: [ {{ user: fixed, password: fixed }} ] }}
    FREE {{ users: [ {{ user: free, password: free }} ] }}
}}
authorization {{
    timeout: 1
    auth_callout {{
        issuer: {ISSUER.public}
        account: AUTH
        auth_users: [ service ]
        allowed_accounts: [ APP ]
    }}
}}
"""
VIOLATION = b"-ERR 'Authorization Violation'\r\n"


@pytest.fixture
def service(port: int) -> Iterator[RawNats]:
    client = login(port, "service")
    client.subscribe("$SYS.REQ.USER.AUTH", 1)
    client.flush()
    yield client
    client.close()


def unauthenticated(port: int, **connect: object) -> Wire:
    """A client that has sent CONNECT, and a PING that is answered when it is in."""
    wire = Wire(port)
    settings = {"verbose": False, "pedantic": False, "headers": True, **connect}
    wire.send(b"CONNECT " + json.dumps(settings).encode() + b"\r\nPING\r\n")
    return wire


class Question:
    """A question that has come to the service, which may have a curve key."""

    def __init__(self, service: RawNats, xkey: CurveKey | None = None) -> None:
        message = service.message()
        self.service, self.reply, self.xkey = service, message.reply.decode(), xkey
        self.server_xkey, payload = "", message.payload
        if xkey is not None:
            self.server_xkey = message.header.decode().split("\r\n")[1].removeprefix("Nats-Server-Xkey: ")
            payload = xkey.open(payload, self.server_xkey)
        self.claims = decode(payload.decode())
        assert isinstance(self.claims, GenericClaims)
        self.body: dict[str, Any] = dict(self.claims.nats)

    def answer(
        self,
        *,
        account: str = "APP",
        by: KeyPair = ISSUER,
        sealed: bool = False,
        issuer_account: str = "",
        response_by: KeyPair | None = None,
        user: dict[str, Any] | None = None,
        head: dict[str, Any] | None = None,
        error: str = "",
        **claims: Any,
    ) -> None:
        nkey = self.body["user_nkey"]
        body: dict[str, object] = {"type": "authorization_response", "version": 2}
        if issuer_account:
            body["issuer_account"] = issuer_account
        if error:
            body["error"] = error
        else:
            nats = UserFields(**{"subs": -1, "data": -1, "payload": -1, **(user or {})})
            given = {"subject": nkey, "audience": account, "name": "joe", **(head or {})}
            body["jwt"] = encode(UserClaims(nats=nats, **given), by, now_s=now_s())
        settings = {"subject": nkey, "audience": self.body["server_id"]["id"], **claims}
        answer = encode(GenericClaims(nats=body, **settings), response_by or by, now_s=now_s()).encode()
        if sealed:
            assert self.xkey is not None
            answer = self.xkey.seal(answer, self.server_xkey, bytes(24))
        self.service.publish(self.reply, answer)


def test_the_service_receives_who_asks(port: int, service: RawNats) -> None:
    wire = unauthenticated(
        port, user="joe", **{"pass": "secret"}, name="app", lang="test", version="1", protocol=1
    )
    question = Question(service)
    claims, body = question.claims, question.body
    assert (claims.audience, claims.subject) == ("nats-authorization-request", ISSUER.public)
    assert is_public(claims.issuer, Prefix.SERVER)
    assert claims.issuer == body["server_id"]["id"] == wire.info["server_id"]
    assert 0 < claims.expires - claims.issued_at <= 2
    assert is_public(body["user_nkey"], Prefix.USER)
    client = {name: body["client_info"].get(name) for name in ("user", "name", "kind", "type", "host")}
    assert client == {"user": "joe", "name": "app", "kind": "Client", "type": "nats", "host": "127.0.0.1"}
    assert body["connect_opts"] == {
        "user": "joe", "pass": "secret", "name": "app", "lang": "test", "version": "1", "protocol": 1
    }  # fmt: skip
    question.answer()
    wire.until(b"PONG\r\n")
    wire.close()


def test_a_client_becomes_who_the_service_says(port: int, service: RawNats) -> None:
    wire = unauthenticated(port, auth_token="anything")
    Question(service).answer(user={"pub": PermissionClaim(deny=("no",))})
    wire.until(b"PONG\r\n")
    assert wire.ask(b"PUB no 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"no\"'\r\n"
    reported = wire.ask(b"SUB r 1\r\nPUB $SYS.REQ.USER.INFO r 0\r\n\r\n")
    while b"}}\r\n" not in reported:
        reported += wire.ask(b"")
    data = json.loads(reported.split(b"\r\n")[1])
    assert (data["data"]["user"], data["data"]["account"]) == ("joe", "APP")
    wire.close()


def test_what_was_sent_behind_the_connect_waits_for_the_answer(port: int, service: RawNats) -> None:
    wire = Wire(port)
    wire.send(b'CONNECT {"verbose":false,"user":"x","pass":"y"}\r\nSUB a 1\r\nPUB a 2\r\nhi\r\nPING\r\n')
    Question(service).answer()
    assert wire.until(b"PONG\r\n") == b"MSG a 1 2\r\nhi\r\nPONG\r\n"
    wire.close()


def test_users_that_are_configured_may_be_asked_about_too(port: int, service: RawNats) -> None:
    fixed = unauthenticated(port, user="fixed", **{"pass": "fixed"})
    Question(service).answer(account="FREE")
    fixed.until(b"PONG\r\n")
    login(port, "free").close()  # not in an allowed account: the service is not asked
    fixed.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "no"},
        {"by": key("account", "stranger")},
        {"subject": key("user", "somebody").public},
        {"audience": key("server", "other").public},
        {"account": "NOWHERE"},
        {"head": {"subject": key("user", "somebody").public}},
        {"head": {"expires": now_s() - 10}},
        {"user": {"issuer_account": ISSUER.public}},
    ],
)
def test_answers_that_do_not_fit_let_no_client_in(
    port: int, service: RawNats, answer: dict[str, Any]
) -> None:
    wire = unauthenticated(port, user="joe", **{"pass": "x"})
    Question(service).answer(**answer)
    assert wire.rest() == VIOLATION
    wire.close()


def test_an_empty_answer_is_no(port: int, service: RawNats) -> None:
    wire = unauthenticated(port, user="joe", **{"pass": "x"})
    service.publish(Question(service).reply)
    assert wire.rest() == VIOLATION


def test_no_answer_in_time_is_no(port: int, service: RawNats) -> None:
    wire = unauthenticated(port, user="joe", **{"pass": "x"})
    Question(service)
    assert wire.rest() == VIOLATION


def test_without_a_service_no_other_client_is_let_in(port: int) -> None:
    assert unauthenticated(port, user="joe", **{"pass": "x"}).rest() == VIOLATION
    login(port, "service").close()


def test_an_end_that_the_answer_sets_is_kept(port: int, service: RawNats) -> None:
    wire = unauthenticated(port, user="joe", **{"pass": "x"})
    Question(service).answer(head={"expires": now_s() + 1})
    wire.until(b"PONG\r\n")
    assert wire.rest() == b"-ERR 'User Authentication Expired'\r\n"


STRANGER = key("account", "stranger")
XKEY = CurveKey.from_bytes(bytes(range(32)))


@pytest.mark.parametrize("kind", KINDS)
def test_with_a_curve_key_questions_are_sealed_and_answers_may_be(kind: str, tmp_path: Path) -> None:
    conf = CONF.replace(f"issuer: {ISSUER.public}", f"issuer: {ISSUER.public}, xkey: {XKEY.public}")
    with running_conf(kind, conf, tmp_path) as port:
        service = login(port, "service", headers=True)
        service.subscribe("$SYS.REQ.USER.AUTH", 1)
        service.flush()
        for answer in ({}, {"sealed": True}, {"sealed": True, "response_by": STRANGER}):
            wire = unauthenticated(port, user="joe", **{"pass": "x"})
            question = Question(service, XKEY)
            assert question.server_xkey == wire.info["xkey"] == question.body["server_id"]["xkey"]
            question.answer(**answer)
            wire.until(b"PONG\r\n")
            wire.close()
        for answer in ({"response_by": STRANGER}, {"sealed": True, "by": STRANGER}):
            wire = unauthenticated(port, user="joe", **{"pass": "x"})
            Question(service, XKEY).answer(**answer)
            assert wire.rest() == VIOLATION
        wire = unauthenticated(port, user="joe", **{"pass": "x"})
        question = Question(service, XKEY)
        question.xkey = CurveKey.from_bytes(bytes(32))
        question.answer(sealed=True)
        assert wire.rest() == VIOLATION
        service.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_subject_of_questions_is_the_servers(kind: str, tmp_path: Path) -> None:
    refused = ["-ERR 'Permissions Violation for Publish to \"$SYS.REQ.USER.AUTH\"'"]
    with running_conf(kind, CONF.replace("allowed_accounts: [ APP ]", ""), tmp_path) as port:
        service = login(port, "service")
        assert answers(service, "PUB $SYS.REQ.USER.AUTH 0\r\n") == refused
        service.subscribe("$SYS.REQ.USER.AUTH", 1)
        service.flush()
        wire = unauthenticated(port, user="joe", **{"pass": "x"})
        Question(service).answer(account="AUTH")
        wire.until(b"PONG\r\n")
        assert wire.ask(b"PUB $SYS.REQ.USER.AUTH 0\r\n\r\n").decode().strip() == refused[0]
        wire.close()
        service.close()


@pytest.mark.parametrize(
    ("callout", "why"),
    [
        ("auth_users: [a]", "Authorization callouts require an issuer to be specified"),
        (f"issuer: {ISSUER.public}", "Authorization callouts require authorized users to be specified"),
        ("issuer: x, auth_users: [a]", "Expected callout user to be a valid public account nkey, got "),
        (
            f"issuer: {ISSUER.public}, auth_users: [a], xkey: X1",
            "Expected callout xkey to be a valid",
        ),
        (
            f"issuer: {ISSUER.public}, auth_users: [a], allowed_accounts: [B]",
            'auth_callout allowed account "B" not found in configured accounts',
        ),
        (f"issuer: {ISSUER.public}, auth_users: a", "Expected auth_users field to be an array"),
    ],
)
def test_both_servers_refuse_the_same_callouts(callout: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(f"authorization {{ users: [ {{user: a, password: b}} ], auth_callout {{ {callout} }} }}")
    with pytest.raises(ConfigError) as caught:
        load(str(path))
    assert why in str(caught.value)
    assert why in official_verdict(path)
