"""What is needed to log in is on no page of the monitoring port, which everybody may read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.keys import account_token, key, operator_token, token_login, user_token
from tests.support.nats_servers import KINDS
from tests.support.processes import Served, served
from tests.support.rawnats import RawNats

pytestmark = pytest.mark.feature("monitoring.http")

HTTP = "http: 127.0.0.1:-1\n"
PAGES = (
    "varz", "connz?auth=1", "connz?auth=1&state=any", "connz?auth=1&subs=detail", "accountz",
    "accstatz?unused=1", "subsz?subs=1", "leafz", "routez", "gatewayz", "healthz", "jsz?accounts=1&config=1",
)  # fmt: skip


def pages(server: Served) -> dict[str, str]:
    address = server.log.split("Starting http monitor on ")[1].split()[0]
    return {path: json.dumps(RawNats.request_http(address, f"/{path}")) for path in PAGES}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bearer_token_is_not_shown_and_others_are(kind: str, tmp_path: Path) -> None:
    conf = f"operator: {operator_token()}\nresolver: MEMORY\nresolver_preload {{\n"
    conf += f"{key('account', 'SYS').public}: {account_token('SYS')}\n"
    conf += f"{key('account', 'A').public}: {account_token('A')}\n}}\n"
    bearer, signed = user_token("A", "joe", bearer_token=True), user_token("A", "ann")
    with served(kind, tmp_path, conf + HTTP) as server:
        clients = [RawNats(server.port, jwt=bearer), token_login(server.port, "ann", signed)]
        RawNats(server.port, jwt=bearer).close()
        found = pages(server)
        for client in clients:
            client.close()
    assert [path for path, page in found.items() if bearer in page] == []
    assert signed in found["connz?auth=1"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("conf", "connect"),
    [
        ("authorization { user: a, password: s3cr3t-7071 }", {"user": "a", "pass": "s3cr3t-7071"}),
        ("authorization { token: s3cr3t-7071 }", {"auth_token": "s3cr3t-7071"}),
        (
            "accounts { A { users: [ { user: a, password: s3cr3t-7071 } ] } }",
            {"user": "a", "pass": "s3cr3t-7071"},
        ),
    ],
)
def test_passwords_and_tokens_are_on_no_page(
    kind: str, conf: str, connect: dict[str, str], tmp_path: Path
) -> None:
    with served(kind, tmp_path, f"{conf}\n{HTTP}", "-DV") as server:
        client = RawNats(server.port, **connect)
        if "user" in connect:
            with pytest.raises(ConnectionError):
                RawNats(server.port, user="a", **{"pass": "other-s3cr3t-7071"})
        found = pages(server)
        client.close()
        assert "s3cr3t-7071" not in server.log
    assert [path for path, page in found.items() if "s3cr3t-7071" in page] == []
