"""Auth callout of accounts known by their tokens: the same on ours and on the official server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocol.claims import (
    ExternalAuthorization,
    PermissionClaim,
    PermissionsClaim,
    ScopeClaim,
    TemplateClaim,
)
from penstock.server.config.directives import load
from tests.integration.auth.test_auth_callout import VIOLATION, XKEY, Question, unauthenticated
from tests.integration.auth.test_operators import conf
from tests.support.conf_servers import answers, received
from tests.support.keys import account_token, key, token_login, user_token
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.auth-callout", "security.operators")

CALLOUT, APP, CLOSED = (key("account", name) for name in ("CALLOUT", "APP", "CLOSED"))
SIGNING, SCOPED = key("account", "CALLOUT signing"), key("account", "APP scoped")
SERVICE = key("user", "service").public
SENTINEL = user_token("CALLOUT", "sentinel", bearer_token=True)
SCOPE = ScopeClaim(
    key=SCOPED.public, role="r", template=TemplateClaim(pub=PermissionClaim(allow=("may.{{name()}}",)))
)


def authorization(**more: Any) -> ExternalAuthorization:
    return ExternalAuthorization(auth_users=(SERVICE,), **more)


TOKENS = {
    "SYS": account_token("SYS"),
    "CALLOUT": account_token(
        "CALLOUT", signing_keys=(SIGNING.public,), authorization=authorization(allowed_accounts=(APP.public,))
    ),
    "SEALED": account_token("SEALED", authorization=authorization(xkey=XKEY.public, allowed_accounts=("*",))),
    "APP": account_token(
        "APP",
        signing_keys=(SCOPE,),
        default_permissions=PermissionsClaim(pub=PermissionClaim(deny=("secret",))),
    ),
    "CLOSED": account_token("CLOSED"),
}


CONF = conf(TOKENS, extra=f"authorization {{ timeout: 1 }}\ndefault_sentinel: {SENTINEL}")


@pytest.fixture
def service(port: int) -> Iterator[RawNats]:
    with serving(port, "CALLOUT") as client:
        yield client


@contextmanager
def serving(port: int, account: str) -> Iterator[RawNats]:
    """The service of an account, subscribed."""
    client = token_login(port, "service", user_token(account, "service"), headers=True)
    client.subscribe("$SYS.REQ.USER.AUTH", 1)
    client.flush()
    yield client
    client.close()


def who_am_i(wire: Any) -> tuple[str, str]:
    reported = wire.ask(b"SUB r 1\r\nPUB $SYS.REQ.USER.INFO r 0\r\n\r\n")
    while b"}}\r\n" not in reported:
        reported += wire.ask(b"")
    (page,) = [line for line in reported.split(b"\r\n") if line.startswith(b'{"server"')]
    data = json.loads(page)["data"]
    return data["user"], data["account"]


@pytest.mark.parametrize("shown", [{"jwt": SENTINEL}, {}, {"jwt": "no token"}])
def test_who_comes_with_a_sentinel_becomes_who_the_service_says(
    port: int, service: RawNats, shown: dict[str, str]
) -> None:
    wire = unauthenticated(port, user="joe", **{"pass": "secret"}, **shown)
    question = Question(service)
    assert question.claims.subject == CALLOUT.public
    assert question.body["connect_opts"]["jwt"] == SENTINEL
    assert (question.body["connect_opts"]["user"], question.body["connect_opts"]["pass"]) == ("joe", "secret")
    question.answer(by=CALLOUT)
    wire.until(b"PONG\r\n")
    assert who_am_i(wire) == ("joe", CALLOUT.public)
    refused = b"-ERR 'Permissions Violation for Publish to \"$SYS.REQ.USER.AUTH\"'\r\n"
    assert wire.ask(b"PUB $SYS.REQ.USER.AUTH 0\r\n\r\n") == refused
    wire.close()


def test_the_service_itself_is_not_asked_about_and_asks_nothing(port: int, service: RawNats) -> None:
    refused = ["-ERR 'Permissions Violation for Publish to \"$SYS.REQ.USER.AUTH\"'"]
    assert answers(service, "PUB $SYS.REQ.USER.AUTH 0\r\n") == refused


def test_users_of_other_accounts_come_in_by_their_tokens(port: int) -> None:
    token_login(port, "joe", user_token("APP", "joe")).close()


def test_the_account_that_issued_the_user_is_where_it_comes_to(port: int, service: RawNats) -> None:
    wire = unauthenticated(port)
    Question(service).answer(by=APP, response_by=SIGNING)
    wire.until(b"PONG\r\n")
    assert who_am_i(wire) == ("joe", APP.public)
    assert wire.ask(b"PUB secret 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"secret\"'\r\n"
    wire.close()


def test_a_scoped_key_gives_what_its_template_says(port: int, service: RawNats) -> None:
    wire = unauthenticated(port)
    nothing = {"subs": 0, "data": 0, "payload": 0, "issuer_account": APP.public}
    Question(service).answer(by=SCOPED, response_by=CALLOUT, user=nothing)
    wire.until(b"PONG\r\n")
    assert wire.ask(b"PUB may.joe 0\r\n\r\n") == b""
    assert (
        wire.ask(b"PUB may.ann 0\r\n\r\n") == b"-ERR 'Permissions Violation for Publish to \"may.ann\"'\r\n"
    )
    wire.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"by": CLOSED, "response_by": CALLOUT},
        {"by": CALLOUT, "response_by": APP},
        {"by": CALLOUT, "issuer_account": APP.public},
        {"by": SIGNING, "user": {"issuer_account": APP.public}},
        {"by": SCOPED, "response_by": CALLOUT, "user": {"issuer_account": APP.public, "payload": 5}},
        {"by": CALLOUT, "error": "no"},
    ],
)
def test_answers_that_do_not_fit_let_no_client_in(
    port: int, service: RawNats, answer: dict[str, Any]
) -> None:
    wire = unauthenticated(port)
    Question(service).answer(**answer)
    assert wire.rest() == VIOLATION


def test_without_a_service_only_its_own_users_are_let_in(port: int) -> None:
    assert unauthenticated(port, jwt=SENTINEL).rest() == VIOLATION


def test_no_service_is_asked_about_tokens_that_do_not_hold(port: int, service: RawNats) -> None:
    assert unauthenticated(port, jwt=user_token("CALLOUT", "joe"), sig="none").rest() == VIOLATION
    assert received(service) == []


def test_sealed_questions_and_every_account(port: int) -> None:
    with serving(port, "SEALED") as service:
        for by in (CLOSED, key("account", "SEALED")):
            wire = unauthenticated(port, jwt=user_token("SEALED", "sentinel", bearer_token=True))
            Question(service, XKEY).answer(by=by, sealed=True)
            wire.until(b"PONG\r\n")
            assert who_am_i(wire)[1] == by.public
            wire.close()


@pytest.mark.parametrize(
    ("sentinel", "why"),
    [("nothing", "default sentinel JWT not valid"),
     (user_token("CALLOUT", "joe"), "default sentinel must be a bearer token")],
)  # fmt: skip
def test_a_sentinel_that_lets_no_client_in_is_refused(sentinel: str, why: str, tmp_path: Any) -> None:
    path = tmp_path / "nats.conf"
    path.write_text(conf(TOKENS, extra=f"default_sentinel: {sentinel}"))
    with pytest.raises(ConfigError, match=why):
        load(str(path))
