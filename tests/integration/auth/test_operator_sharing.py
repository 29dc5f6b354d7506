"""Accounts known by tokens share subjects: exports, imports, activations, on both servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.protocol.claims import Activation, ActivationClaims, ExportClaim, ExportKind, ImportClaim
from penstock.protocol.jwt import encode
from penstock.protocol.nkeys import KeyPair
from tests.integration.auth.test_operators import conf, system_login, updated
from tests.support.conf_servers import received, running_conf
from tests.support.keys import account_token, key, now_s, token_login, user_token
from tests.support.nats_servers import KINDS
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("security.operators", "security.accounts")

FROM = key("account", "FROM")


def activation(kind: ExportKind, subject: str, to: str = "TO", by: KeyPair = FROM, **head: Any) -> str:
    """Leave of the exporting account to import."""
    claims = ActivationClaims(
        subject=key("account", to).public, nats=Activation(subject=subject, kind=kind), **head
    )
    return encode(claims, by, now_s=now_s() - 10)


def imported(kind: ExportKind, subject: str, **fields: Any) -> ImportClaim:
    return ImportClaim(account=FROM.public, subject=subject, type=kind, **fields)


EXPORTS = (
    ExportClaim(subject="news.>", type="stream"),
    ExportClaim(subject="time", type="service"),
    ExportClaim(subject="private.>", type="stream", token_req=True),
    ExportClaim(subject="secret", type="service", token_req=True,
           revocations={key("account", "REVOKED").public: now_s()}),
)  # fmt: skip
IMPORTS = (
    imported("stream", "news.eu"),
    imported("stream", "news.us", local_subject="us.news"),
    imported("service", "time", local_subject="clock"),
    imported("stream", "private.a", token=activation("stream", "private.>")),
    imported("stream", "private.b"),
    imported("service", "secret", token=activation("service", "secret")),
)
REVOKED = activation("service", "secret", to="REVOKED")
TOKENS = {
    "SYS": account_token("SYS"),
    "FROM": account_token("FROM", exports=EXPORTS),
    "TO": account_token("TO", imports=IMPORTS),
    "REVOKED": account_token(
        "REVOKED",
        imports=(imported("service", "secret", token=REVOKED),),
    ),
}


CONF = conf(TOKENS)


def user(port: int, account: str, **connect: object) -> RawNats:
    return token_login(port, "joe", user_token(account, "joe"), **connect)


def test_streams_come_over_to_those_who_may(port: int) -> None:
    to, source = user(port, "TO"), user(port, "FROM")
    to.send(b"SUB > 1\r\n")
    to.flush()
    for subject in ("news.eu", "news.us", "news.asia", "private.a", "private.b"):
        source.publish(subject)
    source.flush()
    assert received(to) == ["news.eu 1", "private.a 1", "us.news 1"]
    to.close()
    source.close()


@pytest.mark.parametrize(("account", "subject", "answered"), [("TO", "clock", True), ("TO", "secret", True),
                                                              ("REVOKED", "secret", False)])  # fmt: skip
def test_services_answer_those_who_may(port: int, account: str, subject: str, answered: bool) -> None:
    asks, serves = user(port, account), user(port, "FROM")
    serves.subscribe("time", 1)
    serves.subscribe("secret", 2)
    serves.flush()
    asks.subscribe("_R.x", 1)
    asks.publish(subject, b"?", "_R.x")
    if answered:
        request = serves.message()
        serves.publish(request.reply.decode(), b"yes")
        assert asks.message().payload == b"yes"
    else:
        assert b"503" in asks.message().header
    asks.close()
    serves.close()


@pytest.mark.parametrize("kind", KINDS)
def test_exports_that_are_gone_end_imports(kind: str, tmp_path: Path) -> None:
    tokens = {
        "SYS": TOKENS["SYS"],
        "FROM": account_token("FROM", exports=EXPORTS[:1]),
        "TO": account_token("TO", imports=IMPORTS[:1]),
    }
    with running_conf(kind, conf(tokens), tmp_path) as port:
        system, to, source = system_login(port), user(port, "TO"), user(port, "FROM")
        to.send(b"SUB > 1\r\n")
        to.flush()
        source.publish("news.eu")
        source.flush()
        assert received(to) == ["news.eu 1"]
        assert updated(system, "FROM", account_token("FROM"))["code"] == 200
        source.publish("news.eu")
        source.flush()
        assert received(to) == []
        for client in (system, to, source):
            client.close()


PLAIN = {"headers": False, "no_responders": False}  # requests come as MSG


@pytest.mark.parametrize("kind", KINDS)
def test_imports_end_when_their_activation_expires(kind: str, tmp_path: Path) -> None:
    ends = {"expires": now_s() + 6}
    imports = (
        imported("stream", "private.a", token=activation("stream", "private.a", **ends)),
        imported("stream", "private.b", token=activation("stream", "private.>")),
        imported("service", "secret", token=activation("service", "secret", **ends)),
    )
    tokens = {**TOKENS, "TO": account_token("TO", imports=imports)}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        to, source = user(port, "TO"), user(port, "FROM", **PLAIN)
        to.send(b"SUB private.> 1\r\n")
        to.subscribe("in", 2)
        source.subscribe("secret", 1)
        source.flush()

        def reached() -> tuple[list[str], list[str]]:
            to.publish("secret", b"?")
            to.flush()
            requests = received(source)
            source.publish("private.a")
            source.publish("private.b")
            source.flush()
            messages = received(to)
            # Two activations that end in the same instant can leave the official server subscribed
            # to the import that stays twice, for good: it is the one whose timers race.
            return requests, sorted(set(messages)) if kind == "official" else messages

        assert reached() == (["secret 1"], ["private.a 1", "private.b 1"])
        deadline = ends["expires"] + 10  # the servers' own timers: of seconds, and as late as they are
        while (now := reached()) != ([], ["private.b 1"]):
            assert time.time() < deadline, now
            time.sleep(0.1)
        assert time.time() > ends["expires"] - 1
        for client in (to, source):
            client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_activation_that_is_revoked_ends_an_import(kind: str, tmp_path: Path) -> None:
    tokens = {**TOKENS, "TO": account_token("TO", imports=IMPORTS[-1:])}
    with running_conf(kind, conf(tokens), tmp_path) as port:
        system, to, source = system_login(port), user(port, "TO"), user(port, "FROM", **PLAIN)
        source.subscribe("secret", 1)
        source.flush()
        to.publish("secret", b"?")
        to.flush()
        assert received(source) == ["secret 1"]
        time.sleep(1.1)  # a newer token is one of a later second
        revoking = ExportClaim(subject="secret", type="service", token_req=True, revocations={"*": now_s()})
        assert updated(system, "FROM", account_token("FROM", exports=(revoking,)))["code"] == 200
        to.publish("secret", b"?")
        to.flush()
        assert received(source) == []
        for client in (system, to, source):
            client.close()
